"""The command line. Each command says what it takes; the work is done by the package it names.

Imports of the parts that need Kafka or HTTP stand inside the commands, so that `check` and `--help` are quick.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import click
import msgspec

from sidecar import __version__
from sidecar.fleet import commands

if TYPE_CHECKING:
    from sidecar.config import Settings
    from sidecar.guard.api import GuardApi
    from sidecar.observe.health import Health
    from sidecar.observe.metrics import Metrics

F = TypeVar("F", bound=Callable[..., Any])

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Unusable(click.ClickException):
    """Say that what was given cannot be used: exit status 2, because 1 means that `check` found something."""

    exit_code = 2


class _Group(click.Group):
    """Keep the commands in the order in which they are met, and suggest what may have been meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args and args[0] not in self.commands and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.commands, 1)
            hint = f" Did you mean {close[0]!r}?" if close else " See `sidecar --help`."
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


def _kafka_option(command: F) -> F:
    return click.option(
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help="Kafka brokers to start from (default: the setting kafka.bootstrap_servers).",
    )(command)


def _http_option(command: F) -> F:
    return click.option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve metrics, health and (run, watch) the guard (default: 127.0.0.1:9464; 0: any free port).",
    )(command)


def _guard_option(command: F) -> F:
    return click.option(
        "--no-guard", is_flag=True, help="Answer no agents that ask before they act: metrics and health only."
    )(command)


class _Serving(NamedTuple):
    """Hold what a command that serves works with; `url` is where its guard can be asked."""

    stop: asyncio.Event
    metrics: "Metrics"
    health: "Health"
    guard: "GuardApi | None"
    url: str | None


@click.group(cls=_Group, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="sidecar")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file with settings (default: the one that SIDECAR_CONFIG names); SIDECAR_… variables win over it.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical.")
@click.option("--log-format", metavar="FORMAT", help="json, pretty, or auto (pretty on a terminal).")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, log_level: str | None, log_format: str | None) -> None:
    """Judge the context compactions of LLM agents as they happen.

    A compaction is lossy in ways that its text does not show: the approval and the deploy are both mentioned, and
    which approval allowed which deploy is gone. The sidecar reads the agents' event log and their compaction records,
    and says which checkpoints can no longer be trusted and which sessions must stop acting irreversibly.

    \b
    Begin with:
      sidecar demo                        a simulated fleet, an embedded broker, real findings
      sidecar check session.jsonl         judge a recorded session
      sidecar check --format claude-code transcript.jsonl
      sidecar rules                       what is judged, why, and what to do about it
    """
    ctx.obj = {"config": config, "log__level": log_level, "log__format": log_format}


@cli.command()
@_kafka_option
@_http_option
@click.option("--seed", default=7, show_default=True, help="The fleet is the same for the same seed.")
@click.option(
    "--agents", type=click.IntRange(1), default=24, show_default=True, help="Sessions that run at the same time."
)
@click.option("--sessions", type=click.IntRange(1), default=168, show_default=True, help="Sessions in all.")
@click.option(
    "--seconds", type=click.FloatRange(1), default=11.0, show_default=True, help="How long the fleet takes to run."
)
@click.option("--keep", is_flag=True, help="Go on serving metrics at the end, until Ctrl-C.")
@click.pass_obj
def demo(obj: dict[str, Any], /, bootstrap_servers: str | None, http: str | None, keep: bool, **fleet: Any) -> None:
    """Show it working: an embedded broker, a simulated fleet with planted faults, and the tail on it.

    Findings are shown as they happen. At the end a table compares what was planted with what was flagged; the exit
    status is 0 if everything planted was flagged and nothing else. Needs the extra frontier-sidecar[demo]; without it
    (or with --bootstrap-servers) it says what it runs on instead.
    """
    from sidecar.demo import demo as run_demo

    settings = _settings(obj)
    work = run_demo(http=http, bootstrap_servers=bootstrap_servers, settings=settings, keep=keep, **fleet)
    try:
        sys.exit(asyncio.run(work))
    except KeyboardInterrupt:
        sys.exit(130)


