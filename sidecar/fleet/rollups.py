"""One partition of the roll-ups: the partials of the tenants, agents and models that are added up here.

The topic is compacted by tenant, agent or model and input partition, and every record is absolute: it is read from its
begin whenever the partition is taken over, and is its own changelog.
"""

from collections.abc import Iterator, Mapping

import msgspec

from sidecar.fleet.alerts import Facts
from sidecar.fleet.groups import Dim, Partial, Wire, decode_wire

REFRESH = 60.0
"""Seconds after which every partial is sent again, whether or not it has changed."""

_STALE = 5 * REFRESH
_DEAD = 86400.0

_decode_key = msgspec.json.Decoder(tuple[str, str | None, int]).decode


class Rollup:
    """Keep one partition of the roll-ups."""

    def __init__(self) -> None:
        self._wires: dict[Dim, dict[int, Wire]] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record in; one that was made before what is known says nothing.

        Raises:
            ValueError: it cannot be read.
        """
        try:
            if value is None:
                by, name, partition = _decode_key(key or b"")
                self._drop(Dim(by, name), partition)  # type: ignore[arg-type]
                return
            wire = decode_wire(value)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        known = self._wires.setdefault(wire.dim, {})
        before = known.get(wire.partition)
        if before is None or before.at <= wire.at:
            known[wire.partition] = wire

    def _drop(self, dim: Dim, partition: int) -> None:
        known = self._wires.get(dim, {})
        known.pop(partition, None)
        if not known:
            self._wires.pop(dim, None)

    def prune(self, now: float) -> list[tuple[Dim, int]]:
        """Drop, and name, the partials that their partition's worker does not send again though it sends others."""
        newest: dict[int, float] = {}
        for wires in self._wires.values():
            for partition, wire in wires.items():
                newest[partition] = max(newest.get(partition, 0.0), wire.at)
        stale = [
            (dim, partition)
            for dim, wires in self._wires.items()
            for partition, wire in wires.items()
            if newest[partition] - wire.at > _STALE or now - wire.at > _DEAD
        ]
        for dim, partition in stale:
            self._drop(dim, partition)
        return stale

    def facts(self) -> Iterator[Facts]:
        """Yield what is known of every tenant, agent and model here whose partitions have all been read up once."""
        for dim, wires in self._wires.items():
            if all(wire.fresh for wire in wires.values()):
                yield Facts(dim=dim, total=_sum(wires), behind=any(wire.behind for wire in wires.values()))

    def waiting(self) -> set[Dim]:
        """Return those of which nothing can be said yet."""
        return {dim for dim, wires in self._wires.items() if not all(wire.fresh for wire in wires.values())}

    def totals(self) -> dict[Dim, Partial]:
        """Return the sums of everything here."""
        return {dim: _sum(wires) for dim, wires in self._wires.items()}


def _sum(wires: Mapping[int, Wire]) -> Partial:
    total = Partial()
    for wire in wires.values():
        if wire.partial is not None:
            total.include(wire.partial)
    return total
