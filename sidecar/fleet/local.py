"""What one worker can answer by itself, of the partitions that it has; and how the answers of all become one.

The answers of a worker are plain structs that travel as msgpack; `gather` puts them together. Lists are cut where they
are made: whoever asks for a hundred sessions gets the first hundred of each worker, and keeps the first hundred of all.
"""

import base64
import binascii
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf

import msgspec
from msgspec import Struct, field

from sidecar.fleet.book import Book
from sidecar.fleet.groups import Partial, rates, summed, survival, view
from sidecar.fleet.model import GroupKey, HaltState, Row, moment
from sidecar.fleet.queries import (
    DEGRADED,
    MOST,
    Ack,
    Dimension,
    FindingBrief,
    Group,
    HaltView,
    Missing,
    Page,
    SessionDetail,
    SessionSummary,
    Status,
    Summary,
)
from sidecar.fleet.shard import Entry, Shard
from sidecar.protocol.outputs import Alert, Finding

_SEVERITY = {"critical": 0, "error": 1, "warning": 2}
_decode_finding = msgspec.json.Decoder(Finding).decode


class Filter(Struct, array_like=True, frozen=True):
    """Say which sessions are asked for; None: all. The empty string: those that name none."""

    status: frozenset[str] | None = None
    tenant: str | None = None
    agent: str | None = None
    model: str | None = None
    search: str | None = None

    def takes(self, entry: Entry) -> bool:
        """Tell whether a session is asked for."""
        return (
            (self.status is None or (entry.status or "unknown") in self.status)
            and (self.tenant is None or self.tenant == (entry.tenant or ""))
            and (self.agent is None or self.agent == (entry.agent or ""))
            and (self.model is None or self.model == (entry.model or ""))
            and (self.search is None or self.search in entry.session_id)
        )

    def takes_group(self, key: GroupKey) -> bool:
        """Tell whether a group is asked for."""
        wanted = (self.tenant, self.agent, self.model)
        return all(want is None or want == (name or "") for want, name in zip(wanted, key, strict=True))


class Sessions(Struct, array_like=True):
    """One worker's first sessions of a list: how many there are in all, and those, each with what it is sorted by."""

    total: int
    items: list[tuple[tuple[int, float, str], SessionSummary]]


class Halts(Struct, array_like=True):
    """One worker's halts."""

    total: int
    items: list[HaltView]


class Figures(Struct, array_like=True):
    """One worker's part of the summary."""

    groups: list[tuple[GroupKey, Partial]]
    alerts: dict[str, int]
    lag: int
    partitions: list[int]


# --- what one worker answers ------------------------------------------------------------------------------------------


def sessions(shards: Iterable[Shard], wanted: Filter, limit: int, after: tuple[int, float, str] | None) -> Sessions:
    """List sessions in the order of their entries, those after a place only."""
    total = 0
    found: list[tuple[tuple[int, float, str], Shard]] = []

    def matching() -> Iterator[tuple[tuple[int, float, str], int, Shard]]:
        nonlocal total
        for number, shard in enumerate(shards):
            for item in shard.index.values():
                if wanted.takes(item):
                    total += 1
                    if after is None or item[:3] > after:
                        yield item[:3], number, shard

    found = [(key, shard) for key, _, shard in heapq.nsmallest(limit, matching())]
    items = []
    for key, shard in found:
        row = shard.shelf.get(key[2])
        if row is not None:
            items.append((key, summary_of(row)))
    return Sessions(total, items)


def halts(shards: Iterable[Shard], open_only: bool, limit: int) -> Halts:
    """List halts: unacknowledged ones first, the oldest first; cleared ones last, the newest first."""
    found: list[HaltView] = []
    for shard in shards:
        for item in shard.index.values():
            if open_only and not item.halted:
                continue
            row = shard.shelf.get(item.session_id)
            if row is not None:
                found += (halt for halt in halts_of(row) if halt.open or not open_only)
    return Halts(len(found), sort_halts(found)[:limit])


def figures(shards: Sequence[Shard], books: Iterable[Book], lag: int) -> Figures:
    """Return a worker's part of the summary."""
    groups = summed(shard.partials.groups for shard in shards)
    kinds: Counter[str] = Counter()
    for book in books:
        kinds.update(alert.kind for alert in book.alerts.values() if alert.status != "cleared")
    return Figures(list(groups.items()), dict(kinds), lag, sorted(shard.partition for shard in shards))


def alerts(books: Iterable[Book], open_only: bool) -> list[Alert]:
    """List alerts."""
    found = (alert for book in books for alert in book.alerts.values())
    return [alert for alert in found if not open_only or alert.status != "cleared"]


