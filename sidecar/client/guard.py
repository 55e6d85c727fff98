"""Ask the guard before acting, resuming, committing or reclaiming; no answer is a refusal too.

A question never raises for what goes wrong on the way: whatever is not a plain, believable yes is an answer that
refuses. Nothing is remembered from one question to the next but who answered.
"""

from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload
from urllib.parse import quote, urlencode

from sidecar.client.asking import Asker, Configuration
from sidecar.client.http import Cert, Verify
from sidecar.client.irreversible import Log, OnError
from sidecar.client.portal import Portal
from sidecar.client.questions import Invalid, Question, authorize, commit, gc, refusal, resume
from sidecar.client.refused import ActionUnlogged, Answer, GuardError, Refused
from sidecar.client.steps import refuse_async
from sidecar.client.wrapping import ActionId, CheckpointId, Wrapping, wrapped_async, wrapped_sync
from sidecar.protocol.api import (
    AuthorizeAnswer,
    CheckpointView,
    CommitAnswer,
    FindingsView,
    GcAnswer,
    Reason,
    ResumeAnswer,
    SessionView,
)
from sidecar.protocol.records import Summary

__all__ = ["ActionUnlogged", "Guard", "GuardError", "Refused", "SyncGuard"]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=Answer)
F = TypeVar("F", bound=Callable[..., Any])


class _Wrap(Protocol):
    """Be what `Guard.irreversible` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, Coroutine[Any, Any, R]]: ...


class _Configured:
    """Hold what both clients are made of."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        token_over_http: bool = False,
        verify: Verify = True,
        cert: Cert | None = None,
        timeout: float = 10.0,
        patience: float = 0.0,
        owner_hosts: Iterable[str] | None = None,
        max_connections: int = 100,
    ) -> None:
        self._asker = Asker(
            Configuration(
                url=url,
                token=token,
                token_file=token_file,
                token_over_http=token_over_http,
                verify=verify,
                cert=cert,
                timeout=timeout,
                patience=patience,
                owner_hosts=None if owner_hosts is None else tuple(owner_hosts),
                max_connections=max_connections,
            )
        )
        self._prepare()

    def _prepare(self) -> None:
        """Make what only one of the two needs."""

    @property
    def url(self) -> str:
        """Return the configured address."""
        return str(self._asker.url)

    @property
    def patience(self) -> float:
        """Return how long a question is asked again."""
        return self._asker.patience

    async def _question(self, kind: type[A], session_id: object, make: Callable[..., Question[A]], *args: Any) -> A:
        try:
            return await self._asker.ask(make(*args))
        except Invalid as error:
            return refusal(kind, session_id, "bad_request", f"The question was not sent: {error}")
        except Exception as error:
            return refusal(kind, session_id, "unavailable", f"The question could not be asked: {error!r}")

    async def _look(self, what: str, kind: type[R], session_id: str | None, *path: str, query: str = "") -> R:
        try:
            address = "/".join(("/v1", *(_part(part) for part in path)))
            shown = await self._asker.look(f"{address}{query}", session_id, kind)
        except Exception as error:
            shown = [Reason(code="unavailable", detail=f"The guard could not be asked: {error!r}")]
        if isinstance(shown, list):
            raise GuardError(what, shown)
        return shown

    async def _session(self, session_id: str) -> SessionView:
        return await self._look(f"session {session_id}", SessionView, session_id, "sessions", session_id)

    async def _checkpoint(self, session_id: str, checkpoint_id: str) -> CheckpointView:
        path = ("sessions", session_id, "checkpoints", checkpoint_id)
        return await self._look(f"checkpoint {checkpoint_id} of {session_id}", CheckpointView, session_id, *path)

    async def _findings(self, session_id: str | None, limit: int | None) -> FindingsView:
        wanted = {"session": session_id, "limit": limit}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        what = "the findings" if session_id is None else f"the findings of {session_id}"
        return await self._look(what, FindingsView, session_id, "findings", query=query and f"?{query}")