@cli.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "--output",
    type=click.Choice(["findings", "halts", "sessions"]),
    default="findings",
    show_default=True,
    help="What to write on standard output.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="FORMAT",
    help="json or text (of the output; default json), protocol or claude-code (of the input; default protocol). "
    "May be given twice, once for each.",
)
@click.option("--strict", is_flag=True, help="Exit with 2 if any line cannot be read.")
@click.option("--verbose", "-v", is_flag=True, help="Name every unreadable line, and cut no list short.")
@click.option(
    "--midstream",
    type=click.Choice(["skip", "judge"]),
    help="A session whose beginning is not in the files: leave it unjudged, or count what came before as missing"
    " (default: skip, the setting session.midstream).",
)
@click.pass_obj
def check(
    obj: dict[str, Any],
    /,
    files: tuple[str, ...],
    output: Any,
    formats: tuple[str, ...],
    strict: bool,
    verbose: bool,
    midstream: str | None,
) -> None:
    """Judge recorded sessions: JSONL files (-: standard input), read as one stream.

    Findings go to standard output, one JSON object a line; a summary for people goes to standard error. The end of
    the input is the end of all waiting: what is missing by then is missing.

    \b
    Exit status:
      0  no error or critical finding
      1  some
      2  the input cannot be used: a file is missing, holds no readable record, or (--strict) an unreadable line;
         or the output cannot be written
      130  interrupted (Ctrl-C)
      141  the reader of the output has gone (a broken pipe)

    \b
    Examples:
      sidecar check session.jsonl
      sidecar check --format text events.jsonl compactions.jsonl
      sidecar check --output sessions *.jsonl
      kcat -C -e -t agent.events | sidecar check -
    """
    from sidecar.files.check import check as run_check
    from sidecar.files.readers import READERS

    shapes, readers = ("json", "text"), ("protocol", *READERS)
    shape = [f for f in formats if f in shapes]
    reader = [f for f in formats if f in readers]
    unknown = [f for f in formats if f not in shapes and f not in readers]
    if unknown or len(shape) > 1 or len(reader) > 1:
        said = f"{unknown[0]!r} is no format" if unknown else "--format is given twice for the same thing"
        raise click.BadParameter(f"{said}: output {' or '.join(shapes)}, input {' or '.join(readers)}.")
    if output != "findings" and shape == ["text"]:
        raise click.BadParameter("only findings can be written as text; halts and sessions are JSON.")
    limits = _settings(obj, session__midstream=midstream).limits()
    code = run_check(
        files,
        output=output,
        format="text" if shape == ["text"] else "json",
        reader=reader[0] if reader else "protocol",
        limits=limits,
        strict=strict,
        verbose=verbose,
        stdout=sys.stdout,
        stderr=sys.stderr,
    )
    sys.exit(code)


