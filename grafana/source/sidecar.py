"""The dashboard *Sidecar*: whether the program keeps up, and with what."""

from grafana_foundation_sdk.builders import dashboard

from grafana.source.boards import board, instances
from grafana.source.panels import (
    ANY_IS_BAD,
    ANY_IS_SUSPECT,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    YELLOW,
    Query,
    Section,
    Text,
    gauges,
    line,
    lines,
    number,
    rows,
)
from grafana.source.rules import BUILT, DOCS, WHERE

S = 'job=~"$job", instance=~"$instance"'

KNOWN = f"(up{{{S}}} and on ({WHERE}) group by ({WHERE}) (last_over_time({BUILT}[3d])))"
"""Whether each target of ours answers."""


def _rate(series: str, labels: str = "", by: str = "") -> str:
    more = f"{labels}, " if labels else ""
    return f"sum{by}(rate({series}{{{more}{S}}}[$__rate_interval]))"


def _quantiles(series: str, by: str = "") -> tuple[Query, ...]:
    """Return queries of a histogram's median and 99th percentile."""
    return tuple(
        Query(
            # Of nothing it is no number, which would be a line in the legend and none in the panel.
            f"histogram_quantile({q}, sum by (le{by}) (rate({series}_bucket{{{S}}}[$__rate_interval]))) >= 0",
            f"p{q * 100:g}",
        )
        for q in (0.5, 0.99)
    )


_QUANTILE_COLOURS = {"p50": BLUE, "p99": ORANGE}


def _health() -> Section:
    up = number(
        "Replicas",
        Text(
            "Replicas of the tail that can be scraped.",
            "fewer than were started: one is down, or cannot be reached; its partitions have gone to the others.",
            ("SidecarDown",),
        ),
        Query(f"count(sidecar_build_info{{{S}}})"),
        none="none is up",
        none_colour=RED,
        steps=((1, GREEN),),
    )
    down = number(
        "Not answering",
        Text(
            "Replicas and workers that have been scraped in the last days, and cannot be now.",
            "*Replicas and versions*, at the bottom, names them. Look at the end of their logs.",
            ("SidecarDown",),
        ),
        Query(f"sum({KNOWN} == bool 0)"),
        steps=ANY_IS_BAD,
    )
    brokers = number(
        "Brokers answer",
        Text(
            "Whether the brokers answered the last request of every replica.",
            "the brokers are away or cannot be reached: nothing is judged, and the guard refuses, until they answer.",
            ("SidecarStalled",),
        ),
        Query(f"min(sidecar_broker_up{{{S}}})"),
        unit="bool_yes_no",
        steps=((1, GREEN),),
        base=RED,
    )
    well = number(
        "Without progress for",
        Text(
            "How long ago all that is read was last well: had advanced, or had nothing to read. Of the worst replica.",
            "above a minute something hangs: ask `/readyz` of that replica, it names the partition and the reason.",
            ("SidecarStalled",),
        ),
        Query(f"max(time() - sidecar_last_well_timestamp_seconds{{{S}}})"),
        unit="s",
        decimals=0,
        steps=((60, ORANGE), (120, RED)),
    )
    lag = number(
        "Records behind",
        Text(
            "Records between where the tail reads and the end of its topics.",
            "findings and halts come late. Add replicas, up to the number of partitions.",
            ("SidecarLagging",),
        ),
        Query(f"sum(sidecar_lag_records{{{S}}})"),
        steps=((1000, YELLOW), (10_000, RED)),
    )
    restoring = number(
        "Restoring",
        Text(
            "Partitions whose state is being restored; they are not judged meanwhile.",
            "for more than a minute or two: see *State* for how much is read, and whether snapshots were refused.",
            ("SnapshotsFailing",),
        ),
        Query(f"sum(sidecar_restoring_partitions{{{S}}})"),
        steps=ANY_IS_SUSPECT,
    )
    kept = number(
        "Last kept",
        Text(
            "How long ago the partition that was kept longest ago was kept on the snapshot topic.",
            "above the snapshot interval (300 s unless configured) by much: commits fail.",
            ("SnapshotsFailing",),
        ),
        Query(f"max(time() - sidecar_last_snapshot_timestamp_seconds{{{S}}})"),
        unit="s",
        decimals=0,
        steps=((600, YELLOW), (1200, RED)),
        none="nothing kept",
    )
    return Section("Now", (line(up, down, brokers, well, lag, restoring, kept, widths=(3, 3, 3, 4, 4, 3, 4)),))