class Guard(_Configured):
    """Ask the guard, in code with `await`; an async context manager.

    Args:
        url: the guard of any replica, as in `http://127.0.0.1:9464`.
        token: the bearer token to show.
        token_file: a file with it, read again when the token is refused.
        token_over_http: whether the token may go unencrypted to an address that is not loopback; say so only where
            something else encrypts the way there.
        verify: for https, how the server is verified: True (the system's authorities), a file of authorities, an SSL
            context, or False (not at all: then anybody on the way can permit anything).
        cert: for mutual TLS, the client's certificate: a PEM file, or (certificate, key), the key not encrypted (else
            give an SSL context as `verify`).
        timeout: longest time in seconds for one address to answer; a question asks at most four of them. The guard's
            own `guard.timeout` should be shorter, so that it can say what it waited for.
        patience: how long, in seconds, a question is asked again while the answer is one that may pass (the guard is
            restoring, lagging, overloaded, cannot be reached); 0: it is asked once.
        owner_hosts: hosts (`guard-*.example` for many) that a guard may name as a session's owner; None: any with a
            certificate of the authorities that `verify` names. Anybody else who is named is not asked.
        max_connections: most connections at the same time.

    Raises:
        ValueError: the arguments cannot be used; the message says why.
        OSError: a file for TLS cannot be used.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; every later question is refused."""
        await self._asker.http.close()

    async def authorize(
        self, session_id: str, action_id: str, checkpoint_id: str | None = None, min_seq: int | None = None
    ) -> AuthorizeAnswer:
        """Ask whether an irreversible action may be carried out now; only `allowed` is a permission.

        Args:
            session_id: the session.
            action_id: the action.
            checkpoint_id: the checkpoint that the agent went on from; it must be verified then.
            min_seq: the log position that the answer must know of: that of the agent's own last record.
        """
        args = (session_id, action_id, checkpoint_id, min_seq)
        return await self._question(AuthorizeAnswer, session_id, authorize, *args)

    async def resume(
        self, session_id: str, checkpoint_id: str, deps: Iterable[str] = (), min_seq: int | None = None
    ) -> ResumeAnswer:
        """Ask whether the session may go on from a checkpoint; only the decision `resume` says so.

        Args:
            session_id: the session.
            checkpoint_id: the checkpoint.
            deps: the references that the next turn needs.
            min_seq: the log position that the answer must know of.
        """
        args = (session_id, checkpoint_id, deps, min_seq)
        return await self._question(ResumeAnswer, session_id, resume, *args)

    async def commit(self, summary: Summary | dict[str, Any], min_seq: int | None = None) -> CommitAnswer:
        """Ask what is to become of a proposed summary; only the decision `commit` allows to publish it.

        Args:
            summary: the record as it would be published, or its fields.
            min_seq: the log position that the answer must know of.
        """
        return await self._question(CommitAnswer, _session_of(summary), commit, summary, min_seq)

    async def gc(self, session_id: str, node_ids: Iterable[str], min_seq: int | None = None) -> GcAnswer:
        """Ask which nodes may be reclaimed; only what `reclaimable` names may.

        Args:
            session_id: the session.
            node_ids: the nodes.
            min_seq: the log position that the answer must know of.
        """
        return await self._question(GcAnswer, session_id, gc, session_id, node_ids, min_seq)

    async def session(self, session_id: str) -> SessionView:
        """Look at a session.

        Raises:
            GuardError: it cannot be shown.
        """
        return await self._session(session_id)

    async def checkpoint(self, session_id: str, checkpoint_id: str) -> CheckpointView:
        """Look at a checkpoint as it stands now.

        Raises:
            GuardError: it cannot be shown.
        """
        return await self._checkpoint(session_id, checkpoint_id)

    async def findings(self, session_id: str | None = None, limit: int | None = None) -> FindingsView:
        """Look at recent findings, of one session or of all that the replica has.

        Raises:
            GuardError: they cannot be shown.
        """
        return await self._findings(session_id, limit)

    def irreversible(
        self, log: Log, *, action: ActionId, checkpoint_id: CheckpointId = None, on_error: OnError = "publish"
    ) -> _Wrap:
        """Wrap a function that acts irreversibly: ask, act, publish the `action`.

        Every call asks, with what the log has up to now. The wrapped function is async; one that was not runs in a
        thread.

        Args:
            log: the session's emitter.
            action: the action's id; a template filled from the call's arguments (`deploy-{env}`), or a function of
                them.
            checkpoint_id: the checkpoint that must be verified for it, or a function of the arguments.
            on_error: whether an action that raised counts as carried out (`publish`: it may have been) or not (`skip`).

        Raises:
            Refused: (when called) it was not permitted, so the function was not called.
            ActionUnlogged: (when called) it was carried out, or may have been, and could not be published.
        """

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            return wrapped_async(Wrapping(self, log, function, action, checkpoint_id, on_error))

        return wrap