@cli.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps the position across restarts (default: .sidecar).",
)
@click.option(
    "--format", type=click.Choice(["json", "text"]), default="json", show_default=True, help="Of the findings."
)
@click.option(
    "--findings", type=click.Path(dir_okay=False, path_type=Path), help="Append findings to this file instead."
)
@click.option("--halts", type=click.Path(dir_okay=False, path_type=Path), help="Append halts to this file.")
@click.option(
    "--decisions",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append every permission to this file before it is given (default: decisions.jsonl in the state folder).",
)
@_http_option
@_guard_option
@click.pass_obj
def watch(
    obj: dict[str, Any],
    /,
    paths: tuple[str, ...],
    state: Path | None,
    format: Any,
    findings: Path | None,
    halts: Path | None,
    decisions: Path | None,
    http: str | None,
    no_guard: bool,
) -> None:
    """Follow JSONL files, and the *.jsonl files of folders, as they are written; no broker is needed.

    Findings go to standard output as they happen. The position is kept in a state folder: a restart neither repeats
    nor misses anything (on a pipe, the one line that was being written when the process was killed may come again).
    Files may be rotated or truncated, appear later, and end in the middle of a line.

    Agents can ask before they act: POST /v1/authorize and its like, on the address of --http (docs/guard.md).

    \b
    Examples:
      sidecar watch /var/log/agents
      sidecar watch --state /var/lib/sidecar --findings findings.jsonl --halts halts.jsonl agents.jsonl
    """
    from sidecar.files.jsonl import InputError
    from sidecar.files.live import LiveFiles
    from sidecar.files.outbox import apart
    from sidecar.files.store import StateError
    from sidecar.files.watch import watch as run_watch
    from sidecar.observe.logs import get_logger

    settings = _settings(
        obj,
        http=http,
        watch__state_dir=state,
        watch__decisions_file=decisions,
        guard__enabled=False if no_guard else None,
    )
    to_stdout = findings is None or findings == Path("-")
    outputs = {"standard output": Path("/dev/stdout")} if to_stdout else {"--findings": findings}
    outputs |= {"--halts": halts, "the log of decisions": settings.watch.decisions}
    try:
        apart({name: path for name, path in outputs.items() if path is not None})
    except StateError as error:
        raise _Unusable(str(error)) from None

    absent = [path for path in paths if not Path(path).exists()]
    get_logger("sidecar").info("following", paths=list(paths), waiting_for=absent)

    recorded = settings.guard.enabled and settings.guard.decisions == "required"

    async def work(serving: _Serving) -> int:
        sessions = LiveFiles(settings.guard.max_staleness)
        if serving.guard is not None:
            serving.guard.serve(sessions, sessions if recorded else None)
        return await run_watch(
            paths,
            state_dir=settings.watch.state_dir,
            stop=serving.stop,
            limits=settings.limits(),
            poll_interval=settings.watch.poll_interval,
            format=format,
            findings_file=None if to_stdout else findings,
            halts_file=halts,
            stdout=sys.stdout,
            metrics=serving.metrics,
            health=serving.health,
            sessions=sessions,
            on_outcome=serving.guard.note if serving.guard is not None else None,
            decisions_file=settings.watch.decisions if recorded else None,
            idle_after=settings.session.idle_after,
            ttl=settings.session.ttl,
        )

    try:
        sys.exit(_serve(settings, work, broker=False))
    except (InputError, StateError) as error:
        raise _Unusable(str(error)) from None


@cli.command()
@_kafka_option
@_http_option
@_guard_option
@click.option("--group-id", help="Consumer group (default: frontier-sidecar). Replicas of one sidecar share it.")
@click.option(
    "--guarantee",
    type=click.Choice(["exactly_once", "at_least_once"]),
    help="Delivery of findings and halts (default: exactly_once, the setting tail.guarantee).",
)
@click.option("--reset", is_flag=True, help="Start over: judge the inputs again from their first record.")
@click.pass_obj
def run(
    obj: dict[str, Any],
    /,
    bootstrap_servers: str | None,
    http: str | None,
    no_guard: bool,
    group_id: str | None,
    guarantee: str | None,
    reset: bool,
) -> None:
    """Tail the input topics on Kafka, and publish findings, halts and dead letters.

    With exactly_once, findings, halts, dead letters and the input offsets are committed together: consumers that read
    committed records see each once. A broker without transactions needs --guarantee at_least_once: after a crash some
    come again, under the same ids.

    The state is kept on the topic agent.snapshots; a restart goes on from there. --reset is the only way to start
    over: it forgets that state and the offsets (every replica has to be stopped), and every finding is written again.

    Replicas with the same --group-id share the partitions. Missing topics are created unless topics.create is off.
    SIGTERM ends it cleanly: what is under way is delivered and committed, the group is left, exit status 0. What takes
    longer than 28 seconds is named and left (exit status 1); a second SIGTERM ends it at once.

    Agents can ask before they act: POST /v1/authorize and its like, on the address of --http (docs/guard.md). On an
    address that is not loopback the guard needs a token file or client certificates, or --no-guard.

    \b
    Examples:
      sidecar run --bootstrap-servers kafka-1:9092,kafka-2:9092
      SIDECAR_KAFKA__SECURITY_PROTOCOL=SASL_SSL … sidecar --config sidecar.yaml run
    """
    from sidecar.tail.decisions import Decisions
    from sidecar.tail.errors import TailError
    from sidecar.tail.reset import reset as start_over
    from sidecar.tail.tail import Tail

    settings = _settings(
        obj,
        kafka__bootstrap_servers=bootstrap_servers,
        http=http,
        guard__enabled=False if no_guard else None,
        tail__group_id=group_id,
        tail__guarantee=guarantee,
    )
    recorded = settings.guard.enabled and settings.guard.decisions == "required"

    async def work(serving: _Serving) -> int:
        if reset:
            await start_over(settings)
        guard = serving.guard
        note = guard.note if guard is not None else None
        tail = Tail(settings, serving.metrics, serving.health, note, advertise=serving.url)
        decisions = Decisions(settings, settings.guard.decision_timeout) if recorded else None
        if guard is not None:
            guard.serve(tail.sessions, decisions)

        async def stopping() -> None:
            await serving.stop.wait()
            tail.request_stop()

        waiting = asyncio.create_task(stopping())
        try:
            if decisions is not None:
                opening = asyncio.ensure_future(decisions.start())
                await asyncio.wait((opening, waiting), return_when=asyncio.FIRST_COMPLETED)
                if serving.stop.is_set():
                    opening.cancel()
                    return 0
                await opening
            await tail.run()
        finally:
            waiting.cancel()
            if decisions is not None:
                await decisions.close()
        return 0

    try:
        sys.exit(_serve(settings, work, broker=True))
    except TailError as error:
        raise click.ClickException(str(error)) from None