def _input() -> Section:
    throughput = lines(
        "Records read, by kind",
        Text(
            "Records read and understood each second, by kind.",
            "no compaction records (summary, checkpoint) for long: compactors publish elsewhere, or not at all.",
            ("SidecarStalled",),
        ),
        Query(_rate("sidecar_records_total", by=" by (kind) "), "{{kind}}"),
        unit="cps",
        stacked=True,
        table=True,
    )
    behind = lines(
        "Lag, by topic",
        Text(
            "Records still to be read, by topic.",
            "a line that rises steadily: more is written than is read. A step that stays: a partition that is not read"
            " (see beside).",
            ("SidecarLagging", "SidecarStalled"),
        ),
        Query(f"sum by (topic) (sidecar_lag_records{{{S}}})", "{{topic}}"),
        steps=((10_000, RED),),
        whole=True,
    )
    partitions = gauges(
        "Partitions furthest behind",
        Text(
            "The ten partitions with the most to read.",
            "one alone far ahead: a session (or a key) floods it, or its replica hangs.",
            ("SidecarLagging",),
        ),
        Query(f"topk(10, max by (topic, partition) (sidecar_lag_records{{{S}}}))", "{{topic}}/{{partition}}"),
        steps=((1000, YELLOW), (10_000, RED)),
    )
    return Section("Input", (line(throughput, behind, partitions, widths=(12, 6, 6)),))


def _latency() -> Section:
    from_record = lines(
        "From record to finding",
        Text(
            "From the timestamp of the record that decided a finding to the finding being written: what an agent would"
            " have to wait.",
            "p99 of seconds: lag, or clocks that differ. Compare with *From fetch to finding*, which is the sidecar"
            " alone.",
            ("SidecarLagging",),
        ),
        *_quantiles("sidecar_detection_from_record_seconds"),
        unit="s",
        colours=_QUANTILE_COLOURS,
        none="nothing was found lately",
    )
    from_fetch = lines(
        "From fetch to finding",
        Text(
            "From the fetch of the record that decided a finding to the finding being written.",
            "above a second: batches are too large for the machine; lower `tail.fetch_max_records`, or give it more"
            " CPU.",
        ),
        *_quantiles("sidecar_detection_from_fetch_seconds"),
        unit="s",
        colours=_QUANTILE_COLOURS,
        none="nothing was found lately",
    )
    fold = lines(
        "Judging a batch",
        Text(
            "Time to judge a batch of records.",
            "rising with the same batches: a session with very many open edges or referents; see *Batches*.",
        ),
        *_quantiles("sidecar_fold_seconds"),
        unit="s",
        colours=_QUANTILE_COLOURS,
        none="nothing was read lately",
    )
    batches = lines(
        "Batches",
        Text(
            "How many records come in a batch.",
            "large batches all the time: the sidecar reads as fast as it can, and is behind.",
            ("SidecarLagging",),
        ),
        *_quantiles("sidecar_batch_records"),
        colours=_QUANTILE_COLOURS,
        none="nothing was read lately",
    )
    return Section("Latency", (line(from_record, from_fetch, fold, batches),))