def detail(shards: Iterable[Shard], session_id: str, worker: str | None, now: float) -> SessionDetail | None:
    """Describe one session; None: no partition here has it."""
    for shard in shards:
        row = shard.shelf.get(session_id)
        if row is not None and row.is_known():
            return detail_of(row, worker, now)
    return None


# --- a row as it is shown ---------------------------------------------------------------------------------------------


def summary_of(row: Row) -> SessionSummary:
    """Return a session as a list shows it."""
    group, record, found = row.group(), row.standing.record, row.findings
    opened = [halt_view(row, halt_id, state) for halt_id, state in row.open_halts()]
    return SessionSummary(
        session_id=row.session_id,
        tenant=group.tenant,
        agent=group.agent,
        model=group.model,
        status=_status(row.status()),
        since=moment(row.standing.since),
        degraded_since=moment(row.standing.degraded_since),
        awaiting=record is not None and record.awaiting,
        position=max(record.position if record else 0, found.position, row.halts.position, 0),
        checkpoint_id=record.checkpoint.checkpoint_id if record and record.checkpoint else None,
        open_halts=len(opened),
        unacknowledged=sum(1 for halt in opened if halt.ack is None),
        newest_halt=max(opened, key=lambda halt: (halt.position or -1, halt.opened_at or _LONG_AGO), default=None),
        findings=found.total,
        rules=dict(sorted(found.rules.items())),
        latest=_brief(row),
        last_seen=moment(row.last_seen()),
    )


def detail_of(row: Row, worker: str | None, now: float) -> SessionDetail:
    """Return a session with all that is kept of it."""
    findings = sorted((_decode_finding(raw) for raw in row.findings.kept), key=lambda f: f.position)
    return SessionDetail(
        summary=summary_of(row),
        checkpoint=row.standing.record.checkpoint if row.standing.record else None,
        checkpoints=row.standing.checkpoints,
        halts=halts_of(row),
        findings=findings,
        dropped=row.findings.total - len(findings),
        survival=sorted(row.survival(), key=lambda s: (s.model or "", s.what, s.level)),
        first_seen=moment(row.first_seen()),
        worker=worker,
        at=_at(now),
    )


def halts_of(row: Row) -> list[HaltView]:
    """Return a session's halts: open ones first, the newest first; then cleared ones, the newest first."""
    views = [halt_view(row, halt_id, state) for halt_id, state in row.halts.halts.items()]
    opened = sorted((v for v in views if v.open), key=lambda v: (v.position or -1, v.halt_id), reverse=True)
    cleared = sorted(
        (v for v in views if not v.open), key=lambda v: (v.cleared_position or -1, v.halt_id), reverse=True
    )
    return opened + cleared


def halt_view(row: Row, halt_id: str, state: HaltState) -> HaltView:
    """Return a halt as it is shown."""
    ack, group = row.acks.acks.get(halt_id), row.group()
    return HaltView(
        halt_id=halt_id,
        session_id=row.session_id,
        known=state.known,
        open=state.open,
        position=state.position,
        opened_at=moment(state.opened_at),
        checkpoint_id=state.checkpoint_id,
        reason=state.reason,
        finding_ids=state.finding_ids,
        reexpand_from=state.reexpand_from,
        replay_from=state.replay_from,
        cleared_at=moment(state.cleared_at),
        cleared_position=state.cleared_position,
        ack=Ack(by=ack.by, decision=ack.decision, at=moment(ack.at)) if ack else None,
        tenant=group.tenant,
        agent=group.agent,
        model=group.model,
    )


def _brief(row: Row) -> FindingBrief | None:
    if row.findings.latest is None:
        return None
    finding_id, rule, severity, subject, position, at = row.findings.latest
    return FindingBrief(
        finding_id=finding_id, rule=rule, severity=severity, subject=subject, position=position, detected_at=moment(at)
    )


def _status(status: str | None) -> Status | None:
    return status  # type: ignore[return-value]


# --- the answers of all -----------------------------------------------------------------------------------------------


class Answers(Struct, kw_only=True):
    """Say what is known beside the answers of the workers: who did not answer, and what time it is."""

    now: float
    missing: list[Missing] = field(default_factory=list)


