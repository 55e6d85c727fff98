"""The `guard` section: who may ask the guard, and how much of it."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from sidecar.config.fields import Bytes, Int, Seconds, Section

_URL = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class GuardSettings(Section):
    """Answer agents that ask before they act."""

    enabled: bool = Field(
        default=True, description="Whether agents may ask: `/v1/…` on the address of `http` (`--no-guard`: no)."
    )
    token_file: Path | None = Field(
        default=None,
        description="File with the bearer tokens that may ask, one a line (two while one replaces the other), after it "
        "`name=NAME` and `tenants=TENANT,TENANT` if it is to have a name or is for these tenants' sessions only; read "
        "again when it changes. Set: nobody asks without one.",
    )
    tls_certfile: Path | None = Field(
        default=None,
        description="Certificate chain (PEM) to serve HTTPS with, metrics and health included; read again when it "
        "changes.",
    )
    tls_keyfile: Path | None = Field(
        default=None, description="Private key (PEM) of that certificate; unset: it is in the same file."
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="Authority (PEM) of the clients' certificates. Set: nobody asks without one; metrics and health "
        "stay open.",
    )
    max_body: Bytes = Field(default=2**18, ge=2**10, le=2**26, description="Largest question.")
    max_concurrent: Int = Field(
        default=256, ge=1, le=65536, description="Questions at the same time; more are refused at once (429)."
    )
    timeout: Seconds = Field(
        default=5.0, ge=0.1, le=300, description="Longest time for a question to arrive and be answered; then refused."
    )
    max_wait: Seconds = Field(
        default=2.0,
        ge=0,
        le=300,
        description="Longest time to wait for the log to be applied up to a question's `min_seq`; then refused.",
    )
    max_staleness: Seconds = Field(
        default=5.0,
        ge=0.1,
        le=3600,
        description="Refused as lagging once a session's log has not been read to its end for so long.",
    )
    require_min_seq: bool = Field(
        default=False,
        description="Whether a question must name `min_seq`, the position of the asker's own last record; without it a "
        "permission may be older than what the agent has just written.",
    )
    decisions: Literal["required", "off"] = Field(
        default="required",
        description="`required`: a permission is written to the log of decisions before it is given "
        "(`topics.decisions`; of `watch` a file), and refused if it cannot be. `off`: nothing is written, and nobody "
        "can compare the permissions that were given with the log.",
    )
    decision_timeout: Seconds = Field(
        default=1.0,
        ge=0.01,
        le=60,
        description="Longest time to write a permission down; then it is refused.",
    )
    recent_findings: Int = Field(
        default=2000, ge=0, le=1_000_000, description="Findings kept for `/v1/findings`, of all sessions."
    )
    recent_per_session: Int = Field(
        default=100, ge=0, le=1_000_000, description="Findings kept for `/v1/findings`, of one session."
    )
    advertise: str | None = Field(
        default=None,
        description="Address (URL) under which other replicas name this one as a session's owner; unset: made of "
        "`http.host` and `http.port`, unless that host is a wildcard.",
    )

    @field_validator("advertise")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        if url is not None and not _URL.fullmatch(url.rstrip("/")):
            raise ValueError("an address is http://HOST:PORT or https://HOST:PORT, without a path")
        return url and url.rstrip("/")

    @model_validator(mode="after")
    def _consistent(self) -> "GuardSettings":
        problems = []
        for name in ("tls_keyfile", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certfile is None:
                problems.append(f"guard.{name} is given without a certificate: set guard.tls_certfile too")
        if self.max_wait >= self.timeout:
            problems.append(
                f"guard.max_wait {self.max_wait:g} is not below guard.timeout {self.timeout:g}: a question that waits "
                "would never be told that it waited in vain"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self