@cli.group(invoke_without_command=True)
@_kafka_option
@click.option(
    "--http", metavar="HOST:PORT", help="Where to serve metrics, health and the board (default: 127.0.0.1:9465)."
)
@click.pass_context
def fleet(ctx: click.Context, /, bootstrap_servers: str | None, http: str | None) -> None:
    """Run a worker of the fleet view: who is degraded, why, since when; alerts; a live board.

    It reads what the tails publish (findings, halts, sessions, acknowledgements), keeps a row for every session, sums
    by tenant, agent and model, and raises alerts on agent.alerts. Workers of one group share the sessions, and each
    answers for all. The board is on the address of --http: open it in a browser.

    \b
    Examples:
      sidecar fleet --bootstrap-servers kafka-1:9092
      sidecar fleet status
    """
    if ctx.invoked_subcommand is not None:
        return
    import signal

    from sidecar.client import Guard
    from sidecar.config import SettingsError
    from sidecar.fleet.command import FleetError, serve
    from sidecar.fleet.edges import edges_of
    from sidecar.guard.tls import tls_context
    from sidecar.observe.http import ServeError
    from sidecar.tail.errors import TailError
    from sidecar.tail.topics import prepare_fleet

    settings = _settings(ctx.obj, kafka__bootstrap_servers=bootstrap_servers, http=http)

    async def work() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        edges = edges_of(settings, Guard)
        try:
            await serve(settings, stop, prepare_fleet, tls=tls_context(settings.guard), edges=edges)
        finally:
            if edges is not None:
                await edges.aclose()

    try:
        asyncio.run(work())
    except SettingsError as error:
        raise _Unusable(str(error)) from None
    except (FleetError, ServeError, TailError) as error:
        raise click.ClickException(str(error)) from None


@cli.command()
@_kafka_option
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_obj
def emit(obj: dict[str, Any], /, bootstrap_servers: str | None, files: tuple[str, ...]) -> None:
    """Publish JSONL files (-: standard input), each record keyed by its session, to the topic of its kind.

    Lines that are no records go to the events topic as they are, so that the dead-letter topic shows them.

    \b
    Examples:
      sidecar emit session.jsonl
      my-agent | sidecar emit --bootstrap-servers localhost:9092 -
    """
    from sidecar.tail.errors import TailError
    from sidecar.tail.publish import emit as publish_files

    for file in files:  # before the broker is asked
        if file != "-" and not Path(file).is_file():
            raise _Unusable(f"there is no file {file!r}")
    settings = _settings(obj, kafka__bootstrap_servers=bootstrap_servers)
    try:
        published = asyncio.run(publish_files(files, settings))
    except (TailError, OSError) as error:
        raise click.ClickException(str(error)) from None
    for refused in published.refused:
        click.echo(f"{refused.file}:{refused.line}: {refused.reason}", err=True)
    topics = ", ".join(f"{count} to {topic}" for topic, count in published.topics.items()) or "nothing"
    click.echo(f"published {topics}; {published.others} lines were no records", err=True)
    sys.exit(1 if published.refused else 0)


