"""A guard for tests that judges with the engine what logs in memory hold."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web

from sidecar.engine import ask
from sidecar.engine.fold import Engine
from sidecar.protocol.api import (
    AuthorizeAnswer,
    AuthorizeRequest,
    CommitAnswer,
    GcAnswer,
    GcRequest,
    Problem,
    Reason,
    ResumeAnswer,
    ResumeRequest,
)
from sidecar.protocol.decode import decode
from tests.client.guards import FakeGuard
from tests.client.memory import MemoryLog
from tests.client.test_guard import in_thread


class Judge:
    """Answer with what the engine makes of some logs.

    `findings` are all that it has found, `halts` all halts that were opened or cleared.
    """

    def __init__(self, *logs: MemoryLog) -> None:
        self.logs = {log.session_id: log for log in logs}
        self.engine = Engine()
        self.folded: dict[str, int] = {}
        self.findings: list[tuple[str, str]] = []
        self.halts: list[Any] = []
        self._lock = threading.Lock()

    def catch_up(self) -> None:
        """Fold what has been logged."""
        with self._lock:
            for session_id, log in self.logs.items():
                done = self.folded.get(session_id, 0)
                lines = list(log.raw)
                outcome = self.engine.fold([(*decode(raw), None) for raw in lines[done:]], 0.0)
                self.findings += [(finding.rule, finding.subject.id) for finding in outcome.findings]
                self.halts += outcome.halts
                self.folded[session_id] = len(lines)

    def found(self) -> list[tuple[str, str]]:
        """Return what has been found up to now."""
        self.catch_up()
        return self.findings

    def status(self, session_id: str) -> str:
        """Return how a session stands."""
        self.catch_up()
        view = ask.view(self.engine, session_id)
        assert view is not None
        return view.status

    def __call__(self, request: web.Request, asked: dict[str, Any]) -> Any:
        self.catch_up()
        if request.method == "GET":
            view = ask.view(self.engine, unquote(request.raw_path.rpartition("/")[2]))
            unknown = Problem(reasons=[Reason(code="unknown_session", detail="unknown")])
            return view if view is not None else (404, unknown)
        min_seq = asked.pop("min_seq", None)
        answers: dict[str, Any] = {
            "/v1/authorize": (AuthorizeAnswer, AuthorizeRequest, ask.authorize),
            "/v1/resume": (ResumeAnswer, ResumeRequest, ask.resume),
            "/v1/gc": (GcAnswer, GcRequest, ask.gc),
        }
        if min_seq is not None and (ask.applied(self.engine, asked["session_id"]) or 0) < min_seq:
            kind = answers.get(request.path, (CommitAnswer,))[0]
            return kind(reasons=[Reason(code="not_applied", detail="not yet")], session_id=asked["session_id"])
        if request.path == "/v1/commit":
            record, _ = decode(msgspec.json.encode(asked))
            return ask.commit(self.engine, record)  # type: ignore[arg-type]
        _, question, function = answers[request.path]
        return function(self.engine, msgspec.convert(asked, question))


@contextlib.contextmanager
def judging(*logs: MemoryLog) -> Iterator[tuple[Judge, FakeGuard]]:
    """Serve a judge of some logs."""
    judge = Judge(*logs)
    with in_thread(FakeGuard(judge)) as fake:
        yield judge, fake
