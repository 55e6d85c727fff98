"""What was planted against what was flagged."""

from collections.abc import Iterable

from msgspec import Struct

from sidecar.protocol.outputs import Finding, Halt, Source
from sidecar.simulate import Planted

Pair = tuple[str, str, str]
"""Session, rule, subject id."""

HEALTHY = "(no fault)"
STRAY = "(dead letters)"


class Row(Struct):
    """Sum one fault kind up: how many sessions have it, and what became of the findings it had to cause."""

    fault: str
    sessions: int = 0
    planted: int = 0
    flagged: int = 0
    missing: int = 0
    unexpected: int = 0
    rules: tuple[str, ...] = ()


class Score:
    """Keep count of what comes out, and compare it with what is known to be wrong."""

    def __init__(self) -> None:
        self.flagged: set[Pair] = set()
        self.repeated = 0
        self.halts_opened = 0
        self.halts_cleared = 0
        self.letters = 0
        self._ids: set[str] = set()
        self._seen: list[tuple[str, Source | None, float]] = []

    def finding(self, finding: Finding, at: float) -> bool:
        """Count a finding that was read back at a time; return whether it is new."""
        if finding.finding_id in self._ids:
            self.repeated += 1
            return False
        self._ids.add(finding.finding_id)
        self.flagged.add((finding.session_id, finding.rule, finding.subject.id))
        self._seen.append((finding.session_id, finding.source, at))
        return True

    def halt(self, halt: Halt) -> None:
        """Count a halt or its clearing."""
        if halt.status == "halt":
            self.halts_opened += 1
        else:
            self.halts_cleared += 1

    def letter(self) -> None:
        """Count a dead letter."""
        self.letters += 1

    @property
    def findings(self) -> int:
        """Return how many findings were read back."""
        return len(self._ids)

    def complete(self, planted: Iterable[Planted]) -> bool:
        """Tell whether everything planted has been flagged."""
        faults = list(planted)
        expected = all(pair in self.flagged for fault in faults for pair in _pairs(fault))
        return expected and self.letters >= sum(fault.expected_dead_letters for fault in faults)

    def latencies(self, sent: dict[Source, float]) -> list[float]:
        """Return, sorted, how long after its record was sent each finding was read back.

        Findings of sessions with a missing position are left out: they have to wait until it is given up.
        """
        waiting = {session for session, rule, _ in self.flagged if rule in ("log_gap", "session_joined")}
        return sorted(
            at - sent[source]
            for session, source, at in self._seen
            if session not in waiting and source is not None and source in sent
        )

    def rows(self, planted: Iterable[Planted], sessions: int) -> list[Row]:
        """Compare, by fault kind; sessions without a fault and dead letters have a row of their own.

        Args:
            planted: every fault.
            sessions: how many sessions there were in all.
        """
        faults = {fault.session_id: fault for fault in planted}
        rows = {kind: Row(kind) for kind in sorted({fault.fault for fault in faults.values()})}
        rules: dict[str, set[str]] = {kind: set() for kind in rows}
        for fault in faults.values():
            row, expected = rows[fault.fault], _pairs(fault)
            found = {pair for pair in expected if pair in self.flagged}
            row.sessions += 1
            row.planted += len(expected)
            row.flagged += len(found)
            row.missing += len(expected) - len(found)
            rules[fault.fault].update(rule for _, rule, _ in expected)
        healthy = rows[HEALTHY] = Row(HEALTHY, sessions=sessions - len(faults))
        expected = {pair for fault in faults.values() for pair in _pairs(fault)}
        for session, _, _ in self.flagged - expected:
            row = rows[faults[session].fault] if session in faults else healthy
            row.unexpected += 1
        for kind, names in rules.items():
            rows[kind].rules = tuple(sorted(names))
        letters = sum(fault.expected_dead_letters for fault in faults.values())
        rows[STRAY] = Row(
            STRAY,
            sessions=sum(fault.expected_dead_letters > 0 for fault in faults.values()),
            planted=letters,
            flagged=min(self.letters, letters),
            missing=max(letters - self.letters, 0),
            unexpected=max(self.letters - letters, 0),
        )
        return list(rows.values())


def _pairs(fault: Planted) -> set[Pair]:
    return {(fault.session_id, rule, subject) for rule, subject in fault.expected}


def quantile(ordered: list[float], share: float) -> float:
    """Return the value that so large a share of sorted values does not exceed (0 if there are none)."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
