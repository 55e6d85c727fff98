"""The journal under crashes: at any of its writes the process dies, the machine loses power, or the disk fails."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable
from copy import deepcopy
from itertools import count, product
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.client import journal as module
from sidecar.client.compose import Role, with_seq
from sidecar.client.errors import JournalDamaged, JournalUnwritable
from sidecar.client.journal import Disk, Entry, Journal

Fault = Literal["kill", "power", "error"]
SECTOR = 512
SESSION = "s"


class Crash(BaseException):
    """Be the end of the process."""


class FaultyDisk(Disk):
    """Fail at the n-th operation, and know what would be on the disk after a power failure.

    Args:
        path: the file.
        fault: what happens.
        at: at which operation.
        share: how much of a write is done before it fails, in thousandths.
    """

    def __init__(self, path: Path, fault: Fault, at: int, share: int) -> None:
        self._path = path
        self._fault = fault
        self.left = at
        self._share = share
        self._durable = path.read_bytes() if path.exists() else b""
        self._pending: list[tuple[int, bytes] | int] = []

    def write(self, fd: int, data: bytes, offset: int) -> int:
        if self._due():
            part = data[: len(data) * self._share // 1000]
            if offset == SECTOR:  # the slot: a sector is written whole or not at all
                part = data if self._share > 500 else b""
            os.pwrite(fd, part, offset)
            self._remember(part, offset)
            self._fail(errno.ENOSPC)
        self._remember(data, offset)
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        if self._due():
            self._fail(errno.EIO)
        # By the descriptor: a journal that is being made has another name yet.
        self._durable, self._pending = os.pread(fd, os.fstat(fd).st_size, 0), []

    def cut(self, fd: int, size: int) -> None:
        if self._due():
            self._fail(errno.EIO)
        self._pending.append(size)
        os.ftruncate(fd, size)

    @property
    def pending(self) -> int:
        """Return how many changes are not durable."""
        return len(self._pending)

    def lose_power(self, kept: Iterable[bool]) -> None:
        """Put into the file what the disk has: of what was not synced those sectors."""
        image = bytearray(self._durable)
        for change, keep in zip(self._pending, kept, strict=True):
            if not keep:
                continue
            if isinstance(change, int):
                del image[change:]
                image.extend(bytes(change - len(image)))
            else:
                offset, data = change
                image.extend(bytes(max(0, offset + len(data) - len(image))))
                image[offset : offset + len(data)] = data
        self._path.write_bytes(image)

    def _due(self) -> bool:
        self.left -= 1
        return self.left == 0

    def _fail(self, code: int) -> None:
        if self._fault == "error":
            raise OSError(code, os.strerror(code))
        raise Crash

    def _remember(self, data: bytes, offset: int) -> None:
        while data:
            size = min(len(data), SECTOR - offset % SECTOR)
            self._pending.append((offset, data[:size]))
            data, offset = data[size:], offset + size


class Truth:
    """Hold what the outside knows: which content has which position, and what was acknowledged."""

    def __init__(self) -> None:
        self.contents: dict[int, bytes] = {}
        self.acknowledged = 0
        self.made = 0

    def bodies(self, sizes: list[int]) -> list[tuple[Role, bytes]]:
        bodies: list[tuple[Role, bytes]] = []
        for size in sizes:
            self.made += 1
            role: Role = "events" if self.made % 3 else "compactions"
            bodies.append((role, b'{"n":%d,"x":"%b"}' % (self.made, b"x" * size)))
        return bodies

    def told(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert self.contents.setdefault(entry.seq, entry.raw) == entry.raw, f"{entry.seq} was given out twice"

    def check(self, journal: Journal, entries: list[Entry]) -> None:
        """See that a journal that was opened again gives no position out twice, and leaves none out."""
        last = max(self.contents, default=0)
        assert journal.position >= last
        seqs = [entry.seq for entry in entries]
        assert seqs == list(range(journal.position - len(seqs) + 1, journal.position + 1))
        assert journal.position - len(seqs) <= self.acknowledged, "something was not acknowledged, and is gone"
        self.told(entries)
        assert sorted(self.contents) == list(range(1, journal.position + 1))


sizes = st.lists(st.integers(0, 900), min_size=1, max_size=4)
steps = st.lists(
    st.one_of(sizes, sizes, st.integers(1, 5), st.sampled_from(["most", "note", "close"])), min_size=3, max_size=12
)
"""Append records of these sizes; acknowledge so many, or all but the last; write that down; close and open again."""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lives=st.lists(
        st.tuples(steps, st.sampled_from(["kill", "power", "error"]), st.integers(1, 40), st.integers(0, 1000)),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_no_position_twice_and_none_left_out(
    monkeypatch: pytest.MonkeyPatch,
    lives: list[tuple[list[list[int] | int | str], Fault, int, int]],
    data: st.DataObject,
) -> None:
    monkeypatch.setattr(module, "RECLAIM", 600)
    truth = Truth()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.journal"
        for life, fault, at, share in lives:
            disk = FaultyDisk(path, fault, at, share)
            try:
                _live(path, disk, truth, life)
            except Crash:
                if fault == "power" and path.exists():
                    disk.lose_power(data.draw(st.lists(st.booleans(), min_size=disk.pending, max_size=disk.pending)))
            except JournalUnwritable:
                assert fault == "error"
        journal, entries = Journal.open(path, SESSION)
        truth.check(journal, entries)
        truth.told(journal.append(truth.bodies([10])))
        journal.close()


def _live(path: Path, disk: FaultyDisk, truth: Truth, life: list[list[int] | int | str]) -> None:
    """Go through the steps; what fails is passed over, and the next one tried with the same journal."""
    journal, entries = Journal.open(path, SESSION, disk=disk)
    truth.check(journal, entries)
    for step in life:
        try:
            journal = _go(journal, path, disk, truth, step)
        except JournalUnwritable:
            pass
        except BaseException:
            journal.close(clean=False)
            raise
    journal.close()


def _go(journal: Journal, path: Path, disk: FaultyDisk, truth: Truth, step: list[int] | int | str) -> Journal:
    if isinstance(step, list):
        bodies = truth.bodies(step)
        entries = journal.append(bodies)
        assert [entry.raw for entry in entries] == [
            with_seq(body, entry.seq) for (_, body), entry in zip(bodies, entries, strict=True)
        ]
        truth.told(entries)
    elif isinstance(step, int) or step == "most":
        last = max(truth.contents, default=0)
        upto = min(truth.acknowledged + step, last) if isinstance(step, int) else last - 1
        truth.acknowledged = max(truth.acknowledged, upto)
        journal.acknowledge(truth.acknowledged)
    elif step == "note":
        journal.note()
    else:
        journal.close()
        journal, entries = Journal.open(path, SESSION, disk=disk)
        truth.check(journal, entries)
    return journal


MOVING: list[list[int] | int | str] = [[300, 300], [20], "most", [700, 20], [5], "most", [30], [600], 3, [40]]
"""With `RECLAIM` at 600 the records are moved to the front twice: one of them, then several."""


@pytest.mark.parametrize("fault", ["kill", "power", "error"])
def test_every_crash_while_records_are_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Fault) -> None:
    monkeypatch.setattr(module, "RECLAIM", 600)
    path = tmp_path / "x.journal"
    tried = 0
    for at in count(1):
        path.unlink(missing_ok=True)
        truth, disk = Truth(), FaultyDisk(path, fault, at, 500)
        with contextlib.suppress(Crash, JournalUnwritable):
            _live(path, disk, truth, MOVING)
        # What is on the disk after a power failure: every combination of the sectors that were not durable.
        ways: Iterable[tuple[bool, ...]] = [()]
        if fault == "power" and path.exists():
            ways = product((False, True), repeat=disk.pending)
        for way in ways:
            known = deepcopy(truth)
            if fault == "power" and path.exists():
                disk.lose_power(way)
            journal, entries = Journal.open(path, SESSION)
            known.check(journal, entries)
            known.told(journal.append(known.bodies([10])))
            journal.close()
            tried += 1
        if disk.left > 0:
            break
    assert at > 40
    assert tried > 3 * at or fault != "power"


def test_what_was_changed_is_refused_or_makes_no_difference(tmp_path: Path) -> None:
    truth = Truth()
    path = tmp_path / "x.journal"
    journal, _ = Journal.open(path, SESSION)
    for _ in range(3):
        truth.told(journal.append(truth.bodies([3, 30])))
    journal.acknowledge(2)
    journal.close()
    image = path.read_bytes()
    journal, before = Journal.open(path, SESSION)
    journal.close()
    assert [entry.seq for entry in before] == [3, 4, 5, 6]

    # A bit of every byte that is used, and some that are not; and the file cut off there.
    places = [*range(0, 512, 3), *range(512, 590), *range(4090, len(image))]
    spoiled = [image[:i] + bytes([image[i] ^ 1 << i % 8]) + image[i + 1 :] for i in places]
    spoiled += [image[:i] for i in places]
    refused = 0
    for content in spoiled:
        path.write_bytes(content)
        try:
            journal, after = Journal.open(path, SESSION)
        except JournalDamaged as error:
            assert str(path) in str(error)
            assert path.read_bytes() == content, "a journal that is refused is left as it is"
            refused += 1
            continue
        # Only where nothing is: behind the slot, and before the first record that is not acknowledged.
        assert (journal.position, after) == (6, before)
        journal.close()
    assert refused > 600