def _order() -> Section:
    waiting = lines(
        "Reorder buffers",
        Text(
            "Records that are held back for a log position that has not come, and the sessions that have some.",
            "many sessions: one topic lags behind the other. One session with many: a producer has lost a record; the"
            " position is given up after `engine.max_wait`.",
        ),
        Query(f"sum(sidecar_reorder_waiting_records{{{S}}})", "records"),
        Query(f"sum(sidecar_reorder_waiting_sessions{{{S}}})", "sessions"),
        colours={"records": BLUE, "sessions": PURPLE},
        whole=True,
    )
    noise = lines(
        "Duplicates, late, conflicting and missing",
        Text(
            "Each second: records delivered again, records whose position had been given up, records that claim a"
            " position which another has, and positions given up as missing.",
            "duplicates are harmless. Missing and late ones make checkpoints unverifiable: find the producer that loses"
            " records. A conflict is a log with two writers: stop that session.",
        ),
        Query(_rate("sidecar_duplicate_records_total"), "duplicate"),
        Query(_rate("sidecar_late_records_total"), "late"),
        Query(_rate("sidecar_conflicting_records_total"), "conflicting"),
        Query(_rate("sidecar_missing_positions_total"), "missing"),
        unit="cps",
        colours={"duplicate": GREY, "late": YELLOW, "conflicting": RED, "missing": ORANGE},
    )
    letters = lines(
        "Dead letters",
        Text(
            "Records that could not be read, those in another partition than their session's, and those of both that"
            " were written to the dead-letter topic, each second.",
            "read the dead-letter topic: each has its reason and where it came from. More unreadable than written: the"
            " brokers do not take them.",
            ("DeadLettersGrowing", "RecordsMisplaced"),
        ),
        Query(_rate("sidecar_unreadable_records_total"), "unreadable"),
        Query(_rate("sidecar_dead_letters_total"), "written to the topic"),
        Query(_rate("sidecar_misplaced_records_total"), "in another partition"),
        Query(_rate("sidecar_sessions_in_two_partitions_total"), "questions about sessions in two"),
        unit="cps",
        colours={"unreadable": RED, "written to the topic": ORANGE, "in another partition": YELLOW},
    )
    return Section("Order and bad input", (line(waiting, noise, letters),))


def _output() -> Section:
    commits = lines(
        "Transactions",
        Text(
            "Commits each second: of offsets, and with exactly_once of the findings, halts and snapshots with them.",
            "failed ones: the replica was fenced (a rebalance, or a second process of the same name) or the brokers did"
            " not answer. Nothing is lost by it; the state is restored.",
            ("SidecarStalled", "SnapshotsFailing"),
        ),
        Query(_rate("sidecar_commits_total", 'result="ok"'), "ok"),
        Query(_rate("sidecar_commits_total", 'result="failed"'), "failed"),
        unit="cps",
        colours={"ok": BLUE, "failed": RED},
    )
    written = lines(
        "Findings and halts written",
        Text(
            "Findings and halts written each second.",
            "a burst is one broken compactor or deployment: see the dashboard *Fleet* for the rules that fired.",
            ("FrontierDegraded",),
        ),
        Query(_rate("sidecar_findings_total"), "findings"),
        Query(_rate("sidecar_halts_total"), "halts"),
        unit="cps",
        colours={"findings": BLUE, "halts": RED},
    )
    return Section("Output", (line(commits, written),))


def _state() -> Section:
    snapshots = lines(
        "Snapshots written",
        Text(
            "Bytes written to the snapshot topic each second.",
            "much more than a fifth of what is read: sessions have grown large, or say little; a longer"
            " `snapshot.interval` costs less, and restarts read more.",
            ("SnapshotsFailing",),
        ),
        Query(_rate("sidecar_snapshot_bytes_total"), "bytes"),
        unit="Bps",
    )
    refused = lines(
        "Snapshots refused, sessions not kept",
        Text(
            "Times that a partition's snapshots could not be used, and that a session's id was too long for it"
            " to be kept.",
            "refused: the log names topic, partition, offset and reason, and the state is made again from the log. Not"
            " kept: the session cannot be verified after a restart.",
            ("SnapshotsFailing",),
        ),
        Query(f"sum(increase(sidecar_snapshots_refused_total{{{S}}}[$__rate_interval]))", "refused"),
        Query(f"sum(increase(sidecar_snapshots_too_large_total{{{S}}}[$__rate_interval]))", "not kept"),
        bars=True,
        stacked=True,
        whole=True,
        colours={"refused": RED, "not kept": ORANGE},
    )
    restore = lines(
        "Restore",
        Text(
            "Partitions that are being restored, and records that are read each second for that.",
            "restoring without reading: the brokers do not answer. Often: the group rebalances again and again.",
            ("SnapshotsFailing", "SidecarStalled"),
        ),
        Query(f"sum(sidecar_restoring_partitions{{{S}}})", "partitions"),
        Query(_rate("sidecar_restored_records_total"), "records/s"),
        colours={"partitions": ORANGE, "records/s": BLUE},
    )
    took = lines(
        "Time to restore",
        Text(
            "Time from being assigned a partition to having its state, of all restores since the replicas started: they"
            " are rare.",
            "tens of seconds: much state, or snapshots that were refused, so that the log had to be read again.",
            ("SnapshotsFailing",),
        ),
        *(
            Query(f"histogram_quantile({q}, sum by (le) (sidecar_restore_seconds_bucket{{{S}}})) >= 0", f"p{q * 100:g}")
            for q in (0.5, 0.99)
        ),
        unit="s",
        colours=_QUANTILE_COLOURS,
        none="nothing was restored",
    )
    return Section("State", (line(snapshots, refused, restore, took),))


