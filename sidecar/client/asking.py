"""Ask until there is an answer: follow a session to its owner, come back when that fails, be patient if told to."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sidecar.client.addresses import Owners, Unfit, parse
from sidecar.client.answers import UNREADABLE, decode
from sidecar.client.http import Cert, Http, Reply, Token, Verify
from sidecar.client.questions import MISDIRECTED, Question, read, refusal
from sidecar.client.refused import Answer
from sidecar.protocol.api import TRANSIENT, Code, Problem, Reason

if TYPE_CHECKING:
    import httpx2

A = TypeVar("A", bound=Answer)
R = TypeVar("R")

MAX_FOLLOWED = 2
"""How often one question is passed on to another replica."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

_REDIRECTS = range(300, 400)
_REFUSED_WITHOUT_WORDS = (401, 403)


class Configuration(Struct, frozen=True, kw_only=True):
    """Hold how a guard is asked; `Guard` says what each means."""

    url: str
    token: str | None = None
    token_file: str | Path | None = None
    token_over_http: bool = False
    verify: Verify = True
    cert: Cert | None = None
    timeout: float = 10.0
    patience: float = 0.0
    owner_hosts: tuple[str, ...] | None = None
    max_connections: int = 100


class Asker:
    """Ask guards.

    Raises:
        ValueError: the configuration cannot be used; the message says why.
        OSError: a file of it cannot be used.
    """

    def __init__(self, given: Configuration) -> None:
        try:
            self.url = parse(given.url)
        except Unfit as error:
            raise ValueError(str(error)) from None
        if not given.timeout > 0:
            raise ValueError(f"timeout {given.timeout:g}: a question needs some time")
        if not given.patience >= 0:
            raise ValueError(f"patience {given.patience:g} is less than none")
        self.patience = given.patience
        self.owner_hosts = None if given.owner_hosts is None else tuple(host.lower() for host in given.owner_hosts)
        self.http = Http(
            token=Token(given.token, given.token_file),
            token_over_http=given.token_over_http,
            verify=given.verify,
            cert=given.cert,
            timeout=given.timeout,
            max_connections=given.max_connections,
        )
        if not self.http.may_show_token(self.url):
            raise ValueError(
                f"the token would go unencrypted to {self.url.host}: use https, or say token_over_http=True if "
                "something else encrypts the way there"
            )
        if self.url.scheme == "https":
            self.http.tls()  # what is wrong with a file is said now, not at the first question
        self.owners = Owners()

    async def ask(self, question: Question[A]) -> A:
        """Ask, and again while the answer is one that may pass, until patience ends; whatever fails refuses."""

        def understand(reply: Reply) -> A | str:
            return read(question, reply.status, reply.body)

        async def once() -> A:
            path, body, session_id = question.path, question.body, question.session_id
            reply, answer, note = await self._reach("POST", path, body, session_id, understand)
            if isinstance(answer, str):
                code: Code = "unauthorized" if reply.status in _REFUSED_WITHOUT_WORDS else "unavailable"
                return refusal(question.kind, session_id, code, answer)
            if note:
                answer.reasons.append(Reason(code="not_owned", detail=note))
            return answer

        return await self._patiently(once, lambda answer: [] if question.says_yes(answer) else answer.reasons)

    async def look(self, path: str, session_id: str | None, kind: type[R]) -> R | list[Reason]:
        """Look something up; what cannot be shown says why."""

        def understand(reply: Reply) -> R | list[Reason] | str:
            try:
                if reply.status == 200:
                    return decode(reply.body, kind)
                return decode(reply.body, Problem).reasons or "no reason was given"
            except UNREADABLE as error:
                return f"the answer (HTTP {reply.status}) cannot be read: {error}"

        async def once() -> R | list[Reason]:
            shown: R | list[Reason] | str
            _, shown, _ = await self._reach("GET", path, None, session_id, understand)
            return [Reason(code="unavailable", detail=shown)] if isinstance(shown, str) else shown

        return await self._patiently(once, lambda shown: shown if isinstance(shown, list) else [])

    async def _patiently(self, once: Callable[[], Awaitable[R]], against: Callable[[R], list[Reason]]) -> R:
        deadline = time.monotonic() + self.patience
        pause = FIRST_PAUSE
        while True:
            answer = await once()
            reasons = against(answer)
            left = deadline - time.monotonic()
            if not reasons or left <= 0 or any(reason.code not in TRANSIENT for reason in reasons):
                return answer
            await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _reach(
        self, method: str, path: str, body: bytes | None, session_id: str | None, understand: Callable[[Reply], R | str]
    ) -> tuple[Reply, R | str, str]:
        """Find who has the session; return what they said, what it means, and why nobody else was asked."""

        async def at(url: "httpx2.URL") -> tuple[Reply, R | str]:
            reply = await self.http.send(method, url, path, body)
            if reply.failed is not None:
                return reply, reply.failed
            if reply.status in _REDIRECTS:
                return reply, f"{url} answers with a redirect (HTTP {reply.status}), which is not followed"
            said = understand(reply)
            return reply, f"{url}: {said}" if isinstance(said, str) else said

        remembered = self.owners.get(session_id) if session_id is not None else None
        reply, said = await at(remembered or self.url)
        if remembered is not None and (isinstance(said, str) or reply.status == MISDIRECTED):
            # It has gone, or has given the session away: only the configured address knows, or learns, of another.
            self.owners.forget(str(session_id))
            reply, said = await at(self.url)
        note, asked = "", [reply.url]
        while reply.status == MISDIRECTED:
            owner, note = self._next(reply, asked)
            if owner is None:
                break
            asked.append(owner)
            reply, said = await at(owner)
        else:
            # Not for an answer that nobody can read: whoever gave it may be anything.
            if session_id is not None and reply.url != self.url and not isinstance(said, str):
                self.owners.put(session_id, reply.url)
        return reply, said, note

    def _next(self, reply: Reply, asked: "list[httpx2.URL]") -> "tuple[httpx2.URL | None, str]":
        """Return the owner that a reply names, if it may be asked, else why not."""
        try:
            named = decode(reply.body, _Owner).owner
        except UNREADABLE:
            named = None
        if named is None:
            return None, f"{reply.url} does not say who has the session"
        try:
            owner = parse(named)
        except Unfit as error:
            return None, f"{reply.url} names an owner that is not asked: {error}"
        if owner in asked:
            return None, f"{reply.url} names {owner} as the owner, which has been asked already"
        if len(asked) > MAX_FOLLOWED:
            return None, f"{reply.url} names {owner} as the owner, the {len(asked)}th one; no more are asked"
        if self.owner_hosts is not None and not any(fnmatchcase(owner.host, host) for host in self.owner_hosts):
            return None, f"{reply.url} names {owner} as the owner, which is none of `owner_hosts`; it is not asked"
        if self.owner_hosts is None and not (owner.scheme == "https" and self.http.knows_its_own):
            # Whoever may join the replicas' group can name any address, and would be believed.
            return None, (
                f"{reply.url} names {owner} as the owner, and nothing tells that this is a guard; it is not asked, and"
                " no token is shown. Say `owner_hosts`, or use https with `verify` naming the authorities of the guards"
            )
        if reply.url.scheme == "https" and owner.scheme != "https":
            return None, f"{reply.url} names {owner} as the owner; from https the way does not lead to http"
        if not self.http.may_show_token(owner):
            return None, f"{reply.url} names {owner} as the owner; the token is not sent there unencrypted"
        return owner, ""


class _Owner(Struct):
    owner: str | None = None
