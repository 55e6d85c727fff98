"""What the fleet must come to, worked out the plain way: from whole topics, with nothing kept small and nothing shared.

Nothing of `sidecar.fleet` is used here.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

DEGRADED = {"corrupt", "lossy", "degraded", "unverified"}
FREEZE = "freeze"


class Read(NamedTuple):
    """A message that was read from a topic."""

    role: str
    key: bytes | None
    value: bytes | None
    at: float


def sessions(messages: Iterable[Read]) -> dict[str, dict[str, Any]]:
    """Return what is known of every session; messages of one topic in their order, topics in any.

    Unreadable messages are left out. Acknowledgements alone make no session.
    """
    made: dict[str, dict[str, Any]] = defaultdict(_nothing)
    for message in messages:
        if message.role == "halt_acks":
            ack, session_id = _fields(message), _text(message.key)
            if ack and session_id:
                made[session_id]["acks"][ack["halt_id"]] = (ack["by"], ack["decision"])
            continue
        fields = _fields(message)
        if not fields:
            continue
        session = made[fields["session_id"]]
        session["known"] = True
        {"findings": _finding, "halts": _halt, "sessions": _standing}[message.role](session, fields)
    return {name: _finished(session) for name, session in made.items() if session["known"]}


def _nothing() -> dict[str, Any]:
    return {"known": False, "findings": {}, "opened": {}, "cleared": {}, "records": [], "acks": {}}


def _text(data: bytes | None) -> str | None:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError:
        return None


def _fields(message: Read) -> dict[str, Any] | None:
    try:
        fields = json.loads(message.value or b"")
    except ValueError:
        return None
    needed = {
        "findings": {"finding_id", "rule", "severity", "disposition", "session_id", "subject", "position", "evidence"},
        "halts": {"halt_id", "session_id", "position", "status", "reason", "finding_ids", "open_halts"},
        "sessions": {"session_id", "position", "status", "awaiting", "open_halts", "survival"},
        "halt_acks": {"halt_id", "by", "decision"},
    }[message.role]
    return fields if isinstance(fields, dict) and needed <= fields.keys() else None


def _finding(session: dict[str, Any], fields: dict[str, Any]) -> None:
    session["findings"].setdefault(fields["finding_id"], fields)


def _halt(session: dict[str, Any], fields: dict[str, Any]) -> None:
    which = "opened" if fields["status"] == "halt" else "cleared"
    session[which].setdefault(fields["halt_id"], fields)


def _standing(session: dict[str, Any], fields: dict[str, Any]) -> None:
    records = session["records"]
    if not records or fields["position"] >= records[-1]["position"]:
        records.append(fields)


def _finished(session: dict[str, Any]) -> dict[str, Any]:
    findings = list(session["findings"].values())
    records = session["records"]
    newest = records[-1] if records else None
    last = max(enumerate(findings), key=lambda pair: (pair[1]["position"], pair[0]))[1] if findings else {}
    group = tuple((newest or {}).get(name) or last.get(name) for name in ("tenant", "agent", "model"))
    open_halts = sorted(set(session["opened"]) - set(session["cleared"]))
    rules: dict[str, int] = defaultdict(int)
    for finding in findings:
        rules[finding["rule"]] += 1
    frozen: dict[str, list[float]] = defaultdict(list)
    for finding in findings:
        if finding["disposition"] == FREEZE and finding["subject"]["type"] == "node":
            frozen[finding["subject"]["id"]].append(_time(finding))
    return {
        "group": group,
        "status": newest["status"] if newest else None,
        "since": _time(_begin(records, lambda r: r["status"] == newest["status"])) if newest else None,
        "degraded_since": _time(_begin(records, lambda r: r["status"] in DEGRADED))
        if newest and newest["status"] in DEGRADED
        else None,
        "awaiting": bool(newest and newest["awaiting"]),
        "checkpoint": (newest["checkpoint"] or {}).get("checkpoint_id") if newest else None,
        "survival": {(s.get("model"), s["what"], s["level"]): (s["checked"], s["kept"]) for s in newest["survival"]}
        if newest
        else {},
        "findings": len(findings),
        "last_findings": [f["finding_id"] for f in findings[-64:]],
        "rules": dict(rules),
        "open_halts": open_halts,
        "unacknowledged": [halt for halt in open_halts if halt not in session["acks"]],
        "frozen": {node: sorted(times) for node, times in frozen.items()},
        "raw": findings,
    }


def _begin(records: list[dict[str, Any]], holds: Any) -> dict[str, Any]:
    """Return the first record of the last unbroken run in which something holds, which it does at the end."""
    first = len(records) - 1
    while first > 0 and holds(records[first - 1]):
        first -= 1
    return records[first]


def _time(fields: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(fields["detected_at"]).timestamp()


def groups(made: Mapping[str, Mapping[str, Any]], now: float) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return every (tenant, agent, model) with its sessions, and its findings of the last 5 minutes and the last hour.

    A window holds whole buckets of 30 seconds, the current one included.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(
        lambda: {
            "sessions": 0,
            "statuses": defaultdict(int),
            "open_halts": 0,
            "unacknowledged": 0,
            "awaiting": 0,
            "5m": defaultdict(int),
            "1h": defaultdict(int),
            "survival": defaultdict(lambda: [0, 0]),
        }
    )
    for session in made.values():
        group = found[session["group"]]
        group["sessions"] += 1
        group["statuses"][session["status"] or "unknown"] += 1
        group["open_halts"] += len(session["open_halts"])
        group["unacknowledged"] += len(session["unacknowledged"])
        group["awaiting"] += session["awaiting"]
        for (model, what, level), (checked, kept) in session["survival"].items():
            of_model = found[(*session["group"][:2], model)]["survival"][f"{what}/{level}"]
            of_model[0] += checked
            of_model[1] += kept
        for finding in session["raw"]:
            of_finding = found[tuple(finding.get(name) or None for name in ("tenant", "agent", "model"))]
            bucket = _time(finding) // 30
            for window, seconds in (("5m", 300), ("1h", 3600)):
                if (now - seconds) // 30 < bucket <= now // 30:
                    of_finding[window][finding["rule"]] += 1
    return {key: _plain(group) for key, group in found.items() if _counts(group)}


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    kept = {what: tuple(pair) for what, pair in group["survival"].items() if any(pair)}
    return {**group, **{name: dict(group[name]) for name in ("statuses", "5m", "1h")}, "survival": kept}


def _counts(group: dict[str, Any]) -> bool:
    return bool(group["sessions"] or group["1h"] or any(any(pair) for pair in group["survival"].values()))
