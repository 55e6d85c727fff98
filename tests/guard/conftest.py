"""Logs as the program writes them, and certificates."""

from __future__ import annotations

import io
import logging
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from sidecar.observe import logs
from tests.conftest import missing


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Give what is logged at info and above, as JSON lines."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # so that the set-up does not close pytest's
    stream = io.StringIO()
    logs.setup("info", "json", stream=stream)
    yield stream
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    for name in ("aiokafka", "aiohttp", "asyncio", "kafka"):
        logging.getLogger(name).setLevel(logging.NOTSET)


KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates:
    """Certificates that openssl has made: `ca` and `stranger` are authorities, the others were issued by them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("ca", "stranger"):
            self._run("req", "-x509", *KEY, "-days", "2", "-subj", f"/CN={name}",
                      "-addext", "keyUsage=critical,keyCertSign",
                      "-keyout", self._key(name), "-out", self._cert(name))  # fmt: skip
        self.issue("server", "ca", "serverAuth")
        self.issue("client", "ca", "clientAuth")
        self.issue("intruder", "stranger", "clientAuth")

    def issue(self, name: str, by: str, purpose: str, days: int = 2) -> None:
        """Make a certificate for a server or a client; an earlier one of that name is replaced."""
        extensions = self.folder / f"{name}.cnf"
        extensions.write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={purpose}\n")
        request = str(self.folder / f"{name}.csr")
        self._run("req", "-new", *KEY, "-subj", f"/CN={name}", "-keyout", self._key(name), "-out", request)
        self._run("x509", "-req", "-in", request, "-CA", self._cert(by), "-CAkey", self._key(by), "-CAcreateserial",
                  "-extfile", str(extensions), "-days", str(days), "-out", self._cert(name))  # fmt: skip

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts `ca`, and shows a certificate if one is named."""
        context = ssl.create_default_context(cafile=str(self.cert("ca")))
        if name is not None:
            context.load_cert_chain(self.cert(name), self.key(name))
        return context

    def _cert(self, name: str) -> str:
        return str(self.cert(name))

    def _key(self, name: str) -> str:
        return str(self.key(name))

    @staticmethod
    def _run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Give certificates of this test's own."""
    if shutil.which("openssl") is None:
        missing("openssl makes the certificates of this test")
    return Certificates(tmp_path)
