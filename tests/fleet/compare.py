"""Put what the fleet has in the form of what was worked out the plain way."""

import json
from collections.abc import Mapping
from typing import Any

from sidecar.fleet.groups import Partial
from sidecar.fleet.model import GroupKey, Row
from sidecar.fleet.shard import Shard


def row_of(row: Row) -> dict[str, Any]:
    """Return a row as `naive.sessions` has it, without the raw findings."""
    record = row.standing.record
    return {
        "group": tuple(row.group()),
        "status": row.status(),
        "since": row.standing.since,
        "degraded_since": row.standing.degraded_since,
        "awaiting": record is not None and record.awaiting,
        "checkpoint": record.checkpoint.checkpoint_id if record and record.checkpoint else None,
        "survival": {(s.model, s.what, s.level): (s.checked, s.kept) for s in row.survival()},
        "findings": row.findings.total,
        "last_findings": [json.loads(raw)["finding_id"] for raw in row.findings.kept],
        "rules": row.findings.rules,
        "open_halts": sorted(halt_id for halt_id, _ in row.open_halts()),
        "unacknowledged": sorted(halt_id for halt_id, _ in row.unacknowledged()),
        "frozen": row.findings.frozen,
    }


def rows_of(shard: Shard) -> dict[str, dict[str, Any]]:
    """Return all rows of a shard."""
    return {row.session_id: row_of(row) for row in shard.shelf.rows() if row.is_known()}


def expected_rows(made: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the plain rows without the raw findings."""
    return {name: {k: v for k, v in session.items() if k != "raw"} for name, session in made.items()}


def groups_of(partials: Mapping[GroupKey, Partial], now: float) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return partials as `naive.groups` has them."""
    found = {}
    for key, partial in partials.items():
        group = {
            "sessions": partial.sessions,
            "statuses": partial.statuses,
            "open_halts": partial.open_halts,
            "unacknowledged": partial.unacknowledged,
            "awaiting": partial.awaiting,
            "5m": partial.counts.within(300.0, now),
            "1h": partial.counts.within(3600.0, now),
            "survival": {what: tuple(pair) for what, pair in partial.survival.items()},
        }
        if group["sessions"] or group["1h"] or group["survival"]:
            found[tuple(key)] = group
    return found


def differences(found: Mapping[str, Mapping[str, Any]], expected: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Name what differs, field by field."""
    said = [f"{name}: not expected" for name in found.keys() - expected.keys()]
    said += [f"{name}: missing" for name in expected.keys() - found.keys()]
    for name in found.keys() & expected.keys():
        for field, value in expected[name].items():
            if found[name][field] != value:
                said.append(f"{name}.{field}: {found[name][field]!r}, expected {value!r}")
    return sorted(said)
