"""What the engine is told from outside: how long it waits and how much of the past it keeps."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct


class Workload(Struct, frozen=True):
    """Say how much recall a workload needs, and whether its nodes may be reclaimed unprobed.

    Source of the rule: the text on the fidelity cliff (0.85 for remediation, 0.60 for narrative).
    """

    floor: float
    gc_requires_probe: bool


DEFAULT_WORKLOAD = "remediation"
WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        DEFAULT_WORKLOAD: Workload(floor=0.85, gc_requires_probe=True),
        "narrative": Workload(floor=0.60, gc_requires_probe=False),
    }
)


class Limits(Struct, frozen=True, kw_only=True):
    """Bound the waiting and the memory of the fold.

    `max_waiting` (records a session holds back) and `max_wait` (seconds) bound the wait for a missing position.
    `midstream` says what a session is whose beginning is not in the log: `skip` leaves it unjudged until a baseline,
    `judge` counts what came before as missing.
    `checkpoints`, `positions`, `nodes` (generations) and `calls` are kept per session; forgetting fails closed.
    """

    max_waiting: int = 4096
    max_wait: float = 5.0
    midstream: Literal["skip", "judge"] = "skip"
    checkpoints: int = 1024
    positions: int = 1_000_000
    nodes: int = 4096
    calls: int = 4096
    workloads: Mapping[str, Workload] = WORKLOADS

    def workload(self, name: str | None) -> Workload:
        """Return the workload of that name; without one, or with one not configured, the strict default."""
        found = self.workloads.get(name) if name else None
        return found or self.workloads.get(DEFAULT_WORKLOAD) or WORKLOADS[DEFAULT_WORKLOAD]
