"""`sidecar watch`: follow JSONL files, and say what is found as it happens.

**What a restart repeats or misses.** Before anything is written out, the state is saved: how far each file has been
read, the whole engine, and the lines that are about to be written (the outbox). After a restart, however the process
ended, reading goes on where that state stood, and first what of its outbox had not got out is written. So:

- nothing is missed, and nothing read twice, by a clean stop, a crash or `kill -9`;
- in a file (`findings_file`, `halts_file`, `dead-letters.jsonl`, standard output appended to a file) every line is
  there exactly once: the file is compared with the outbox;
- on a pipe or terminal no line is missing; if the process is killed between writing a line and noting that, that one
  line comes again, with the same `finding_id`. More cannot be had: nobody can ask a pipe what was read from it;
- a full disk stops the watch with an error; started again, it goes on with nothing lost.

**What may be lost.** Where records may be gone unread (a file truncated, written over, deleted or moved away before it
was read; a state that is gone or older than what was written), nobody knows of which sessions they were. All are
distrusted, the guard answers for nothing until the files have been read to their ends, and then every session met by
then is distrusted once more. That is part of the state: a restart does not forget it.

The state is saved as a whole. For many sessions that takes a while, so saving takes at most about a tenth of the
time, and what is found meanwhile is written out together.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, TextIO

import structlog

from sidecar.engine.fold import Arrival, Engine, Outcome, UnknownState
from sidecar.engine.limits import Limits
from sidecar.files.decisions import DecisionFile
from sidecar.files.follow import Follower
from sidecar.files.jsonl import MAX_LINE, Line, explain
from sidecar.files.letters import Letters
from sidecar.files.live import LiveFiles
from sidecar.files.observed import Batch, Observed, stamps
from sidecar.files.outbox import Output, Patience, appended, leave_quietly, standard
from sidecar.files.outlet import Outlet
from sidecar.files.paths import FILES
from sidecar.files.store import State, StateError, Store
from sidecar.observe.health import Health
from sidecar.observe.metrics import Metrics
from sidecar.protocol.decode import Unreadable, decode
from sidecar.protocol.outputs import DeadLetter, Source
from sidecar.protocol.records import Hole

POLL_INTERVAL = 0.2
SAVE_INTERVAL = 1.0
"""How often, in seconds, the position is saved while nothing is found."""

SAVING_SHARE = 10
"""How many times as long as a save took is waited before the next one."""

LOGGED = 5
"""How many unreadable lines of a batch are logged one by one, and how many notices of files."""

END_WITHIN = 10.0
"""How long, in seconds, a watch that has been told to stop waits for the reader of its output."""

TIDY_INTERVAL = 10.0
"""How often, in seconds, sessions that nothing happens in are let go."""

LOSSES = 20
"""How many losses are named one by one."""

DEAD_LETTERS = "dead-letters.jsonl"


async def watch(
    paths: Sequence[str],
    *,
    state_dir: Path | str,
    stop: asyncio.Event,
    limits: Limits | None = None,
    poll_interval: float = POLL_INTERVAL,
    format: Literal["json", "text"] = "json",
    findings_file: Path | str | None = None,
    halts_file: Path | str | None = None,
    stdout: TextIO = sys.stdout,
    metrics: Metrics | None = None,
    health: Health | None = None,
    max_line: int = MAX_LINE,
    sessions: LiveFiles | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    decisions_file: Path | str | None = None,
    idle_after: float = 300.0,
    ttl: float = 7 * 86400.0,
) -> int:
    """Follow files until told to stop.

    Args:
        paths: JSONL files, which may appear later, and folders, whose `*.jsonl` files are followed.
        state_dir: where the position is kept; one watch at a time uses it.
        stop: ends the watch; what has been found is written out and the position saved first.
        limits: how long gaps are waited for, and what is kept.
        poll_interval: seconds between two looks at the files.
        format: `text` writes findings as blocks for a person.
        findings_file: append the findings to this file instead of writing them to standard output.
        halts_file: append the halts to this file (default: they are not written).
        metrics: counts what happens, once a batch.
        health: is told of every look at the files; its clock is `time.monotonic`.
        max_line: longest line in bytes.
        sessions: answers for the sessions while they are watched.
        on_outcome: called with what each look at the files found.
        decisions_file: where `sessions` writes the permissions that are given (default: it cannot).
        idle_after: seconds after which a session that nothing happens in is kept in serialised form.
        ttl: seconds after which it is forgotten.

    Returns:
        The exit code: 0, or 141 when the reader of standard output is gone.

    Raises:
        StateError: the state folder or an output cannot be used (another watch, damage, a full disk).
        InputError: a path is neither a file nor a folder.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store(Path(state_dir)))
        patience = Patience()
        outputs: dict[str, Output] = {
            "findings": standard(stdout, patience) if findings_file is None else appended(Path(findings_file)),
            "dead letters": appended(store.folder / DEAD_LETTERS),
        }
        if halts_file is not None:
            outputs["halts"] = appended(Path(halts_file))
        for output in outputs.values():
            stack.callback(output.close)
        watcher = _Watch(
            paths, store, outputs, limits or Limits(), format == "text", Observed(metrics, health), max_line
        )
        watcher.sessions, watcher.on_outcome = sessions, on_outcome
        watcher.idle_after, watcher.ttl = idle_after, ttl
        if decisions_file is not None and sessions is not None:
            watcher.decisions = sessions.decisions = DecisionFile(Path(decisions_file))
        stack.callback(watcher.close)
        ending = asyncio.create_task(_end(stop, patience))
        try:
            await watcher.run(stop, poll_interval)
        except BrokenPipeError:
            if findings_file is None:
                leave_quietly(stdout)
            return 141
        finally:
            ending.cancel()
            if watcher.decisions is not None:
                await watcher.decisions.close()
    return 0


