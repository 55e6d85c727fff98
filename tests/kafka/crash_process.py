"""Run a tail as one life after the other, each killed at a step: python -m tests.kafka.crash_process

Reads one `Life` a line (JSON) from standard input, lives it in a forked child, and answers with one `Death` a line.
The child kills itself with SIGKILL at the k-th time it comes by the step: methods are wrapped here, the tail knows
nothing of it. What is imported is imported once, so that a life costs no start of an interpreter.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from aiokafka import AIOKafkaProducer
from msgspec import Struct

import sidecar.tail.keeping
import sidecar.tail.loop
from sidecar.config import Settings
from sidecar.engine.fold import Engine
from sidecar.observe import logs
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.tail.envelope import MARKER_KEY
from sidecar.tail.gather import Gathering
from sidecar.tail.loop import Loop
from sidecar.tail.tail import Tail
from sidecar.tail.task import Task
from sidecar.tail.transactions import Transactions


class Life(Struct):
    """Say how to live, and where to die: at the `k`-th time at `step`, or when `within` seconds are over."""

    settings: str
    step: str
    k: int
    chunk: int
    within: float


class Death(Struct):
    """Say how a life ended: killed at its step, or (not `reached`) because its time was over."""

    reached: bool
    status: int
    seconds: float
    pid: int


def die() -> NoReturn:
    """End as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class Step:
    """Count how often a step is passed; die there at the k-th time."""

    def __init__(self, k: int) -> None:
        self._left = k

    def __call__(self) -> None:
        self._left -= 1
        if self._left <= 0:
            die()