@cli.command()
@_kafka_option
@click.option("--seed", default=7, show_default=True, help="The fleet is the same for the same seed.")
@click.option(
    "--agents", type=click.IntRange(1), default=8, show_default=True, help="Sessions that run at the same time."
)
@click.option("--sessions", type=click.IntRange(1), default=100, show_default=True, help="Sessions in all.")
@click.option(
    "--fault-rate",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of sessions that a fault is planted in.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Records per second (default: as fast as they are taken)."
)
@click.option("--stdout", is_flag=True, help="Write the records as JSONL to standard output instead of publishing.")
@click.option(
    "--planted",
    type=click.File("wb", lazy=False),
    help="Write what was planted to this file: a JSON object a line, with the findings that have to come of it.",
)
@click.pass_obj
def simulate(
    obj: dict[str, Any],
    /,
    bootstrap_servers: str | None,
    seed: int,
    agents: int,
    sessions: int,
    fault_rate: float,
    rate: float | None,
    stdout: bool,
    planted: BinaryIO | None,
) -> None:
    """Publish a simulated fleet: agents that run, compact, crash and resume, with faults at known rates.

    \b
    Examples:
      sidecar simulate --bootstrap-servers localhost:9092 --rate 200
      sidecar simulate --stdout --seed 3 --planted planted.jsonl | sidecar check -
    """
    from sidecar.simulate import FAULTS, FaultRates, Fleet
    from sidecar.tail.errors import TailError
    from sidecar.tail.publish import publish

    settings = _settings(obj, kafka__bootstrap_servers=bootstrap_servers)
    fleet = Fleet(seed, agents=agents, sessions=sessions, faults=FaultRates.uniform(fault_rate, FAULTS))
    if stdout:
        for message in fleet.messages():
            sys.stdout.buffer.write(message.value + b"\n")
        sys.stdout.buffer.flush()
    else:
        try:
            published = asyncio.run(publish(fleet.messages(), settings, rate=rate))
        except TailError as error:
            raise click.ClickException(str(error)) from None
        topics = ", ".join(f"{count} to {topic}" for topic, count in published.topics.items())
        click.echo(f"published {topics}; planted {len(fleet.planted)} faults in {sessions} sessions", err=True)
    if planted is not None:
        planted.writelines(msgspec.json.encode(p, order="deterministic") + b"\n" for p in fleet.planted)


@cli.command()
@_kafka_option
@click.option("--create", is_flag=True, help="Create the topics that are missing.")
@click.option(
    "--partitions", type=click.IntRange(1), help="Partitions of topics that are created (default: the setting)."
)
@click.option(
    "--format",
    type=click.Choice(["table", "json", "commands"]),
    default="table",
    show_default=True,
    help="How to print them; `commands`: as kafka-topics.sh calls for whoever may create topics.",
)
@click.pass_obj
def topics(
    obj: dict[str, Any], /, bootstrap_servers: str | None, create: bool, partitions: int | None, format: Any
) -> None:
    """Print, or create, every topic that the sidecar needs, with its partitions and cleanup policy.

    Both input topics need the same number of partitions, so that a session's records meet in one task.

    \b
    Examples:
      sidecar topics
      sidecar topics --create --partitions 12 --bootstrap-servers kafka-1:9092
      sidecar topics --format commands
    """
    from sidecar.tail.errors import TailError
    from sidecar.tail.planned import ALL_ROLES, plan
    from sidecar.tail.topics import create_missing, render

    settings = _settings(obj, kafka__bootstrap_servers=bootstrap_servers)
    if create:
        try:
            done = asyncio.run(
                create_missing(settings, create=True, partitions=partitions, only=ALL_ROLES, party="setup")
            )
        except TailError as error:
            raise click.ClickException(str(error)) from None
        for spec in done.existing:
            click.echo(f"exists   {spec.name}")
        for spec in done.created:
            click.echo(f"created  {spec.name} ({spec.partitions} partitions)")
    else:
        click.echo(render(plan(settings, partitions), format, ",".join(settings.kafka.bootstrap_servers)))