class SyncGuard(_Configured):
    """Ask the guard, in code without `await`; a context manager. It takes what `Guard` takes.

    It asks from a thread of its own, which begins with the first question.
    """

    def _prepare(self) -> None:
        self._portal = Portal("frontier-sidecar guard client")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; every later question is refused."""
        self._portal.close(self._asker.http.close)

    def authorize(
        self, session_id: str, action_id: str, checkpoint_id: str | None = None, min_seq: int | None = None
    ) -> AuthorizeAnswer:
        """Ask whether an irreversible action may be carried out now; see `Guard.authorize`."""
        return self._ask(AuthorizeAnswer, session_id, authorize, session_id, action_id, checkpoint_id, min_seq)

    def resume(
        self, session_id: str, checkpoint_id: str, deps: Iterable[str] = (), min_seq: int | None = None
    ) -> ResumeAnswer:
        """Ask whether the session may go on from a checkpoint; see `Guard.resume`."""
        return self._ask(ResumeAnswer, session_id, resume, session_id, checkpoint_id, deps, min_seq)

    def commit(self, summary: Summary | dict[str, Any], min_seq: int | None = None) -> CommitAnswer:
        """Ask what is to become of a proposed summary; see `Guard.commit`."""
        return self._ask(CommitAnswer, _session_of(summary), commit, summary, min_seq)

    def gc(self, session_id: str, node_ids: Iterable[str], min_seq: int | None = None) -> GcAnswer:
        """Ask which nodes may be reclaimed; see `Guard.gc`."""
        return self._ask(GcAnswer, session_id, gc, session_id, node_ids, min_seq)

    def session(self, session_id: str) -> SessionView:
        """Look at a session; see `Guard.session`."""
        return self._show(f"session {session_id}", self._session, session_id)

    def checkpoint(self, session_id: str, checkpoint_id: str) -> CheckpointView:
        """Look at a checkpoint as it stands now; see `Guard.checkpoint`."""
        return self._show(f"checkpoint {checkpoint_id}", self._checkpoint, session_id, checkpoint_id)

    def findings(self, session_id: str | None = None, limit: int | None = None) -> FindingsView:
        """Look at recent findings; see `Guard.findings`."""
        return self._show("findings", self._findings, session_id, limit)

    def irreversible(
        self, log: Log, *, action: ActionId, checkpoint_id: CheckpointId = None, on_error: OnError = "publish"
    ) -> Callable[[F], F]:
        """Wrap a function that acts irreversibly; see `Guard.irreversible`. An async function stays async."""

        def wrap(function: F) -> F:
            wrapping = Wrapping(self, log, function, action, checkpoint_id, on_error)
            if wrapping.is_async:
                return wrapped_async(wrapping)  # type: ignore[return-value]
            refuse_async(log)
            return wrapped_sync(wrapping)  # type: ignore[return-value]

        return wrap

    def _ask(self, kind: type[A], session_id: object, make: Callable[..., Question[A]], *args: Any) -> A:
        try:
            answer: A = self._portal.run(self._question, kind, session_id, make, *args)
            return answer
        except Exception as error:
            return refusal(kind, session_id, "unavailable", f"The question could not be asked: {error!r}")

    def _show(self, what: str, look: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        try:
            return self._portal.run(look, *args)
        except GuardError:
            raise
        except Exception as error:  # closed
            raise GuardError(what, [Reason(code="unavailable", detail=str(error))]) from None


def _session_of(summary: object) -> object:
    return summary.get("session_id") if isinstance(summary, dict) else getattr(summary, "session_id", None)


def _part(text: str) -> str:
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} cannot be asked about in an address")
    return quote(text, safe="")
