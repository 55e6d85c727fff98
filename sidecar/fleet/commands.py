"""The commands `sidecar halts` (list, follow, ack) and `sidecar fleet status`."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from sidecar.fleet.shown import counted, lasting, listed, shown

if TYPE_CHECKING:
    from rich.console import Console

    from sidecar.config import Settings
    from sidecar.fleet.haltlog import Acked, OpenHalt, Reader
    from sidecar.protocol.outputs import Halt, HaltAck

F = TypeVar("F", bound=Callable[..., Any])
_encode = msgspec.json.Encoder(order="deterministic").encode


class _Unusable(click.ClickException):
    """Say that what was given cannot be used."""

    exit_code = 2


def _kafka_option(command: F) -> F:
    return click.option(
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help="Kafka brokers to start from (default: the setting kafka.bootstrap_servers).",
    )(command)


def _json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")(command)


# --- halts ------------------------------------------------------------------------------------------------------------


@click.group()
def halts() -> None:
    """Show the halts that are open, follow them, and take one in hand.

    A halt says that a session's irreversible actions are to be refused. It is cleared by what the session's log says
    next (a verified checkpoint, a reconcile, a safe resume), never by a person: acknowledging one tells the others,
    and the fleet's alerts, who has taken it in hand.

    \b
    Examples:
      sidecar halts list
      sidecar halts follow --json
      sidecar halts ack 3f9a… --by ada --decision "replaying from 120"
    """


@halts.command("list")
@_kafka_option
@_json_option
@click.option("--session", "session_id", metavar="ID", help="Only this session's.")
@click.pass_obj
def list_halts(obj: dict[str, Any], /, bootstrap_servers: str | None, as_json: bool, session_id: str | None) -> None:
    """Print the open halts: the topic is read to its end, those that nobody has taken in hand come first.

    \b
    Examples:
      sidecar halts list
      sidecar halts list --session acme-7-00012
      sidecar halts list --json | jq -r 'select(.ack == null) | .halt_id'
    """
    settings = _settings(obj, bootstrap_servers)

    async def work() -> "list[OpenHalt]":
        async with await _reader(settings) as reader:
            return reader.log.open()

    found = [halt for halt in _run(work()) if session_id in (None, halt.session_id)]
    if as_json:
        for halt in found:
            click.echo(_encode(_row(halt)).decode())
        return
    from rich.console import Console

    if not found:
        click.echo("No halt is open." if session_id is None else f"No halt of {shown(session_id)} is open.")
        return
    _table(Console(), found)
    waiting = sum(halt.ack is None for halt in found)
    click.echo(f"{counted(len(found), 'open halt')}, {waiting} of them in nobody's hands.", err=True)
    if waiting:
        click.echo("Take one in hand: sidecar halts ack HALT_ID --by NAME --decision TEXT", err=True)


@halts.command()
@_kafka_option
@_json_option
@click.pass_obj
def follow(obj: dict[str, Any], /, bootstrap_servers: str | None, as_json: bool) -> None:
    """Print the open halts, then every halt, clearing and acknowledgement as it happens, until Ctrl-C.

    With --json a line is {"event": "open" | "halt" | "clear" | "ack", …}; `open` stands for what was open at the start.

    \b
    Examples:
      sidecar halts follow
      sidecar halts follow --json | my-pager
    """
    from sidecar.protocol.outputs import Halt

    settings = _settings(obj, bootstrap_servers)

    async def work() -> None:
        async with await _reader(settings) as reader:
            for halt in reader.log.open():
                click.echo(_encode({"event": "open", **_row(halt)}).decode() if as_json else _standing(halt))
            click.echo("following; end with Ctrl-C", err=True)
            async for event in reader.follow():
                if as_json:
                    name = event.status if isinstance(event, Halt) else "ack"
                    click.echo(_encode({"event": name, **msgspec.to_builtins(event)}).decode())
                else:
                    click.echo(_line(event))
                sys.stdout.flush()

    try:
        _run(work())
    except KeyboardInterrupt:
        sys.exit(130)


@halts.command()
@_kafka_option
@click.argument("halt_id", metavar="HALT_ID")
@click.option("--by", metavar="NAME", required=True, help="Who takes it in hand.")
@click.option("--decision", metavar="TEXT", required=True, help="What is going to be done.")
@click.pass_obj
def ack(obj: dict[str, Any], /, bootstrap_servers: str | None, halt_id: str, by: str, decision: str) -> None:
    """Take an open halt in hand: say who, and what is going to be done.

    HALT_ID may be shortened, as long as only one open halt begins so. The halt stays open until the session's log
    clears it; what ends is the waiting for somebody to look.

    \b
    Example:
      sidecar halts ack 3f9a01c2 --by ada --decision "re-expanding from checkpoint-3"
    """
    from sidecar.fleet.haltlog import publish_ack, reach
    from sidecar.protocol.outputs import HaltAck

    by, decision, halt_id = by.strip(), decision.strip(), halt_id.strip()
    for name, value in (("--by", by), ("--decision", decision), ("HALT_ID", halt_id)):
        if not value:
            raise click.BadParameter("is empty", param_hint=name)
    settings = _settings(obj, bootstrap_servers)

    async def work() -> "OpenHalt":
        options = await reach(settings)
        async with await _reader(settings, options) as reader:
            halt = _the_one(reader, halt_id)
        record = HaltAck(halt_id=halt.halt_id, by=by, decision=decision)
        await publish_ack(options, settings.topics.halt_acks, halt.session_id, record)
        return halt

    halt = _run(work())
    click.echo(f"{shown(by)} has halt {halt.halt_id} of {shown(halt.session_id)} in hand: {shown(decision)}", err=True)
    if halt.ack is not None:
        click.echo(f"Before, {shown(halt.ack.by)} had it in hand: {shown(halt.ack.decision)}", err=True)
    if halt.halt is not None:
        click.echo(f"Why it was opened: {listed(halt.halt.reason)}. {_advice(halt.halt)}", err=True)


def _the_one(reader: "Reader", halt_id: str) -> "OpenHalt":
    """Return the open halt that is meant.

    Raises:
        ClickException: none is, or several are.
    """
    found = reader.log.find(halt_id)
    if len(found) == 1:
        return found[0]
    if found:
        ids = listed([halt.halt_id for halt in found])
        raise _Unusable(f"{shown(halt_id)} is the beginning of {counted(len(found), 'open halt')}: {ids}")
    cleared = reader.log.cleared.get(halt_id)
    if cleared is not None:
        raise click.ClickException(
            f"halt {halt_id} is not open: it was cleared at position {cleared.position}"
            f" of {shown(cleared.session_id)}; there is nothing left to take in hand"
        )
    raise click.ClickException(f"no halt {shown(halt_id)} is open; `sidecar halts list` shows those that are")


# --- fleet status -----------------------------------------------------------------------------------------------------


@click.command("status")
@click.option(
    "--url",
    default="http://127.0.0.1:9465",
    show_default=True,
    metavar="URL",
    help="Where `sidecar fleet` serves (any of its workers).",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token that the fleet asks for (not needed on loopback).",
)
@click.option("--limit", type=click.IntRange(0, 200), default=10, show_default=True, help="Sessions that are named.")
@_json_option
@click.option(
    "--check", is_flag=True, help="Exit with 1 if a session is degraded, an alert is open, or not all is known."
)
def status(url: str, token_file: Path | None, limit: int, as_json: bool, check: bool) -> None:
    """Say how the fleet stands: sessions by status, open alerts, the worst sessions and what to do about them.

    \b
    Exit status:
      0  the fleet has answered
      1  (--check) something is degraded, an alert is open, or some worker did not answer
      2  the fleet cannot be asked

    \b
    Examples:
      sidecar fleet status
      sidecar fleet status --url https://fleet.internal:9465 --token-file /run/secrets/fleet --check
    """
    from sidecar.fleet.status import StatusError, ask, good, render

    token = token_file.read_text(encoding="utf-8").strip() if token_file else None
    try:
        answer = asyncio.run(ask(url, token, limit))
    except StatusError as error:
        raise _Unusable(str(error)) from None
    if as_json:
        click.echo(_encode(answer).decode())
    else:
        from rich.console import Console

        render(Console(), answer, limit)
    sys.exit(1 if check and not good(answer) else 0)


# --- what they share --------------------------------------------------------------------------------------------------


def _settings(obj: dict[str, Any], bootstrap_servers: str | None) -> "Settings":
    """Load the settings and set logging up; a mistake in them ends the program with what to change."""
    from sidecar.config import Settings, SettingsError
    from sidecar.observe import logs

    given = {**(obj or {}), "kafka__bootstrap_servers": bootstrap_servers}
    path = given.pop("config", None)
    try:
        settings = Settings.load(path, **{key: value for key, value in given.items() if value is not None})
    except SettingsError as error:
        raise _Unusable(str(error)) from None
    logs.setup(settings.log.level, settings.log.format, library_level=settings.log.library_level)
    return settings


async def _reader(settings: "Settings", options: dict[str, Any] | None = None) -> "Reader":
    from sidecar.fleet.haltlog import Reader, reach

    return Reader(options or await reach(settings), settings.topics.halts, settings.topics.halt_acks)


T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> T:
    from sidecar.config import SettingsError
    from sidecar.fleet.haltlog import HaltLogError

    try:
        return asyncio.run(work)
    except (HaltLogError, SettingsError) as error:
        raise click.ClickException(str(error)) from None


def _row(halt: "OpenHalt") -> dict[str, Any]:
    """Return an open halt as it is printed for programs; `opened` is null where its opening is no longer there."""
    opened = msgspec.to_builtins(halt.halt) if halt.halt is not None else None
    acked = {"by": halt.ack.by, "decision": halt.ack.decision, "at": _when(halt.ack).isoformat()} if halt.ack else None
    return {"halt_id": halt.halt_id, "session_id": halt.session_id, "opened": opened, "ack": acked}


def _table(console: "Console", found: "list[OpenHalt]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        console.width = 220  # a file has none
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("halt", no_wrap=True)
    table.add_column("session", overflow="fold")
    table.add_column("open for", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    table.add_column("go on from", overflow="fold")
    table.add_column("in hand", overflow="fold")
    for halt in found:
        opened = halt.halt
        hand = f"{shown(halt.ack.by, 40)}: {shown(halt.ack.decision, 80)}" if halt.ack else "nobody"
        table.add_row(
            Text(halt.halt_id),
            Text(shown(halt.session_id, 60)),
            Text(_age(opened)),
            Text(listed(opened.reason) if opened else "(opened before what the topic still holds)"),
            Text(_from(opened) if opened else "?"),
            Text(hand, style="" if halt.ack else "bold red"),
        )
    console.print(table)


def _standing(halt: "OpenHalt") -> str:
    hand = f"in the hands of {shown(halt.ack.by, 40)}" if halt.ack else "in nobody's hands"
    why = listed(halt.halt.reason) if halt.halt else "opened before what the topic still holds"
    return f"open   {halt.halt_id}  {shown(halt.session_id, 60)}: {why}; {hand}"


def _line(event: "Halt | HaltAck") -> str:
    """Return an event as a line for people."""
    from sidecar.protocol.outputs import Halt

    if not isinstance(event, Halt):
        return f"ack    {shown(event.halt_id, 40)}  {shown(event.by, 40)}: {shown(event.decision)}"
    head = f"{event.status:<6} {event.halt_id}  {shown(event.session_id, 60)} at {event.position}"
    if event.status == "clear":
        left = counted(len(event.open_halts), "halt") + " still open" if event.open_halts else "no halt open any more"
        return f"{head}: {left}"
    return f"{head}: {listed(event.reason)}. {_advice(event)}"


def _advice(halt: "Halt") -> str:
    if halt.replay_from is msgspec.UNSET:
        return ""
    if halt.reexpand_from in (None, msgspec.UNSET):
        return f"No checkpoint can be trusted: replay the log from position {halt.replay_from}."
    return f"Re-expand from {shown(str(halt.reexpand_from), 60)}, or replay the log from position {halt.replay_from}."


def _from(halt: "Halt") -> str:
    if halt.replay_from is msgspec.UNSET:
        return "?"
    if halt.reexpand_from in (None, msgspec.UNSET):
        return f"position {halt.replay_from}"
    return f"{shown(str(halt.reexpand_from), 60)}, or position {halt.replay_from}"


def _age(halt: "Halt | None") -> str:
    if halt is None or halt.detected_at is msgspec.UNSET:
        return "?"
    return lasting((datetime.now(UTC) - halt.detected_at).total_seconds())


def _when(acked: "Acked") -> datetime:
    return datetime.fromtimestamp(acked.at / 1000, UTC)