@cli.command()
@_kafka_option
@click.option(
    "--format",
    type=click.Choice(["table", "yaml", "commands"]),
    default="table",
    show_default=True,
    help="How to print them; `commands`: as kafka-acls.sh calls for whoever may grant them.",
)
@click.option(
    "--principal",
    "principals",
    multiple=True,
    metavar="PARTY=PRINCIPAL",
    help="Who a party is on the brokers: tail=User:CN=tail (default: User:frontier-PARTY). May be repeated.",
)
@click.pass_obj
def acls(obj: dict[str, Any], /, bootstrap_servers: str | None, format: Any, principals: tuple[str, ...]) -> None:
    """Print which permission on the brokers each party needs, and no more: setup, tail, fleet, agents, ….

    \b
    Examples:
      sidecar acls
      sidecar acls --format commands --principal tail=User:sidecar --bootstrap-servers kafka-1:9092
    """
    from sidecar.tail.acls import plan, render

    given = dict(principal.partition("=")[::2] for principal in principals)
    settings = _settings(obj, kafka__bootstrap_servers=bootstrap_servers)
    try:
        click.echo(render(plan(settings), format, ",".join(settings.kafka.bootstrap_servers), given))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--principal") from None


@cli.command()
@click.option("--http", metavar="HOST:PORT", help="Where it serves (default: the settings http.host and http.port).")
@click.option("--ready", is_flag=True, help="Ask whether it is ready (/readyz), not only alive (/healthz).")
@click.option("--timeout", type=click.FloatRange(0, 60, min_open=True), default=3.0, show_default=True, help="Seconds.")
@click.pass_obj
def health(obj: dict[str, Any], /, http: str | None, ready: bool, timeout: float) -> None:
    """Ask the sidecar of this machine, or of this container, how it is: exit status 0 if well, else 1 and the reasons.

    \b
    Examples:
      sidecar health
      sidecar health --ready --http 127.0.0.1:9465
    """
    from sidecar.observe.probe import ask

    settings = _settings(obj, http=http)
    answer = ask(
        settings.http.host,
        settings.http.port,
        "readyz" if ready else "healthz",
        certificate=settings.guard.tls_certfile,
        timeout=timeout,
    )
    for reason in answer.reasons:
        click.echo(reason, err=True)
    sys.exit(0 if answer.ok else 1)


@cli.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the catalogue for programs.")
def rules(name: str | None, as_json: bool) -> None:
    """List the rules, or explain one: what it means, why it matters, what to do.

    \b
    Examples:
      sidecar rules
      sidecar rules edge_hallucinated
      sidecar rules --json
    """
    from difflib import get_close_matches

    from sidecar.engine import rules_text
    from sidecar.engine.rules import CATALOGUE

    if name is not None and name not in CATALOGUE:
        close = get_close_matches(name, CATALOGUE, 1)
        hint = f" Did you mean {close[0]!r}?" if close else " `sidecar rules` lists them."
        raise click.BadParameter(f"there is no rule {name!r}.{hint}", param_hint="NAME")
    if as_json:
        entries = [entry for entry in rules_text.as_json() if name in (None, entry["name"])]
        _print_json(entries[0] if name else entries)
    else:
        click.echo(rules_text.explain(name) if name else rules_text.table())


@cli.command()
@click.argument("name", required=False)
def runbook(name: str | None) -> None:
    """List the alerts, or say what to do about one: what it means, how to look, when it is over.

    \b
    Examples:
      sidecar runbook
      sidecar runbook FrontierDegraded
    """
    from difflib import get_close_matches

    from sidecar.observe.runbooks import INDEX, pages

    known = {page.lower(): page for page in pages()}
    wanted = (name or INDEX).lower()
    if wanted not in known:
        close = get_close_matches(wanted, known, 1)
        hint = f" Did you mean {known[close[0]]!r}?" if close else " `sidecar runbook` lists them."
        raise click.BadParameter(f"there is no alert {name!r}.{hint}", param_hint="NAME")
    click.echo(pages()[known[wanted]].rstrip("\n"))


