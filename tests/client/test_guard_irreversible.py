"""Ask, act, publish: with and without await, permitted and refused, and when something on the way fails."""

import asyncio
import concurrent.futures
import functools
import inspect
import json
import pickle
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.client.emitter import Emitter
from sidecar.client.errors import Backlog, Unacknowledged
from sidecar.client.guard import ActionUnlogged, Guard, Refused, SyncGuard
from sidecar.engine.rules import CATALOGUE
from sidecar.protocol.api import (
    AuthorizeAnswer,
    CommitAnswer,
    Missing,
    PinnedConstraint,
    PinnedFact,
    Reason,
    ResumeAnswer,
    Seen,
)
from tests.client.guards import FakeGuard, permit, refuse, yes
from tests.client.memory import AsyncMemoryLog, MemoryLog, kinds
from tests.client.test_guard import in_thread


class Deploys:
    """Carry something out, and remember it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.done: list[str] = []
        self.threads: set[str] = set()
        self.error = error

    def __call__(self, env: str) -> str:
        self.threads.add(threading.current_thread().name)
        self.done.append(env)
        if self.error is not None:
            raise self.error
        return f"deployed to {env}"


@pytest.fixture(scope="module")
def yes_man() -> Iterator[FakeGuard]:
    """Give a guard that permits, in a thread."""
    with in_thread(FakeGuard()) as fake:
        yield fake


@pytest.fixture(scope="module")
def no_man() -> Iterator[FakeGuard]:
    """Give a guard that refuses, in a thread."""
    no = refuse("rule", "action deploy-prod: nothing allows it.", rule="action_unauthorized")
    with in_thread(FakeGuard(lambda request, asked: no)) as fake:
        yield fake


@pytest.fixture
def guard(yes_man: FakeGuard) -> Iterator[SyncGuard]:
    """Ask the one that permits."""
    yes_man.asked.clear()
    with SyncGuard(yes_man.url) as client:
        yield client


@pytest.fixture
async def aguard(yes_man: FakeGuard) -> AsyncIterator[Guard]:
    """Ask the one that permits, with await."""
    yes_man.asked.clear()
    async with Guard(yes_man.url) as client:
        yield client


# --- permitted --------------------------------------------------------------------------------------------------------


def test_permitted_it_is_done_and_then_published(guard: SyncGuard, yes_man: FakeGuard) -> None:
    log, deploy = MemoryLog(), Deploys()
    log.authorization("deploy-prod", "ticket")

    @guard.irreversible(log, action="deploy-{env}")
    def guarded(env: str) -> str:
        """Deploy."""
        assert kinds(log.decoded()) == ["authorization", "opaque"]
        return deploy(env)

    assert guarded("prod") == "deployed to prod"
    assert deploy.done == ["prod"]
    assert yes_man.asked == [{"session_id": "s", "action_id": "deploy-prod", "checkpoint_id": None, "min_seq": 1}]
    (action,) = log.of("action")
    assert (action.action_id, action.irreversible, action.seq) == ("deploy-prod", True, 3)
    assert b'"kind":"intent","session_id":"s","action_id":"deploy-prod"' in log.raw[1]
    assert log.kept == 0
    assert guarded.__name__ == "guarded"
    assert guarded.__doc__ == "Deploy."
    assert list(inspect.signature(guarded).parameters) == ["env"]


async def test_permitted_it_is_done_and_then_published_with_await(aguard: Guard, yes_man: FakeGuard) -> None:
    log, deploy = AsyncMemoryLog(), Deploys()

    @aguard.irreversible(log, action="deploy-{env}", checkpoint_id="c1")
    async def guarded(env: str) -> str:
        await asyncio.sleep(0)
        return deploy(env)

    assert await guarded(env="prod") == "deployed to prod"
    assert yes_man.asked == [{"session_id": "s", "action_id": "deploy-prod", "checkpoint_id": "c1", "min_seq": 0}]
    assert [action.action_id for action in log.of("action")] == ["deploy-prod"]


async def test_every_mixture_of_guard_log_and_function(aguard: Guard, guard: SyncGuard) -> None:
    async def deploy_async(env: str) -> str:
        return deploy(env)

    here = threading.current_thread().name
    for client in (aguard, guard):
        for log in (AsyncMemoryLog(), MemoryLog()):
            deploy = Deploys()
            guarded: Any = client.irreversible(log, action="deploy-{env}")(deploy_async)
            assert inspect.iscoroutinefunction(guarded)
            assert await guarded("prod") == "deployed to prod"
            assert deploy.threads == {here}
            assert len(log.of("action")) == 1
    for log in (AsyncMemoryLog(), MemoryLog()):
        deploy = Deploys()
        in_a_thread = aguard.irreversible(log, action="deploy-{env}")(deploy)
        assert await in_a_thread("prod") == "deployed to prod"
        assert here not in deploy.threads
        assert len(log.of("action")) == 1
    with pytest.raises(TypeError, match="AsyncMemoryLog needs await"):
        guard.irreversible(AsyncMemoryLog(), action="x")(deploy)


async def test_what_a_plain_function_returns_to_await_is_awaited_before_it_counts_as_done(aguard: Guard) -> None:
    async def later(log: AsyncMemoryLog) -> str:
        await asyncio.sleep(0.01)
        assert kinds(log.decoded()) == ["opaque"]
        return "done"

    for function in (lambda log: later(log), functools.partial(later)):
        log = AsyncMemoryLog()
        assert await aguard.irreversible(log, action="x")(function)(log) == "done"
        assert kinds(log.decoded()) == ["opaque", "action"]


def test_the_emitter_is_a_log(yes_man: FakeGuard, tmp_path: Path) -> None:
    async def main() -> None:
        async with Guard(yes_man.url) as client, Emitter.file(tmp_path / "events.jsonl", "s") as log:

            @client.irreversible(log, action=lambda n: f"pay-{n:.2f}")
            async def pay(n: float) -> float:
                return n

            assert await pay(2) == 2
            await log.flush()

    asyncio.run(main())
    intent, action = map(json.loads, (tmp_path / "events.jsonl").read_bytes().splitlines())
    assert (intent["kind"], intent["action_id"], intent["seq"]) == ("intent", "pay-2.00", 1)
    assert (action["kind"], action["action_id"], action["seq"]) == ("action", "pay-2.00", 2)
    assert action["irreversible"] is True


# --- refused ----------------------------------------------------------------------------------------------------------


def test_refused_it_is_not_done(no_man: FakeGuard) -> None:
    log, deploy = MemoryLog(), Deploys()
    log.event("hello")
    with SyncGuard(no_man.url) as client:
        guarded = client.irreversible(log, action="deploy-{env}")(deploy)
        with pytest.raises(Refused) as caught:
            guarded("prod")
    assert deploy.done == []
    assert kinds(log.decoded()) == ["opaque"]
    assert log.kept == 0
    assert isinstance(caught.value.answer, AuthorizeAnswer)
    assert caught.value.reasons[0].rule == "action_unauthorized"
    text = str(caught.value)
    assert text.startswith("deploy-prod is refused in session s (log applied up to 1):\n- action_unauthorized: action")
    assert "\n  do: Do not do it, nor anything else to the same end. Ask for approval;" in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == text


async def test_refused_it_is_not_done_with_await(no_man: FakeGuard) -> None:
    log, deploy = AsyncMemoryLog(), Deploys()
    async with Guard(no_man.url) as client:
        for function in (deploy, lambda env: asyncio.sleep(0, deploy(env))):
            guarded = client.irreversible(log, action="deploy-{env}")(function)
            with pytest.raises(Refused):
                await guarded("prod")
    assert deploy.done == []
    assert log.raw == []


def test_nobody_there_is_a_refusal() -> None:
    log, deploy = MemoryLog(), Deploys()
    with SyncGuard("http://127.0.0.1:9") as client, pytest.raises(Refused, match="unavailable"):
        client.irreversible(log, action="x")(deploy)("prod")
    assert deploy.done == []


def test_every_call_asks() -> None:
    answers = [True, False, True]

    def answering(request: web.Request, asked: Any) -> Any:
        return yes(request.path, asked) if answers.pop(0) else refuse("open_halt")

    log, deploy = MemoryLog(), Deploys()
    with in_thread(FakeGuard(answering)) as fake, SyncGuard(fake.url) as client:
        guarded = client.irreversible(log, action="deploy-{env}")(deploy)
        guarded("a")
        with pytest.raises(Refused):
            guarded("b")
        guarded("c")
    assert deploy.done == ["a", "c"]
    assert [asked["min_seq"] for asked in fake.asked] == [0, 2, 2]


@pytest.mark.parametrize("allowed", [1, "true", [True], None])
async def test_only_true_is_a_permission(allowed: Any) -> None:
    class Loose:
        async def __aenter__(self) -> None: ...

        async def authorize(self, *args: Any, **kwargs: Any) -> Any:
            return AuthorizeAnswer(allowed=allowed)

    deploy = Deploys()
    guarded = Guard.irreversible(Loose(), AsyncMemoryLog(), action="x")(deploy)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        await guarded("prod")
    assert deploy.done == []


# --- failures ---------------------------------------------------------------------------------------------------------


def test_an_action_that_raises_may_have_happened_and_is_published(guard: SyncGuard) -> None:
    log, deploy = MemoryLog(), Deploys(error=TimeoutError("no answer from the cluster"))
    with pytest.raises(TimeoutError, match="no answer"):
        guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    assert [action.action_id for action in log.of("action")] == ["deploy-prod"]


def test_unless_it_is_said_that_it_has_not(guard: SyncGuard) -> None:
    log, deploy = MemoryLog(), Deploys(error=ValueError("not sent"))
    with pytest.raises(ValueError, match="not sent"):
        guard.irreversible(log, action="x", on_error="skip")(deploy)("prod")
    assert kinds(log.decoded()) == ["opaque"]
    assert log.kept == 0
    with pytest.raises(ValueError, match="on_error"):
        guard.irreversible(log, action="x", on_error="maybe")(deploy)  # type: ignore[arg-type]


def test_an_interrupted_action_is_published_too(guard: SyncGuard) -> None:
    log, deploy = MemoryLog(), Deploys(error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        guard.irreversible(log, action="x")(deploy)("prod")
    assert len(log.of("action")) == 1


async def test_a_cancelled_action_is_published_too(aguard: Guard) -> None:
    log, begun = AsyncMemoryLog(), asyncio.Event()

    @aguard.irreversible(log, action="x")
    async def act() -> None:
        begun.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(act())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(log.of("action")) == 1


async def test_cancelling_does_not_come_between_the_action_and_its_record(aguard: Guard) -> None:
    writing, go_on = asyncio.Event(), asyncio.Event()

    class Slow(AsyncMemoryLog):
        async def _append(self, role: str, body: bytes) -> int:  # type: ignore[override]
            if b'"kind":"action"' in body:
                writing.set()
                await go_on.wait()
            return await super()._append(role, body)

    log = Slow()

    @aguard.irreversible(log, action="x")
    async def act() -> None:
        return None

    task = asyncio.create_task(act())
    await writing.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(log.of("action")) == 1


def test_what_cannot_be_logged_is_not_done_and_not_even_asked_about(guard: SyncGuard, yes_man: FakeGuard) -> None:
    log, deploy = MemoryLog(), Deploys()
    log.failing = OSError("disk full")
    for _ in range(3):
        with pytest.raises(OSError, match="disk full"):
            guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    assert deploy.done == []
    assert yes_man.asked == []


def test_an_intention_that_cannot_be_logged_is_not_carried_out(guard: SyncGuard) -> None:
    class Breaks(MemoryLog):
        def _append(self, role: str, body: bytes) -> int:
            raise OSError("the disk is gone")

    log, deploy = Breaks(), Deploys()
    with pytest.raises(OSError, match="gone"):
        guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    assert deploy.done == []
    assert log.kept == 0


async def test_with_a_full_journal_nothing_is_done(aguard: Guard, tmp_path: Path) -> None:
    deploy = Deploys()
    options: Any = {
        "max_unacknowledged": 1,
        "emit_timeout": 0.2,
        "flush_timeout": 0.1,
        "start_timeout": 0,
        "start_at": 1,
    }
    log = Emitter.kafka("127.0.0.1:9", "s", journal=tmp_path, **options)
    await log.start()
    try:
        await log.event("fills it")
        with pytest.raises(Backlog):
            await aguard.irreversible(log, action="deploy-{env}")(deploy)("prod")
        assert log.position == 1
    finally:
        with pytest.raises(Unacknowledged):
            await log.aclose()
    assert deploy.done == []


async def test_what_is_kept_for_an_action_is_not_taken_by_others(aguard: Guard, tmp_path: Path) -> None:
    options: Any = {
        "max_unacknowledged": 2,
        "emit_timeout": 0.2,
        "flush_timeout": 0.1,
        "start_timeout": 0,
        "start_at": 1,
    }
    log = Emitter.kafka("127.0.0.1:9", "s", journal=tmp_path, **options)
    await log.start()

    async def act() -> str:
        await log.event("in between")  # now the journal is full
        with pytest.raises(Backlog):
            await log.event("too much")
        return "done"

    try:
        assert await aguard.irreversible(log, action="x")(act)() == "done"
        assert log.position == 3  # the intention, what came in between, and the action
    finally:
        with pytest.raises(Unacknowledged):
            await log.aclose()


def test_the_guard_knows_more_of_the_log_than_the_emitter(guard: SyncGuard, yes_man: FakeGuard) -> None:
    before, deploy = yes_man.answering, Deploys()
    log = MemoryLog()
    log.event("hello")
    yes_man.answering = lambda request, asked: permit(asked, position=1500)
    try:
        with pytest.raises(Refused) as caught:
            guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    finally:
        yes_man.answering = before
    assert deploy.done == []
    assert kinds(log.decoded()) == ["opaque"]
    (reason,) = caught.value.reasons
    assert reason.code == "log_incomplete"
    assert "position 1500" in reason.detail
    assert "stands at 1:" in reason.detail
    assert "start an emitter without one" in reason.detail


# --- what acts only later ---------------------------------------------------------------------------------------------


def _later(what: str, deploy: Deploys) -> Any:
    """Return something that would deploy later."""

    async def coroutine() -> str:
        return deploy("prod")

    def generator() -> Iterator[str]:
        yield deploy("prod")

    async def async_generator() -> AsyncIterator[str]:
        yield deploy("prod")

    class Awaitable:
        def __await__(self) -> Iterator[str]:
            yield deploy("prod")

    made: dict[str, Callable[[], Any]] = {
        "coroutine": coroutine,
        "generator": generator,
        "async generator": async_generator,
        "awaitable": Awaitable,
        "future": concurrent.futures.Future,
        "map": lambda: map(deploy, ["prod"]),
        "in a list": lambda: [generator()],
        "in a mapping": lambda: {"result": coroutine()},
    }
    return made[what]()


LATER = ("coroutine", "generator", "async generator", "awaitable", "future", "map", "in a list", "in a mapping")


@pytest.mark.parametrize("what", LATER)
@pytest.mark.parametrize("how", ["lambda", "partial", "wrapped"])
def test_what_a_function_returns_must_not_act_later(guard: SyncGuard, what: str, how: str) -> None:
    log, deploy = MemoryLog(), Deploys()
    function: Any = {
        "lambda": lambda: _later(what, deploy),
        "partial": functools.partial(_later, what, deploy),
        "wrapped": functools.lru_cache(lambda: _later(what, deploy)),
    }[how]
    with pytest.raises(TypeError, match="acts only later") as caught:
        guard.irreversible(log, action="x")(function)()
    assert deploy.done == []
    assert "it was stopped" in str(caught.value)
    assert len(log.of("action")) == 1  # it may have done something before it returned


@pytest.mark.parametrize("what", ["generator", "async generator", "map", "in a list", "in a mapping"])
async def test_what_cannot_be_awaited_must_not_act_later(aguard: Guard, what: str) -> None:
    deploy = Deploys()
    with pytest.raises(TypeError, match="acts only later"):
        await aguard.irreversible(MemoryLog(), action="x")(lambda: _later(what, deploy))()
    assert deploy.done == []


async def test_what_a_coroutine_returns_to_await_is_awaited_too(aguard: Guard) -> None:
    log, deploy = AsyncMemoryLog(), Deploys()
    pool = concurrent.futures.ThreadPoolExecutor(1)

    async def act(how: str) -> Any:
        return pool.submit(deploy, "prod") if how == "thread" else asyncio.ensure_future(asyncio.sleep(0, deploy("a")))

    for how, expected in (("thread", "deployed to prod"), ("task", "deployed to a")):
        assert await aguard.irreversible(log, action="x")(act)(how) == expected
    pool.shutdown()


def test_what_has_been_done_may_be_returned_in_a_future(guard: SyncGuard) -> None:
    done: concurrent.futures.Future[str] = concurrent.futures.Future()
    done.set_result("done")
    assert guard.irreversible(MemoryLog(), action="x")(lambda: done)() is done


def test_done_and_not_published_is_an_error_that_says_so(guard: SyncGuard) -> None:
    class Breaks(MemoryLog):
        def _append(self, role: str, body: bytes) -> int:
            if b'"kind":"action"' in body:
                raise OSError("the disk is gone")
            return super()._append(role, body)

    log, deploy = Breaks(), Deploys()
    with pytest.raises(
        ActionUnlogged, match="deploy-prod was carried out in session s, and is not in the log"
    ) as caught:
        guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    assert caught.value.result == "deployed to prod"
    assert isinstance(caught.value.__cause__, OSError)
    deploy.error = ValueError("half way")
    with pytest.raises(ActionUnlogged, match=r"may have been carried out .*half way") as caught:
        guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    assert caught.value.error is deploy.error
    deploy.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        guard.irreversible(log, action="deploy-{env}")(deploy)("prod")
    assert "is not in the log" in interrupted.value.__notes__[0]


# --- which action -----------------------------------------------------------------------------------------------------


def named(guard: SyncGuard, fake: FakeGuard, action: str | Callable[..., str], function: Any, *a: Any, **k: Any) -> str:
    """Call a guarded function, and return which action was asked about."""
    fake.asked.clear()
    guard.irreversible(MemoryLog(), action=action)(function)(*a, **k)
    return str(fake.asked[0]["action_id"])


def test_templates_are_filled_from_the_arguments(guard: SyncGuard, yes_man: FakeGuard) -> None:
    def f(env: str, version: int = 3, *rest: int, dry: bool = False, **more: str) -> None: ...
    def shadow(env: str, /, **more: str) -> None: ...

    for expected, template, args, kwargs in (
        ("fixed", "fixed", ("prod",), {}),
        ("d-prod-3", "d-{env}-{version}", ("prod",), {}),
        ("d-prod-4", "d-{env}-{version}", ("prod", 4), {}),
        ("d-prod-4", "d-{env}-{version}", (), {"version": 4, "env": "prod"}),
        ("d-{prod}", "d-{{{env}}}", ("prod",), {}),
        ("d-{version}-3", "d-{env}-{version}", ("{version}",), {}),
        ("d-007", "d-{version:03}", ("prod", 7), {}),
        ("d-eu", "d-{region}", ("prod",), {"region": "eu"}),
    ):
        assert named(guard, yes_man, template, f, *args, **kwargs) == expected
    assert named(guard, yes_man, "d-{env}", shadow, "staging", env="prod") == "d-staging"
    assert named(guard, yes_man, lambda env, **_: f"d-{env.lower()}", f, "PROD") == "d-prod"


def test_a_template_that_cannot_be_filled_is_an_error_when_it_is_written(guard: SyncGuard) -> None:
    def f(env: str) -> None: ...

    for template in ("d-{enw}", "d-{}", "d-{0}", "d-{env.x}", "d-{env[0]}", "d-{env", "d-}", ""):
        with pytest.raises(ValueError, match=r"template|no id"):
            guard.irreversible(MemoryLog(), action=template)(f)


def test_an_action_without_a_name_is_not_carried_out(guard: SyncGuard, yes_man: FakeGuard) -> None:
    deploy = Deploys()
    for action, kwargs in (
        ("d-{env}", {"env": ""}),
        ("d-{env}", {"env": None}),
        ("d-{region}", {"env": "prod"}),
        (lambda **_: "", {"env": "prod"}),
        (lambda **_: None, {"env": "prod"}),
    ):

        def f(env: str, **more: str) -> None:
            deploy(env)

        with pytest.raises((ValueError, TypeError)):
            guard.irreversible(MemoryLog(), action=action)(f)(**kwargs)
    with pytest.raises(TypeError):
        guard.irreversible(MemoryLog(), action="d-{env}")(deploy)("prod", "too", "many")
    assert deploy.done == []
    assert yes_man.asked == []


def test_a_generator_cannot_be_guarded(guard: SyncGuard) -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(TypeError, match="generator"):
            guard.irreversible(MemoryLog(), action="x")(function)


def test_the_checkpoint_may_be_told_from_the_arguments(guard: SyncGuard, yes_man: FakeGuard) -> None:
    def f(env: str) -> None: ...

    guarded = guard.irreversible(MemoryLog(), action="x", checkpoint_id=lambda env: f"c-{env}" if env else None)(f)
    guarded("prod")
    guarded("")
    assert [asked["checkpoint_id"] for asked in yes_man.asked] == ["c-prod", None]


# --- what a refusal says ----------------------------------------------------------------------------------------------


def test_a_refusal_says_how_to_go_on() -> None:
    answer = ResumeAnswer(
        reasons=[Reason(code="rule", rule="edge_dropped", detail=f"checkpoint c: {n}") for n in range(25)],
        session_id="s",
        position=9,
        status="lossy",
        missing=[Missing(reference="vm-1", last_seen=Seen(position=4, store="live")), Missing(reference="vm-2")],
        reexpand_from="c0",
        replay_from=3,
    )
    lines = str(Refused("resume from c", answer)).split("\n")
    assert lines[0] == "resume from c is refused in session s (log applied up to 9):"
    assert sum(line.startswith("  do: ") for line in lines) == 1
    assert "- and 5 more" in lines
    assert "the checkpoint is lossy" in lines
    assert "missing: vm-1, last seen at position 4 (live)" in lines
    assert "missing: vm-2, never seen" in lines
    assert lines[-2:] == ["re-expand from: c0", "replay from: position 3"]


@pytest.mark.parametrize("rule", ["action_unauthorized", "action_on_degraded", "resumed_unverified"])
def test_a_refusal_says_what_would_have_been_and_not_what_was(rule: str) -> None:
    known = CATALOGUE[rule]
    detail = f"action deploy would be {rule}: {known.meaning}"
    text = str(Refused("deploy", AuthorizeAnswer(reasons=[Reason(code="rule", rule=rule, detail=detail)])))
    assert known.meaning not in text
    assert known.remedy not in text
    assert "was carried out" not in text
    assert "  do: Do not " in text
    halted = Reason(code="open_halt", rule=rule, detail="Halt h is open since position 3.")
    assert f"  do: {known.remedy}" in str(Refused("deploy", AuthorizeAnswer(reasons=[halted])))


def test_a_refused_summary_says_what_to_pin() -> None:
    answer = CommitAnswer(
        reasons=[Reason(code="rule", rule="from_the_future", detail="unknown here")],
        constraints=[PinnedConstraint(constraint_id="no-friday", position=2, lost=True)],
        facts=[PinnedFact(fact_id="port", anchor="5432", position=3, lost=True)],
    )
    assert str(Refused("commit of n", answer)).split("\n") == [
        "commit of n is refused:",
        "- from_the_future: unknown here",
        "pin: constraint no-friday",
        "pin: fact port, '5432' word for word",
    ]


# --- the document -----------------------------------------------------------------------------------------------------


async def test_the_documents_example_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "client-guard.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    def answering(request: web.Request, asked: Any) -> Any:
        return yes(request.path, asked) if asked["action_id"] == "deploy-staging" else refuse("rule")

    monkeypatch.chdir(tmp_path)
    async with FakeGuard(answering).serving() as fake:
        names: dict[str, Any] = {}
        exec(example.replace("http://127.0.0.1:9464", fake.url), names)
        await names["main"]()
    assert capsys.readouterr().out.startswith("deployed to staging\ndeploy-production is refused")
    assert [asked["min_seq"] for asked in fake.asked] == [1, 3]


async def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "client-guard.md").read_text(encoding="utf-8")
    options = set(inspect.signature(Guard.__init__).parameters) - {"self", "url", "max_connections"}
    assert all(f"`{option}`" in page for option in options)