async def _end(stop: asyncio.Event, patience: Patience) -> None:
    await stop.wait()
    patience.until = time.monotonic() + END_WITHIN


def _open_files() -> int:
    """Return how many files may be kept open, after having the system allow as many as it will.

    Half of them are for those that were left behind, and half of all are for others (the guard's connections).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(16, min(FILES, most // 4))


class _Watch:
    """Hold one watch while it runs."""

    sessions: LiveFiles | None = None
    on_outcome: Callable[[Outcome], None] | None = None
    decisions: DecisionFile | None = None
    idle_after = float("inf")
    ttl = float("inf")

    def __init__(
        self,
        paths: Sequence[str],
        store: Store,
        outputs: dict[str, Output],
        limits: Limits,
        text: bool,
        observed: Observed,
        max_line: int,
    ) -> None:
        self._store = store
        self._outlet = Outlet(outputs, store, text)
        self._observed = observed
        self._log = structlog.get_logger("sidecar.watch")
        self._state = store.load()
        try:
            self._engine = Engine.load(self._state.engine, limits) if self._state.engine else Engine(limits)
        except UnknownState as error:
            raise StateError(f"the state in {store.folder} cannot be used: {error}") from None
        self._began = time.monotonic() - self._state.clock
        self._follower = Follower(paths, self._state.files, max_line, open_files=_open_files())
        self._lost = self._state.lost
        self._tidy_at = self._clock() + TIDY_INTERVAL
        self._stamps: list[tuple[float | None, float]] = []
        self._dirty = True  # the first save shows at once whether the folder can be written to
        self._saved_at = float("-inf")
        self._saving_took = 0.0

    def close(self) -> None:
        if self.sessions is not None:
            self.sessions.end()
        self._follower.close()

    def _clock(self) -> float:
        """Return the watch's own time, which goes on after a restart where it stood."""
        return time.monotonic() - self._began

    async def run(self, stop: asyncio.Event, poll_interval: float) -> None:
        await asyncio.to_thread(self._outlet.recover, self._state)
        self._leave_out()
        self._observed.restored(self._engine)
        if self.sessions is not None:
            self.sessions.begin(self._engine)
        while not stop.is_set():
            read = self._step()
            if self._due():
                await asyncio.to_thread(self._commit)
            if read:
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(stop.wait(), poll_interval)
            except TimeoutError:
                continue
        await asyncio.to_thread(self._commit)
        if self._state.outbox:
            await asyncio.to_thread(self._commit)  # the outbox is written out: a restart need not look at it

    # --- in ------------------------------------------------------------------------------------------------------

    def _step(self) -> int:
        """Read what there is, judge it, and keep what is to be written; return how many lines it was."""
        began = time.monotonic()
        now = self._clock()
        lines = self._follower.poll(now)
        losses = self._follower.losses()
        notices = self._follower.notices()
        for notice in notices[:LOGGED]:
            self._log.warning("file", notice=notice)
        if len(notices) > LOGGED:
            self._log.warning("more about files", count=len(notices) - LOGGED)
        arrivals: list[Arrival] = []
        unreadable = Letters()
        for line in lines:
            self._arrive(line, arrivals, unreadable)
        folding = time.monotonic()
        outcome = self._engine.fold(arrivals, now)
        folded = time.monotonic() - folding
        outcome = _together(outcome, self._engine.expire(now))
        behind = self._follower.behind()
        outcome = self._distrust(losses, outcome, to_the_end=not behind)
        letters = [*unreadable.take(), *outcome.letters]
        self._note(letters)
        self._outlet.keep(outcome, letters)
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        if self.sessions is not None:
            self.sessions.read(to_the_end=not behind)
        self._stamps += stamps(outcome.findings, arrivals, began)
        self._dirty = self._follower.moved() or bool(lines) or self._dirty
        self._observed.batch(
            Batch(
                fetched_at=began,
                lines=len(lines),
                unreadable=unreadable.lines,
                arrivals=arrivals,
                outcome=outcome,
                seconds=folded if arrivals else None,
                bytes_behind=behind,
            ),
            self._engine,
        )
        self._tidy(now)
        return len(lines)

    def _arrive(self, line: Line, arrivals: list[Arrival], unreadable: Letters) -> None:
        source = Source(line.file, 0, line.number)
        reason, session_id, seq = line.problem, None, None
        if reason is None:
            try:
                record, digest = decode(line.raw)
            except Unreadable as error:
                reason, session_id, seq = explain(line.raw, error.reason), error.session_id, error.seq
            else:
                if line.origin is not None:
                    line.origin.records = True
                arrivals.append((record, digest, source))
                return
        unreadable.add(line, reason, session_id, seq)
        if session_id is not None:
            arrivals.append((Hole(session_id=session_id, seq=seq), 0, source))

    def _distrust(self, losses: list[str], outcome: Outcome, *, to_the_end: bool) -> Outcome:
        """Distrust every session while records may be gone of it; once more when all that is left has been read."""
        self._lost += losses
        if not self._lost or not (losses or to_the_end):
            return outcome
        if losses:
            self._log.error(
                "records may be lost; no session is trusted until a checkpoint of it is verified",
                lost=losses[:LOSSES],
                count=len(losses),
            )
        more = [f"and {len(self._lost) - LOSSES:,} more"] if len(self._lost) > LOSSES else []
        self._lost = self._lost[:LOSSES] + more
        outcome = _together(outcome, self._engine.distrust("; ".join(self._lost)))
        if to_the_end:
            self._lost = []
        elif self.sessions is not None:
            self.sessions.doubt()
        self._dirty = True
        return outcome

    def _tidy(self, now: float) -> None:
        """Let go of sessions that nothing happens in, as the tail does."""
        if now < self._tidy_at:
            return
        self._tidy_at = now + TIDY_INTERVAL
        self._engine.take_changed()
        self._engine.take_decided()
        self._engine.shrink(now, self.idle_after)
        self._dirty = bool(self._engine.drop_idle(now, self.ttl)) or self._dirty

    def _note(self, letters: list[DeadLetter]) -> None:
        for letter in letters[:LOGGED]:
            self._log.warning("unreadable", file=letter.source.topic, line=letter.source.offset, reason=letter.reason)
        if len(letters) > LOGGED:
            self._log.warning("more unreadable lines", count=len(letters) - LOGGED, in_file=DEAD_LETTERS)

    # --- out -----------------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        since = time.monotonic() - self._saved_at
        if since < SAVING_SHARE * self._saving_took:
            return False
        return bool(self._outlet.pending) or (self._dirty and since >= SAVE_INTERVAL)

    def _commit(self) -> None:
        """Save the state together with what is to be written, then write it."""
        began = time.monotonic()
        self._outlet.settle(self._state)
        self._leave_out()
        self._state = State(
            number=self._state.number + 1,
            clock=self._clock(),
            engine=self._engine.dump(),
            files=self._follower.positions(),
            outbox=self._outlet.pending,
            marks=self._outlet.marks(),
            lost=self._lost,
        )
        self._store.save(self._state)
        self._outlet.pending = []
        self._dirty = False
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - began
        self._outlet.write(self._state)
        letters = sum(name == "dead letters" for name, _ in self._state.outbox)
        self._observed.written(self._stamps, letters)
        self._stamps = []

    def _leave_out(self) -> None:
        """Keep the watch from reading what it writes itself."""
        for mark in self._outlet.marks().values():
            self._follower.leave_out((mark.device, mark.inode))
        if self.decisions is not None:
            self._follower.leave_out(self.decisions.key)


def _together(one: Outcome, other: Outcome) -> Outcome:
    """Return two outcomes as one."""
    survival = dict(one.survival)
    for key, (should, does) in other.survival.items():
        before = survival.get(key, [0, 0])
        survival[key] = [before[0] + should, before[1] + does]
    return Outcome(one.findings + other.findings, one.halts + other.halts, survival, one.letters + other.letters)