@cli.command()
@click.argument("kind", type=click.Choice(["json-schema", "asyncapi", "openapi"]), default="json-schema")
@click.pass_obj
def schema(obj: dict[str, Any], kind: str) -> None:
    """Print the JSON Schema of every record, an AsyncAPI 3 document of every topic, or an OpenAPI 3.1 one of the guard.

    All are made from the types that the sidecar itself decodes and encodes with.

    \b
    Examples:
      sidecar schema > records.schema.json
      sidecar schema asyncapi > asyncapi.json
      sidecar schema openapi > guard.json
    """
    from sidecar.engine import rules_text
    from sidecar.engine.rules import CATALOGUE
    from sidecar.protocol.openapi import openapi

    if kind == "json-schema":
        _print_json(rules_text.json_schema())
        return
    if kind == "openapi":
        _print_json(openapi(CATALOGUE))
        return
    topics = _settings(obj).topics
    names = {role: name for role, name in topics.model_dump().items() if isinstance(name, str)}
    _print_json(rules_text.asyncapi(names, topics.partitions))


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _settings(obj: dict[str, Any], **overrides: Any) -> "Settings":
    """Load the settings and set logging up; a mistake in them ends the program with what to change."""
    from sidecar.config import Settings, SettingsError
    from sidecar.observe import logs

    given = {**obj, **overrides}
    path = given.pop("config", None)
    try:
        settings = Settings.load(path, **{key: value for key, value in given.items() if value is not None})
    except SettingsError as error:
        raise _Unusable(str(error)) from None
    logs.setup(settings.log.level, settings.log.format, library_level=settings.log.library_level)
    return settings


def _serve(settings: "Settings", work: Callable[[_Serving], Coroutine[Any, Any, int]], *, broker: bool) -> int:
    """Serve metrics, health and the guard while something works; SIGTERM and Ctrl-C end it cleanly, twice: at once."""
    import time

    from sidecar.config import SettingsError
    from sidecar.guard.access import Access
    from sidecar.guard.api import GuardApi
    from sidecar.guard.tls import tls_context
    from sidecar.observe.connections import ConnectionLimits
    from sidecar.observe.ending import Ending
    from sidecar.observe.health import Health
    from sidecar.observe.http import HttpServer, ServeError
    from sidecar.observe.logs import get_logger
    from sidecar.observe.metrics import Metrics

    async def serve() -> int:
        metrics = Metrics(topics=settings.topics.inputs, broker=broker)
        given = settings.health
        health = Health(
            time.monotonic(),
            stall_after=given.stall_after,
            join_after=given.join_after,
            ready_lag=given.ready_lag,
        )
        tls = tls_context(settings.guard)
        http = settings.http
        limits = ConnectionLimits(http.max_connections, http.max_connections_per_peer)
        server = HttpServer(http.host, http.port, metrics, health, tls=tls, limits=limits)
        guard = GuardApi(settings.guard, Access.of(settings), metrics) if settings.guard.enabled else None
        if guard is not None:
            guard.mount(server)
        stop = asyncio.Event()

        def end() -> None:
            stop.set()
            if guard is not None:
                guard.close()

        ending.attend(end)
        await server.start()
        served = "metrics, health and the guard" if guard is not None else "metrics and health"
        get_logger("sidecar").info(f"serving {served}", address=server.url)
        try:
            return await work(_Serving(stop, metrics, health, guard, settings.advertised(server.port)))
        finally:
            end()
            await server.stop()

    try:
        with Ending() as ending:
            return asyncio.run(serve())
    except SettingsError as error:
        raise _Unusable(str(error)) from None
    except ServeError as error:
        raise click.ClickException(str(error)) from None


# The commands of the fleet import what they need when they are called, as those above do.
fleet.add_command(commands.status)
cli.add_command(commands.halts)


def main() -> None:
    """Run the command line; what goes wrong with its streams is one line and exit status 2, never that of a finding."""
    # The next file that is opened would take a closed stream's number, and what is meant for the stream would go there.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    closed = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    if closed:
        _complain(f"{' and '.join(closed)} must not be closed; /dev/null will do")
        sys.exit(2)
    try:
        code = _run_command()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except OSError as error:
        code = 2
        where = f" {error.filename}" if error.filename is not None else ""
        _complain(f"cannot read or write{where}: {error.strerror or error}")
    # What could not be written is still in the buffers, and the interpreter would complain of it at its end.
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            _discard(number)
    sys.exit(code)


def _run_command() -> int | str | None:
    """Run what the command line names, and return the exit status."""
    try:
        given = cli.main(prog_name="sidecar", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return 130
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None  # click exits with 1, which means that `check` found something
        return end.code
    return given if isinstance(given, int) else 0


def _complain(problem: str) -> None:
    """Say what is wrong on standard error, if anybody can hear it."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"Error: {problem}\n")
            sys.stderr.flush()


def _discard(number: int) -> None:
    """Send what is still to be written to a standard stream nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