def _guard() -> Section:
    answers = lines(
        "Guard: answers",
        Text(
            "Questions of agents each second, by what was decided.",
            "many refusals: the reasons are beside it. None at all: the agents act without asking.",
        ),
        Query(_rate("sidecar_guard_requests_total", by=" by (decision) ") + " > 0", "{{decision}}"),
        unit="cps",
        stacked=True,
        none="nobody asked, or no sidecar is scraped",
    )
    refusals = lines(
        "Guard: reasons of refusals",
        Text(
            "Refusals each second, by the code of their reasons.",
            "`lagging`, `restoring`, `not_applied`: the sidecar is behind. `overloaded`, `timed_out`: too many"
            " questions for it. `unauthorized`: a wrong token. The others are about the sessions themselves.",
            ("SidecarLagging",),
        ),
        Query(_rate("sidecar_guard_refusals_total", by=" by (code) ") + " > 0", "{{code}}"),
        unit="cps",
        stacked=True,
        none="nobody was refused, or no sidecar is scraped",
    )
    took = lines(
        "Guard: time to answer (p99)",
        Text(
            "The 99th percentile of the time to answer, by route; waiting for `min_seq` is included.",
            "near `guard.max_wait` (2 s): agents ask before their last records have been read.",
            ("SidecarLagging",),
        ),
        Query(
            f"histogram_quantile(0.99, sum by (le, route)"
            f" (rate(sidecar_guard_seconds_bucket{{{S}}}[$__rate_interval]))) >= 0",
            "{{route}}",
        ),
        unit="s",
        none="nobody asked, or no sidecar is scraped",
    )
    load = lines(
        "Guard: in flight, and errors",
        Text(
            "Questions being worked on or waited with, and those that a fault of the guard kept from being answered.",
            "any error is a fault of ours: the log has it. At `guard.max_concurrent` (256) more are refused.",
        ),
        Query(f"sum(sidecar_guard_in_flight{{{S}}})", "in flight"),
        Query(f"sum(increase(sidecar_guard_errors_total{{{S}}}[$__rate_interval]))", "errors"),
        colours={"in flight": BLUE, "errors": RED},
        whole=True,
    )
    return Section("Guard", (line(answers, refusals, took, load),))