def merge_sessions(parts: Iterable[Sessions], limit: int, answers: Answers) -> Page[SessionSummary]:
    """Put the workers' sessions together."""
    total, items = 0, []
    for part in parts:
        total += part.total
        items += part.items
    items.sort(key=lambda item: item[0])
    cut = items[:limit]
    # Whoever has sent as many as were asked for may have more.
    more = len(items) > limit or any(len(part.items) >= limit for part in parts)
    return Page(
        items=[shown for _, shown in cut],
        total=total,
        cursor=write_cursor(cut[-1][0]) if more and cut else None,
        at=_at(answers.now),
        missing=answers.missing,
    )


def merge_halts(parts: Iterable[Halts], limit: int, answers: Answers) -> Page[HaltView]:
    """Put the workers' halts together."""
    total, items = 0, []
    for part in parts:
        total += part.total
        items += part.items
    return Page(items=sort_halts(items)[:limit], total=total, at=_at(answers.now), missing=answers.missing)


def merge_groups(parts: Iterable[Figures], by: Dimension, wanted: Filter, answers: Answers) -> Page[Group]:
    """Put the workers' groups together."""
    # Filtered before they are added up: the models of one tenant are asked for by model and tenant.
    chosen = ({key: partial for key, partial in part.groups if wanted.takes_group(key)} for part in parts)
    found = summed(chosen, by)
    items = [view(by, key, partial, answers.now) for key, partial in found.items()]
    items.sort(key=lambda g: (-g.degraded, -g.open_halts, -g.sessions, g.tenant or "", g.agent or "", g.model or ""))
    return Page(items=items, total=len(items), at=_at(answers.now), missing=answers.missing)


def merge_alerts(parts: Iterable[list[Alert]], answers: Answers) -> Page[Alert]:
    """Put the workers' alerts together."""
    items = [alert for part in parts for alert in part]

    def key(alert: Alert) -> tuple[bool, int, float, str]:
        newest = (alert.cleared_at or alert.raised_at).timestamp()
        return alert.status == "cleared", _SEVERITY[alert.severity], -newest, alert.alert_id

    items.sort(key=key)
    return Page(items=items[:MOST], total=len(items), at=_at(answers.now), missing=answers.missing)


def merge_summary(parts: Mapping[str, Figures], answers: Answers) -> Summary:
    """Put the workers' figures together.

    Args:
        parts: the figures by the worker's URL.
        answers: who did not answer.
    """
    total, kinds = Partial(), Counter[str]()
    for part in parts.values():
        kinds.update(part.alerts)
        for _, partial in part.groups:
            total.include(partial)
    return Summary(
        at=_at(answers.now),
        sessions=total.sessions,
        statuses=dict(sorted(total.statuses.items())),
        degraded=sum(number for status, number in total.statuses.items() if status in DEGRADED),
        awaiting=total.awaiting,
        open_halts=total.open_halts,
        unacknowledged=total.unacknowledged,
        rules=rates(total.counts, answers.now),
        survival=survival(total),
        alerts=dict(sorted(kinds.items())),
        last_seen=moment(total.last),
        lag=sum(part.lag for part in parts.values()),
        workers={url: part.partitions for url, part in sorted(parts.items())},
        missing=answers.missing,
    )


def sort_halts(found: Iterable[HaltView]) -> list[HaltView]:
    """Return halts in the order of a list: unacknowledged, in hand, cleared."""

    def key(halt: HaltView) -> tuple[int, float, str, str]:
        if not halt.open:
            return 2, -halt.cleared_at.timestamp() if halt.cleared_at else 0.0, halt.session_id, halt.halt_id
        opened = halt.opened_at.timestamp() if halt.opened_at else 0.0
        return (1 if halt.ack else 0), opened, halt.session_id, halt.halt_id

    return sorted(found, key=key)


# --- cursors ----------------------------------------------------------------------------------------------------------

_decode_cursor = msgspec.json.Decoder(tuple[int, float | None, str]).decode


def write_cursor(place: tuple[int, float, str]) -> str:
    """Return a place in a list as a cursor."""
    rank, since, session_id = place
    return base64.urlsafe_b64encode(msgspec.json.encode((rank, None if since == inf else since, session_id))).decode()


def read_cursor(cursor: str | None) -> tuple[int, float, str] | None:
    """Return the place that a cursor stands for.

    Raises:
        ValueError: it is no cursor.
    """
    if not cursor:
        return None
    try:
        rank, since, session_id = _decode_cursor(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise ValueError("this is no cursor of a list of sessions: begin again without one") from None
    return rank, inf if since is None else since, session_id


def held(limit: int) -> int:
    """Return a limit that is held to `MOST`."""
    return max(1, min(limit, MOST))


def _at(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)


_LONG_AGO = datetime.fromtimestamp(0, UTC)
