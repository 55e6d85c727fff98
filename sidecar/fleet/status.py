"""How the fleet stands, for a terminal: asked over HTTP, as anybody else would ask."""

from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.engine.rules import CATALOGUE
from sidecar.fleet.page.views import STATUS_WORDS, go_on
from sidecar.fleet.queries import DEGRADED, Missing, Page, SessionSummary, Summary
from sidecar.fleet.shown import counted, lasting, shown
from sidecar.fleet.timeline import plain
from sidecar.protocol.api import Problem
from sidecar.protocol.outputs import Alert

_SECONDS = 15.0
_COLOURS = {
    "corrupt": "bold magenta",
    "lossy": "red",
    "degraded": "red",
    "unverified": "yellow",
    "unjudged": "yellow",
    "stale": "yellow",
    "verified": "green",
}


class StatusError(Exception):
    """Say why the fleet cannot be asked, and what to do."""


class Standing(Struct, kw_only=True):
    """Hold how the fleet stands: as a whole, its open alerts, and the sessions that need attention most."""

    summary: Summary
    alerts: Page[Alert]
    sessions: Page[SessionSummary]


async def ask(url: str, token: str | None = None, limit: int = 10) -> Standing:
    """Ask a worker how the fleet stands.

    Args:
        url: where it serves.
        token: what it asks for, where it does.
        limit: how many sessions to name.

    Raises:
        StatusError: it does not answer, or not as a fleet does.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StatusError(f"--url {shown(url)!r} is no address: give http://HOST:PORT or https://HOST:PORT")
    base = url.rstrip("/")
    degraded = ",".join(sorted(DEGRADED))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
            # One after the other: what the first cannot be asked need not be asked of the others.
            summary = await _get(client, f"{base}/v1/fleet", Summary)
            alerts = await _get(client, f"{base}/v1/fleet/alerts", Page[Alert])
            worst = f"{base}/v1/fleet/sessions?status={degraded}&limit={max(1, limit)}"
            sessions = await _get(client, worst, Page[SessionSummary])
    except TimeoutError:
        raise StatusError(f"the fleet at {shown(base)} did not answer within {_SECONDS:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise StatusError(
            f"the fleet at {shown(base)} cannot be reached ({shown(str(error))}): does `sidecar fleet` run there?"
            " Another address is given with --url"
        ) from None
    return Standing(summary=summary, alerts=alerts, sessions=sessions)


async def _get(client: aiohttp.ClientSession, url: str, kind: Any) -> Any:
    async with client.get(url, allow_redirects=False) as answer:
        body = await answer.read()
    if answer.status == 200:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise StatusError(
                f"{shown(url)} does not answer as a fleet does ({shown(str(error))}): is the address that of"
                " `sidecar fleet` (port 9465, unless configured), and of the same version?"
            ) from None
    try:
        problem = msgspec.json.decode(body, type=Problem)
        why = "; ".join(reason.detail for reason in problem.reasons)
    except msgspec.MsgspecError:
        why = "it gives no reason; is this the address of `sidecar fleet` (port 9465, unless configured)?"
    hint = " Give the token with --token-file." if answer.status == 401 else ""
    raise StatusError(f"{shown(url)} answers {answer.status}: {shown(why, 400)}{hint}")


def good(standing: Standing) -> bool:
    """Tell whether nothing is degraded, no alert is open, and every worker has answered."""
    return not (standing.summary.degraded or standing.alerts.items or _gaps(standing))


def render(console: Console, standing: Standing, limit: int | None = None) -> None:
    """Write how the fleet stands."""
    summary, now = standing.summary, standing.summary.at
    if not console.is_terminal:
        console.width = 200  # a file has none
    for gap in _gaps(standing):
        who = shown(gap.worker, 80) if gap.worker else "a worker"
        parts = f" (partitions {', '.join(map(str, gap.partitions[:20]))})" if gap.partitions else ""
        _say(console, f"INCOMPLETE: {who}{parts} did not answer: {shown(gap.reason)}", "bold yellow")
    if not summary.sessions:
        _say(console, "No session has been heard of yet.")
        return
    least = "at least " if _gaps(standing) else ""
    text = f"{least}{summary.degraded:,} of {counted(summary.sessions, 'session')} degraded"
    text += f", {counted(summary.open_halts, 'open halt')} ({summary.unacknowledged:,} in nobody's hands)"
    _say(console, text, "bold red" if summary.degraded else "bold green")
    by_status = Text()
    for status in STATUS_WORDS:
        if count := summary.statuses.get(status, 0):
            by_status.append(f"{status} {count:,}  ", style=_COLOURS.get(status, ""))
    console.print(by_status)
    for alert in standing.alerts.items:
        age = lasting((now - alert.since).total_seconds())
        subject = shown(alert.subject or f"no {alert.subject_type}", 60)
        _say(console, "")
        _say(console, f"{alert.severity.upper()} {alert.kind} ({alert.subject_type} {subject}, for {age})", "bold")
        _say(console, f"  {shown(alert.message, 400)}")
        _say(console, f"  Do: {shown(alert.remedy, 400)}")
    shown_sessions = standing.sessions.items[: limit if limit is not None else len(standing.sessions.items)]
    if not shown_sessions:
        return
    _say(console, "")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("status", "for", "session", "why", "what to do"):
        table.add_column(name, overflow="fold", no_wrap=name in ("status", "for"))
    for session in shown_sessions:
        table.add_row(*_row(session, now))
    console.print(table)
    if (left := standing.sessions.total - len(shown_sessions)) > 0:
        _say(console, f"and {counted(left, 'more session')}; the board has all: /board on the same address")


def _row(session: SessionSummary, now: datetime) -> list[Text]:
    status = session.status or "unknown"
    since = session.degraded_since or session.since
    halt = session.newest_halt
    reasons = list(halt.reason) if halt is not None and halt.known else []
    rules = reasons or sorted(session.rules, key=lambda r: _severity(r))
    todo = plain(go_on(halt)) or (CATALOGUE[rules[0]].remedy if rules and rules[0] in CATALOGUE else "")
    return [
        Text(status, style=_COLOURS.get(status, "")),
        Text(lasting((now - since).total_seconds()) if since else "?"),
        Text(shown(session.session_id, 60)),
        Text(", ".join(shown(r, 40) for r in rules[:3])),
        Text(todo),
    ]


def _severity(rule: str) -> int:
    entry = CATALOGUE.get(rule)
    return ("critical", "error", "warning").index(entry.severity) if entry is not None else 1


def _gaps(standing: Standing) -> list[Missing]:
    found: dict[tuple[str | None, str], Missing] = {}
    for gap in (*standing.summary.missing, *standing.alerts.missing, *standing.sessions.missing):
        found.setdefault((gap.worker, gap.reason), gap)
    return list(found.values())


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