def _fleet_view() -> Section:
    workers = number(
        "Fleet view: workers",
        Text(
            "Workers of the fleet view that can be scraped.",
            "none: nobody raises alerts about halts that wait; start `sidecar fleet`.",
            ("SidecarDown", "HaltUnacknowledged"),
        ),
        Query(f"count(sidecar_fleet_build_info{{{S}}})"),
        none="no fleet view",
    )
    recovering = number(
        "Fleet view: to recover",
        Text(
            "Changelog records that are still to be read before the fleet view's tables are whole.",
            "it answers incompletely meanwhile. If it does not fall, the brokers do not answer.",
            ("SidecarStalled",),
        ),
        Query(f"sum(sidecar_fleet_recovering_records{{{S}}})"),
        steps=ANY_IS_SUSPECT,
        none="no fleet view",
    )
    behind = number(
        "Fleet view: records behind",
        Text(
            "Records of findings, halts and sessions that the fleet view has still to read.",
            "the board and the alerts are late by that much; start another worker.",
            ("SidecarLagging",),
        ),
        Query(f"sum(sidecar_fleet_lag_records{{{S}}})"),
        steps=((1000, YELLOW), (10_000, RED)),
        none="no fleet view",
    )
    trouble = number(
        "Fleet view: lost and unusable",
        Text(
            "Records that were gone before the fleet view had read them, or that it could not use, in the selected"
            " time.",
            "lost: the topics' retention is shorter than the fleet view was away; its counts are too low. Unusable: the"
            " dead-letter topic has them.",
        ),
        Query(
            f"sum(increase(sidecar_fleet_lost_records_total{{{S}}}[$__range]))"
            f" + sum(increase(sidecar_fleet_unusable_records_total{{{S}}}[$__range]))"
        ),
        steps=ANY_IS_BAD,
        decimals=0,
        none="no fleet view",
    )
    read = lines(
        "Fleet view: records read",
        Text(
            "Records that the fleet view takes in each second, by topic.",
            "nothing, while the tail writes findings: the fleet view hangs or is not started.",
            ("SidecarStalled",),
        ),
        Query(_rate("sidecar_fleet_records_total", by=" by (topic) "), "{{topic}}"),
        unit="cps",
        stacked=True,
        none="no fleet view",
    )
    commits = lines(
        "Fleet view: time to write",
        Text(
            "Time to write the changed rows of a partition and its positions.",
            "seconds: the brokers are slow to take what is written, or very many sessions change at once.",
        ),
        *_quantiles("sidecar_fleet_commit_seconds"),
        unit="s",
        colours=_QUANTILE_COLOURS,
        none="nothing was written lately, or no fleet view",
    )
    group = lines(
        "Fleet view: rebalances and failed writes",
        Text(
            "Rebalances of the workers' group, writes that the brokers did not take, and times that another worker had"
            " written to a partition, in each interval.",
            "again and again: workers come and go, or two have the same name.",
            ("SidecarStalled",),
        ),
        Query(f"sum(increase(sidecar_fleet_rebalances_total{{{S}}}[$__rate_interval]))", "rebalances"),
        Query(f"sum(increase(sidecar_fleet_failed_writes_total{{{S}}}[$__rate_interval]))", "failed writes"),
        Query(f"sum(increase(sidecar_fleet_foreign_writes_total{{{S}}}[$__rate_interval]))", "foreign writes"),
        bars=True,
        stacked=True,
        whole=True,
        none="no fleet view",
        colours={"rebalances": BLUE, "failed writes": RED, "foreign writes": ORANGE},
    )
    return Section("Fleet view", (line(workers, recovering, behind, trouble), line(read, commits, group)))


def _replicas() -> Section:
    table = rows(
        "Replicas and versions",
        Text(
            "Every replica and worker that has been scraped in the last days: whether it answers, and what it runs.",
            "one that does not answer, or has started again and again: look at the end of its log. Different"
            " versions for longer than a rollout: one has not been restarted.",
            ("SidecarDown",),
        ),
        Query(f"min by (job, instance) ({KNOWN})"),
        Query(f'max by (job, instance, version, python) ({{__name__=~"sidecar_(fleet_)?build_info", {S}}})'),
        Query(f"1000 * max by (job, instance) (sidecar_start_timestamp_seconds{{{S}}})"),
        columns={
            "job": "Job",
            "instance": "Replica",
            "Value #A": "Answers",
            "Value #C": "Started",
            "version": "Version",
            "python": "Python",
        },
        units={"Started": "dateTimeFromNow"},
        widths={"Answers": 80, "Started": 130, "Version": 80, "Python": 80},
        flags=("Answers",),
        sort="Answers",
        rising=True,
        none="none is up",
    )
    load = rows(
        "What each replica has",
        Text(
            "Sessions, open halts, records behind and records read each second, by replica.",
            "one with far more than the others: its partitions hold the busy sessions; more partitions spread them.",
            ("SidecarLagging",),
        ),
        Query(f"sum by (instance) (sidecar_sessions{{{S}}})"),
        Query(f"sum by (instance) (sidecar_open_halts{{{S}}})"),
        Query(f"sum by (instance) (sidecar_lag_records{{{S}}})"),
        Query(f"sum by (instance) (rate(sidecar_records_total{{{S}}}[$__rate_interval]))"),
        columns={
            "instance": "Replica",
            "Value #A": "Sessions",
            "Value #B": "Open halts",
            "Value #C": "Behind",
            "Value #D": "Records/s",
        },
        units={"Sessions": "locale", "Behind": "locale", "Records/s": "locale"},
        decimals={"Records/s": 1},
        sort="Sessions",
        none="none is up",
    )
    return Section("Replicas", (line(table, load),))


def sidecar(docs: str | None = DOCS) -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "frontier-sidecar",
        "Frontier / Sidecar",
        "Whether the tail, the guard and the fleet view keep up, and with what.",
        (
            _health(), _input(), _latency(), _order(), _output(), _state(), _guard(), _fleet_view(), _replicas(),
        ),
        docs=docs,
        more=(instances(),),
    )  # fmt: skip
