"""Run an emitter as one life after the other, each killed: python -m tests.client.crash_process

Reads one `Life` a line (JSON) from standard input, lives it in a forked child, and answers with one `Death` a line.
A life ends by SIGKILL: at the k-th time the child comes by a step (functions are wrapped here, the emitter knows
nothing of it), or from outside after some time. What is imported is imported once, so that a life costs no start of an
interpreter. Each `seq` that a call has returned is written down, with the content of its record, before the next call.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from aiokafka import AIOKafkaProducer
from msgspec import Struct

from sidecar.client import emitter, journal
from sidecar.client.sinks import file


class Life(Struct):
    """Say how to live: where the log goes, and where or when (seconds) it ends; with neither it ends well."""

    session: str
    journal: str
    told: str
    path: str = ""
    bootstrap: str = ""
    topics: dict[str, str] = {}
    seed: int = 0
    step: str = ""
    k: int = 1
    seconds: float = 0.0
    calls: int = 200


class Death(Struct):
    """Say how it ended: by a signal, at the step, or well."""

    status: int
    at_step: bool


STEPS = (
    "journal.written",
    "journal.torn",
    "journal.synced",
    "journal.before",
    "journal.after",
    "deliver.before",
    "deliver.after",
    "acknowledged",
)


def _lethal(life: Life, marker: int) -> Callable[[str], None]:
    """Return what is called at every step."""
    left = life.k

    def at(step: str) -> None:
        nonlocal left
        if step == life.step:
            left -= 1
            if left == 0:
                os.write(marker, b"x")
                _die()

    return at


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


def _wrap(at: Callable[[str], None]) -> None:
    disk, write_to, sync = journal.Disk, journal.Disk.write, journal.Disk.sync

    def write(self: journal.Disk, fd: int, data: bytes, offset: int) -> int:
        if len(data) > 600:
            os.pwrite(fd, data[: len(data) // 2], offset)
            at("journal.torn")
        written = write_to(self, fd, data, offset)
        at("journal.written")
        return written

    def synced(self: journal.Disk, fd: int) -> None:
        sync(self, fd)
        at("journal.synced")

    _set(disk, "write", write)
    _set(disk, "sync", synced)
    append, acknowledge = journal.Journal.append, journal.Journal.acknowledge

    def appended(self: journal.Journal, bodies: Any, kept: int = 0) -> Any:
        at("journal.before")
        entries = append(self, bodies, kept)
        at("journal.after")
        return entries

    def acknowledged(self: journal.Journal, seq: int) -> None:
        acknowledge(self, seq)
        at("acknowledged")

    _set(journal.Journal, "append", appended)
    _set(journal.Journal, "acknowledge", acknowledged)
    send_batch = AIOKafkaProducer.send_batch

    async def sent(self: AIOKafkaProducer, *arguments: Any, **named: Any) -> Any:
        at("deliver.before")
        outcome = await send_batch(self, *arguments, **named)
        outcome.add_done_callback(lambda _: at("deliver.after"))
        return outcome

    _set(AIOKafkaProducer, "send_batch", sent)
    write_file = os.write

    def torn(fd: int, data: Any) -> int:
        if fd > 2 and len(data) > 200:
            at("deliver.before")
            half = write_file(fd, data[: random.randrange(1, len(data))])
            at("deliver.after")
            return half
        return write_file(fd, data)

    _set(file.os, "write", torn)


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


async def _live(life: Life) -> None:
    dice = random.Random(life.seed)
    told = os.open(life.told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if life.path:
        log = emitter.Emitter.file(life.path, life.session, journal=life.journal)
    else:
        log = emitter.Emitter.kafka(life.bootstrap, life.session, journal=life.journal, **life.topics)
    async with log:

        async def calls(number: int) -> None:
            for n in range(life.calls // 10):
                content = f"{life.seed}.{number}.{n}"
                if dice.random() < 0.2:
                    seq = await log.gc([content])
                else:
                    seq = await log.event("note", content=content, text="x" * dice.randrange(300))
                os.writev(told, [b"%d %b\n" % (seq, content.encode())])
                await asyncio.sleep(dice.random() * 0.004)

        await asyncio.gather(*(calls(number) for number in range(10)))


def main() -> None:
    """Live every life that is asked for."""
    for line in sys.stdin.buffer:
        life = msgspec.json.decode(line, type=Life)
        reads, marker = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _wrap(_lethal(life, marker))
                asyncio.run(_live(life))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(marker)
        if life.seconds:
            time.sleep(life.seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        death = Death(os.waitstatus_to_exitcode(status), os.read(reads, 1) == b"x")
        os.close(reads)
        print(msgspec.json.encode(death).decode(), flush=True)


if __name__ == "__main__":
    main()