def _around(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Call `then(result, *arguments)` after a coroutine function."""

    def make(original: Any) -> Any:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = await original(*args, **kwargs)
            then(result, *args)
            return result

        return wrapped

    _around(owner, name, make)


def _after_call(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Call `then(result, *arguments)` after a plain function."""

    def make(original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            then(result, *args)
            return result

        return wrapped

    _around(owner, name, make)


def _before(owner: Any, name: str, first: Callable[..., None]) -> None:
    def make(original: Any) -> Any:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            first(*args)
            return await original(*args, **kwargs)

        return wrapped

    _around(owner, name, make)


def _sent(step: Step, which: Callable[[str, bytes | None], bool], *, in_log: bool) -> None:
    """Die after a message of some kind was handed to the producer, or when it is in the broker's log."""

    def make(original: Any) -> Any:
        async def wrapped(self: Any, topic: str, value: Any = None, key: Any = None, partition: Any = None) -> Any:
            future = await original(self, topic, value, key, partition)
            if which(topic, key):
                if in_log and step._left == 1:
                    await asyncio.wait([future])
                step()
            return future

        return wrapped

    _around(AIOKafkaProducer, "send", make)


def _opened(step: Step, _: Settings) -> None:
    _after(Transactions, "open", lambda _, *__: step())


def _reading_snapshots(step: Step, _: Settings) -> None:
    _after_call(Gathering, "add", lambda _, *__: step())


def _placed(step: Step, _: Settings) -> None:
    _after(sidecar.tail.loop, "place", lambda _, *__: step())


def _replaying(step: Step, _: Settings) -> None:
    _after_call(Task, "fold", lambda folded, *_: step() if folded is not None and folded.silent else None)


def _restored(step: Step, _: Settings) -> None:
    _before(Loop, "_speak", lambda *_: step())


def _fetched(step: Step, _: Settings) -> None:
    _after(Loop, "_fetch", lambda fetched, *_: step() if fetched else None)


def _folded(step: Step, _: Settings) -> None:
    _after_call(Task, "fold", lambda folded, *_: step() if folded is not None and not folded.silent else None)


def _produced(step: Step, settings: Settings) -> None:
    _sent(step, lambda topic, _: topic != settings.topics.snapshots, in_log=False)


def _produced_in_log(step: Step, settings: Settings) -> None:
    _sent(step, lambda topic, _: topic != settings.topics.snapshots, in_log=True)


def _in_round(step: Step, settings: Settings) -> None:
    _sent(step, lambda topic, key: topic == settings.topics.snapshots and key != MARKER_KEY, in_log=True)


def _round_sent(step: Step, settings: Settings) -> None:
    _sent(step, lambda topic, key: topic == settings.topics.snapshots and key == MARKER_KEY, in_log=True)


def _before_offsets(step: Step, _: Settings) -> None:
    _before(AIOKafkaProducer, "send_offsets_to_transaction", lambda *_: step())


def _before_commit(step: Step, _: Settings) -> None:
    _before(AIOKafkaProducer, "commit_transaction", lambda *_: step())


def _in_commit(step: Step, _: Settings) -> None:
    def soon(*_: Any) -> None:
        if step._left == 1:
            # The request is on its way, or just answered; the markers are not written.
            asyncio.get_running_loop().call_later(0.0005 * (1 + time.time_ns() % 7), die)
        else:
            step()

    _before(AIOKafkaProducer, "commit_transaction", soon)


def _committed(step: Step, _: Settings) -> None:
    _after(AIOKafkaProducer, "commit_transaction", lambda _, *__: step())


def _given_up(step: Step, _: Settings) -> None:
    _after_call(Engine, "expire", lambda outcome, *_: step() if outcome.findings else None)


def _give_up_committed(step: Step, _: Settings) -> None:
    given_up: list[int] = []
    _after_call(Engine, "expire", lambda outcome, *_: given_up.append(1) if outcome.findings else None)
    # Each task has a commit of its own: some may be over, some not.
    _after(AIOKafkaProducer, "commit_transaction", lambda _, *__: step() if given_up else None)


STEPS: dict[str, tuple[str, Callable[[Step, Settings], None], int]] = {
    "opened": ("producer opened (predecessor fenced), before the offsets are read", _opened, 4),
    "reading": ("in mid-restore: snapshots partly read", _reading_snapshots, 60),
    "placed": ("placed, before the first fetch", _placed, 4),
    "replaying": ("in mid-restore: partly folded in silence", _replaying, 2),
    "restored": ("restored, before it speaks", _restored, 4),
    "fetched": ("after a fetch", _fetched, 4),
    "folded": ("after a fold", _folded, 4),
    "produced": ("after a message was handed to the producer", _produced, 30),
    "in-log": ("after a message is in the log, uncommitted", _produced_in_log, 30),
    "in-round": ("in mid-snapshot: a part of a round is in the log", _in_round, 60),
    "round-sent": ("after a round's marker is in the log, uncommitted", _round_sent, 4),
    "before-offsets": ("before the offsets are added", _before_offsets, 6),
    "before-commit": ("before the commit", _before_commit, 6),
    "in-commit": ("in the commit", _in_commit, 6),
    "committed": ("after the commit", _committed, 6),
    "given-up": ("after a gap was given up, before the commit", _given_up, 2),
    "give-up-kept": ("after a gap was given up, and committed", _give_up_committed, 2),
}
"""What a step is called, how it is set, and the largest sensible k."""


async def _live(settings: Settings) -> None:
    await Tail(settings, Metrics(), Health(time.monotonic()), startup_timeout=20).run(signals=True)


def _child(life: Life) -> NoReturn:
    try:
        settings = Settings.load(life.settings)
        sidecar.tail.keeping.CHUNK = life.chunk
        if life.step:
            STEPS[life.step][1](Step(life.k), settings)
        asyncio.run(_live(settings))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def main() -> None:
    """Live and die as told, until standard input ends."""
    logs.setup("info", "json")
    gc.freeze()
    for line in sys.stdin:
        life = msgspec.json.decode(line, type=Life)
        begun = time.monotonic()
        pid = os.fork()
        if not pid:
            _child(life)
        reached = True
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if reached and time.monotonic() - begun > life.within:
                os.kill(pid, signal.SIGKILL)
                reached = False
            time.sleep(0.005)
        death = Death(reached, os.waitstatus_to_exitcode(status), time.monotonic() - begun, pid)
        sys.stdout.buffer.write(msgspec.json.encode(death) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
