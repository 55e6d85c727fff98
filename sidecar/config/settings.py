"""The settings tree, and how it is loaded: defaults, then a YAML file, then the environment, then the command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from sidecar.config import sources
from sidecar.config.errors import SettingsError
from sidecar.config.fields import allowed, keys
from sidecar.config.fleet import AlertSettings, FleetSettings
from sidecar.config.guard import GuardSettings
from sidecar.config.kafka import KafkaSettings
from sidecar.config.sections import (
    EngineSettings,
    HealthSettings,
    HttpSettings,
    LogSettings,
    SessionSettings,
    SnapshotSettings,
    TailSettings,
    TopicSettings,
    WatchSettings,
)
from sidecar.engine.limits import Limits


class Settings(BaseSettings):
    """Hold every setting of the sidecar; see `load`."""

    model_config = SettingsConfigDict(
        env_prefix=sources.PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
        validate_default=True,
        hide_input_in_errors=True,
    )

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="How to reach the brokers, and as whom.")
    topics: TopicSettings = Field(
        default_factory=TopicSettings, description="The topics' names, and how missing ones are created."
    )
    tail: TailSettings = Field(default_factory=TailSettings, description="The Kafka tail (`run`).")
    snapshot: SnapshotSettings = Field(
        default_factory=SnapshotSettings, description="How the tail keeps its state (`run`)."
    )
    session: SessionSettings = Field(
        default_factory=SessionSettings,
        description="What becomes of sessions that are idle, or joined midstream (`run`, `watch`).",
    )
    engine: EngineSettings = Field(
        default_factory=EngineSettings, description="How long the judge waits and how much it keeps, per session."
    )
    http: HttpSettings = Field(
        default_factory=HttpSettings, description="Where metrics, health and the guard are served (`--http HOST:PORT`)."
    )
    guard: GuardSettings = Field(
        default_factory=GuardSettings, description="What agents ask before they act, on the address of `http`."
    )
    fleet: FleetSettings = Field(default_factory=FleetSettings, description="The view of all sessions (`fleet`).")
    alerts: AlertSettings = Field(default_factory=AlertSettings, description="What the fleet alerts to (`fleet`).")
    health: HealthSettings = Field(default_factory=HealthSettings, description="When `/healthz` and `/readyz` fail.")
    log: LogSettings = Field(default_factory=LogSettings, description="What is logged, on standard error.")
    watch: WatchSettings = Field(default_factory=WatchSettings, description="The tail on files (`watch`).")

    @classmethod
    def load(cls, path: Path | str | None = None, **overrides: Any) -> "Settings":
        """Load the settings.

        Args:
            path: a YAML file; None: the one that `SIDECAR_CONFIG` names, else none.
            overrides: what the command line gives, which wins over everything: `kafka__bootstrap_servers="a:9092"`
                for one setting, `http="0.0.0.0:9464"` for the address, or a mapping for a section. None: not given.

        Raises:
            SettingsError: a key is unknown, a value is not allowed, or settings contradict each other; all such
                problems of one source are named together, each with the place it was given.
        """
        named = path if path is not None else os.environ.get(sources.FILE_VARIABLE)
        file = Path(named).expanduser() if named else None
        given = sources.nested(overrides)
        if isinstance(address := given.get("http"), str):
            # As a mapping, or the address would replace all of the section that other sources give.
            given["http"] = HttpSettings.split(address) or address
        origins = sources.from_file(cls, file) if file else {}
        origins.update(sources.from_environment(cls, os.environ))
        origins.update(sources.from_command_line(cls, given))
        values: dict[str, Any] = {_FILE: file, **given}
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError.of(
                problem for details in error.errors(include_url=False) for problem in _problems(cls, details, origins)
            ) from None

    def limits(self) -> Limits:
        """Return what bounds the judge and says how it begins, as the engine takes it."""
        return replace(self.engine.limits(), midstream=self.session.midstream)

    def advertised(self, port: int | None = None) -> str | None:
        """Return the URL under which others can reach this replica's guard; None: there is none to name.

        Args:
            port: the port that is listened on, where `http.port` leaves it open.
        """
        guard, host = self.guard, self.http.host
        if not guard.enabled:
            return None
        port = self.http.port or port
        if guard.advertise is not None or host in _WILDCARDS or not port:
            return guard.advertise
        scheme = "http" if guard.tls_certfile is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the sources in order, the strongest first."""
        file = cast(InitSettingsSource, init_settings).init_kwargs.pop(_FILE, None)
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=file)


_WILDCARDS = ("0.0.0.0", "::")
_FILE = "settings_file"
"""How `load` hands the file's path to the sources; never a setting."""


def _problems(tree: type[Settings], details: ErrorDetails, origins: Mapping[tuple[str, ...], str]) -> list[str]:
    path = tuple(str(part) for part in details["loc"])
    where = _origin(path, origins)
    if details["type"] == "extra_forbidden":
        return [sources.unknown(tree, path, where or "settings")]
    message = str(details.get("ctx", {}).get("error") or details["msg"])
    known = {key.dotted: key for key in keys(tree)}
    key = known.get(".".join(path[:2])) or known.get(".".join((*path[:2], "NAME", *path[3:])))
    if key is None:
        if details["type"] == "value_error":  # settings that contradict each other; the message names them
            return message.splitlines()
        return [f"{_at(where)}{'.'.join(path)} is a section: its settings go below it, as `key: value`"]
    value = "the value (a secret)" if key.secret else repr(details["input"])
    if details["type"] == "value_error":
        message = f" ({message})"
    elif key.secret and details["type"] == "string_type":
        message = " (it does not read as text: put it in quotes)"
    else:
        message = ""
    return [f"{_at(where)}{'.'.join(path)}: {value} is not allowed, expected {allowed(key.field)}{message}"]


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _origin(path: tuple[str, ...], origins: Mapping[tuple[str, ...], str]) -> str:
    """Return where a value was given: there, or where what holds it was (an item of a list, an address)."""
    return next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), "")
