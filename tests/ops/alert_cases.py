"""What each alert has to do with the series of Prometheus over time: the cases that promtool tries.

Every alert has a case of each kind: nothing is wrong (*quiet*), something is (*firing*), it is mended and the alert
ends when it should (*recovering*), counters or gauges begin again at zero (*reset*), and the series are not there
(*absent*).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["quiet", "firing", "recovering", "reset", "absent"]
KINDS: tuple[Kind, ...] = ("quiet", "firing", "recovering", "reset", "absent")

EVERY = 15
"""Seconds between samples."""

MISSING = None


@dataclass(frozen=True)
class Fires:
    """Expect the alert with these labels (besides its name and severity) and this summary."""

    summary: str
    labels: Mapping[str, str] = field(default_factory=lambda: {"job": "tail"})


@dataclass(frozen=True)
class Case:
    """Say what series there are, and by minute what fires.

    Args:
        name: what is tried.
        series: by selector, stretches of (minutes, value, growth of the value a minute); value `MISSING`: no samples.
        expected: by minute, what fires: one, several, or None.
    """

    name: str
    alert: str
    kind: Kind
    series: Mapping[str, tuple[tuple[float, float | None, float], ...]]
    expected: Mapping[float, Fires | tuple[Fires, ...] | None]


def values(stretches: tuple[tuple[float, float | None, float], ...]) -> str:
    """Return samples as promtool writes them."""
    parts = []
    for minutes, value, growth in stretches:
        count = round(minutes * 60 / EVERY)
        step = growth * EVERY / 60
        if value is not MISSING:
            parts.append(f"{value:g}+{step:g}x{count - 1}")
        elif parts:
            # A series that is not exposed any more, or whose target does not answer, is marked as gone at once.
            parts.append(f"stale _x{count - 1}" if count > 1 else "stale")
        else:
            parts.append(f"_x{count}")
    return " ".join(parts)


def still(minutes: float, value: float | None) -> tuple[float, float | None, float]:
    """Say that a value stays."""
    return (minutes, value, 0.0)


def _labels(job: str = "tail", instance: str = "a:9464", **more: str) -> str:
    return ",".join(f'{name}="{value}"' for name, value in {"job": job, "instance": instance, **more}.items())


def _statuses(
    **counts: tuple[tuple[float, float | None, float], ...],
) -> dict[str, tuple[tuple[float, float | None, float], ...]]:
    return {f"sidecar_frontier_degraded{{{_labels(status=status)}}}": found for status, found in counts.items()}


HALTS = f"sidecar_open_halts{{{_labels()}}}"


def _degraded(count: int) -> Fires:
    return Fires(
        f"Corrupt or lossy sessions, and open halts: {count}. What their agents would resume from cannot be trusted."
    )


FRONTIER_DEGRADED = (
    Case(
        "stale, unverified and merely degraded sessions do not wake anybody",
        "FrontierDegraded",
        "quiet",
        {
            **_statuses(
                verified=(still(20, 90),), stale=(still(20, 7),), unverified=(still(20, 2),), degraded=(still(20, 1),)
            ),
            **_statuses(lossy=(still(20, 0),), corrupt=(still(20, 0),)),
            HALTS: (still(20, 0),),
        },
        {1: None, 10: None, 20: None},
    ),
    Case(
        "a corrupt session and its halt on one replica, two halts on another",
        "FrontierDegraded",
        "firing",
        {
            **_statuses(corrupt=(still(5, 0), still(15, 1))),
            HALTS: (still(5, 0), still(15, 1)),
            f"sidecar_open_halts{{{_labels(instance='b:9464')}}}": (still(5, 0), still(15, 2)),
        },
        {5.5: None, 6.5: _degraded(4), 20: _degraded(4)},
    ),
    Case(
        "a halt without a bad checkpoint is enough",
        "FrontierDegraded",
        "firing",
        {**_statuses(corrupt=(still(10, 0),), lossy=(still(10, 0),)), HALTS: (still(2, 0), still(8, 3))},
        {2.5: None, 4: _degraded(3)},
    ),
    Case(
        "reconciled: it ends five minutes later, and a second halt in between does not make a second alert",
        "FrontierDegraded",
        "recovering",
        {
            **_statuses(corrupt=(still(30, 0),)),
            HALTS: (still(1, 0), still(4, 1), still(3, 0), still(2, 1), still(20, 0)),
        },
        {4: _degraded(1), 7: _degraded(1), 9.5: _degraded(1), 14: _degraded(1), 16: None, 25: None},
    ),
    Case(
        "the replica restarts: its gauges are gone, then zero until its state is restored; the alert lasts",
        "FrontierDegraded",
        "reset",
        {
            **_statuses(corrupt=(still(5, 1), still(1, MISSING), still(1, 0), still(8, 1))),
            HALTS: (still(5, 1), still(1, MISSING), still(1, 0), still(8, 1)),
        },
        {4: _degraded(2), 6.5: _degraded(2), 10: _degraded(2)},
    ),
    Case("no sidecar is scraped", "FrontierDegraded", "absent", {'up{job="else"}': (still(20, 1),)}, {10: None}),
    Case(
        "the only replica dies: nobody says any more that all is well, so it is not; after some hours it is forgotten",
        "FrontierDegraded",
        "absent",
        {**_statuses(corrupt=(still(5, 1), still(400, MISSING))), HALTS: (still(5, 1), still(400, MISSING))},
        {4: _degraded(2), 12: _degraded(2), 120: _degraded(2), 360: _degraded(2), 375: None},
    ),
    Case(
        "one of two dies, and the other one has restored its sessions: each is counted once",
        "FrontierDegraded",
        "absent",
        {
            HALTS: (still(5, 2), still(60, MISSING)),
            f"sidecar_open_halts{{{_labels(instance='b:9464')}}}": (still(6, 0), still(59, 2)),
            **_statuses(corrupt=(still(5, 0), still(60, MISSING))),
            f"sidecar_frontier_degraded{{{_labels(instance='b:9464', status='corrupt')}}}": (still(65, 0),),
        },
        {4: _degraded(2), 5.5: _degraded(2), 8: _degraded(2), 60: _degraded(2)},
    ),
    Case(
        "the only replica dies while all is well",
        "FrontierDegraded",
        "absent",
        {**_statuses(corrupt=(still(5, 0), still(60, MISSING))), HALTS: (still(5, 0), still(60, MISSING))},
        {4: None, 12: None, 60: None},
    ),
)


def _stale(
    **counts: tuple[tuple[float, float | None, float], ...],
) -> dict[str, tuple[tuple[float, float | None, float], ...]]:
    return {
        f"sidecar_stale_sessions{{{_labels(longer_than=name.removeprefix('over'))}}}": found
        for name, found in counts.items()
    }


def _exposed(count: int) -> Fires:
    return Fires(f"Sessions without a checkpoint of their newest authorizations for over 15 minutes: {count}.")


RECOVERY_EXPOSED = (
    Case(
        "sessions are stale for a while, as they are after every authorization",
        "RecoveryExposed",
        "quiet",
        _stale(over0=(still(30, 12),), over300=(still(30, 3),), over900=(still(30, 0),)),
        {10: None, 30: None},
    ),
    Case(
        "two have been stale for more than a quarter of an hour",
        "RecoveryExposed",
        "firing",
        _stale(over900=(still(5, 0), still(25, 2)), over3600=(still(30, 0),)),
        {9.5: None, 11: _exposed(2), 30: _exposed(2)},
    ),
    Case(
        "their checkpoints are written",
        "RecoveryExposed",
        "recovering",
        _stale(over900=(still(10, 1), still(20, 0))),
        {9: _exposed(1), 19: _exposed(1), 21: None},
    ),
    Case(
        "the replica restarts and counts anew: the alert ends, and comes back only after the bound",
        "RecoveryExposed",
        "reset",
        _stale(over900=(still(10, 1), still(15, 0), still(10, 1))),
        {9: _exposed(1), 21: None, 29: None, 31: _exposed(1)},
    ),
    Case("no sidecar is scraped", "RecoveryExposed", "absent", {'up{job="else"}': (still(20, 1),)}, {10: None}),
)


def _began(
    *stretches: tuple[float, float | None, float], instance: str = "a:9464"
) -> dict[str, tuple[tuple[float, float | None, float], ...]]:
    """Say when a process began, in minutes from the start."""
    seconds = tuple((length, None if value is None else value * 60, growth) for length, value, growth in stretches)
    return {f"sidecar_start_timestamp_seconds{{{_labels(instance=instance)}}}": seconds}


def _finding(rule: str, instance: str = "a:9464") -> str:
    return f"sidecar_findings_total{{{_labels(instance=instance, rule=rule)}}}"


def _counted(alert: str, rule: str, other: str, window: int, summary: str) -> tuple[Case, ...]:
    """Return the cases of an alert about a rule that must not fire at all.

    Args:
        alert: its name.
        rule: one of its rules.
        other: a rule that is none of its own.
        window: minutes that it looks back on; it lasts as long again.
        summary: its summary, with the count left open.
    """

    def fires(count: int) -> Fires:
        return Fires(summary.format(count))

    end = 5 + 2 * window
    return (
        Case(
            "other rules fire",
            alert,
            "quiet",
            {_finding(rule): (still(end, 0),), _finding(other): ((end, 0, 3),)},
            {3: None, end: None},
        ),
        Case(
            "it fires at once",
            alert,
            "firing",
            {_finding(rule): (still(5, 0), still(2 * window, 2)), _finding(rule, "b:9464"): (still(end, 0),)},
            {4.5: None, 5.25: fires(2), 5 + window - 1: fires(2)},
        ),
        Case(
            "counted before the first scrape: a backlog was read at the start",
            alert,
            "firing",
            {
                _finding(rule): (still(5, MISSING), still(3 * window, 3)),
                **_began(still(5, MISSING), still(3 * window, 4.5)),
            },
            {
                4: None,
                5.25: fires(3),
                5 + window - 1: fires(3),
                5 + 2 * window - 1: fires(3),
                5 + 2 * window + 12: None,
            },
        ),
        Case(
            "it could not be scraped for long, and has found two meanwhile",
            alert,
            "firing",
            {
                _finding(rule): (still(2 * window, 7), still(2 * window, MISSING), still(4 * window, 9)),
                **_began(still(8 * window, -600)),
            },
            {
                2 * window - 1: None,
                4 * window - 1: None,
                4 * window + 1: fires(2),
                5 * window - 1: fires(2),
                7 * window + 1: None,
            },
        ),
        Case(
            "one scrape fails: what was counted before is no news a window later",
            alert,
            "quiet",
            {
                _finding(rule): (still(2 * window, 7), still(0.25, MISSING), still(3 * window, 7)),
                **_began(still(2 * window, -600), still(0.25, MISSING), still(3 * window, -600)),
            },
            {
                2 * window + 0.5: None,
                3 * window: None,
                3 * window + 0.25: None,
                3 * window + 0.5: None,
                4 * window: None,
            },
        ),
        Case(
            "a Prometheus begins with empty storage: what was counted long ago is no news",
            alert,
            "quiet",
            {_finding(rule): (still(3 * window, 7),), **_began(still(3 * window, -600))},
            {1: None, window - 1: None, window + 1: None, 3 * window: None},
        ),
        Case(
            "none for a while",
            alert,
            "recovering",
            {_finding(rule): (still(5, 0), still(3 * window, 1))},
            {5 + window - 1: fires(1), 5 + 2 * window - 1: fires(1), 5 + 2 * window + 1: None},
        ),
        Case(
            "the replica restarts: its counter begins again at zero, which is nothing new",
            alert,
            "reset",
            {_finding(rule): (still(3 * window, 7), still(1, MISSING), still(2 * window, 0))},
            {3 * window - 1: None, 3 * window + 2: None, 5 * window: None},
        ),
        Case(
            "the replica restarts, and finds one more",
            alert,
            "reset",
            {_finding(rule): (still(3 * window, 7), still(1, MISSING), still(2, 0), still(window, 1))},
            {3 * window + 2: None, 3 * window + 4: fires(1)},
        ),
        Case(
            "the replica restarts, and has found as many as before when it is scraped again",
            alert,
            "reset",
            {
                _finding(rule): (still(3 * window, 1), still(1, MISSING), still(window, 1)),
                **_began(still(3 * window, -600), still(1, MISSING), still(window, 3 * window + 0.5)),
            },
            {3 * window - 1: None, 3 * window + 2: fires(1), 4 * window: fires(1)},
        ),
        Case("no sidecar is scraped", alert, "absent", {'up{job="else"}': (still(20, 1),)}, {10: None}),
    )


UNAUTHORIZED = _counted(
    "IrreversibleActionUnauthorized",
    "action_on_degraded",
    "stale_on_authorization",
    15,
    "Irreversible actions that nothing in the log allowed: {}.",
)
PROHIBITIONS = _counted(
    "ProhibitionsLost",
    "constraint_dropped",
    "fact_dropped",
    30,
    "Prohibitions in force that summaries have lost: {}.",
)
IDEMPOTENCE = _counted(
    "IdempotenceViolations",
    "idempotence_violation",
    "referent_orphaned",
    30,
    "Nodes that were summarized again and lost more by it: {}.",
)


def _waiting(severity: str) -> str:
    return f"sidecar_fleet_alerts{{{_labels('fleet', 'a:9465', kind='unacknowledged_halt', severity=severity)}}}"


def _unacknowledged(count: int) -> Fires:
    return Fires(f"Halts that have waited too long in nobody's hands: {count}.", {"job": "fleet"})


HALT_UNACKNOWLEDGED = (
    Case(
        "halts are open, and have not waited too long; there is another alert",
        "HaltUnacknowledged",
        "quiet",
        {
            _waiting("warning"): (still(20, 0),),
            f"sidecar_fleet_unacknowledged_halts{{{_labels('fleet')}}}": (still(20, 4),),
            f"sidecar_fleet_alerts{{{_labels('fleet', kind='storm', severity='error')}}}": (still(20, 1),),
        },
        {5: None, 20: None},
    ),
    Case(
        "one has waited too long, and goes on waiting: it grows more severe, and stays one alert",
        "HaltUnacknowledged",
        "firing",
        {
            _waiting("warning"): (still(5, 0), still(10, 1), still(10, 0)),
            _waiting("error"): (still(15, 0), still(10, 1)),
        },
        {5.5: None, 7: _unacknowledged(1), 14: _unacknowledged(1), 17: _unacknowledged(1)},
    ),
    Case(
        "somebody takes it in hand",
        "HaltUnacknowledged",
        "recovering",
        {_waiting("warning"): (still(5, 1), still(10, 0))},
        {4: _unacknowledged(1), 9.5: _unacknowledged(1), 10.5: None},
    ),
    Case(
        "the fleet view dies: the halts wait all the same",
        "HaltUnacknowledged",
        "absent",
        {_waiting("error"): (still(5, 1), still(60, MISSING))},
        {4: _unacknowledged(1), 12: _unacknowledged(1), 60: _unacknowledged(1)},
    ),
    Case(
        "the fleet view restarts: its gauges are gone, then zero until its tables are recovered",
        "HaltUnacknowledged",
        "reset",
        {_waiting("error"): (still(5, 1), still(0.5, MISSING), still(3, 0), still(8, 1))},
        {4: _unacknowledged(1), 5.5: _unacknowledged(1), 8: _unacknowledged(1), 10: _unacknowledged(1)},
    ),
    Case(
        "there is no fleet view, only a tail with open halts",
        "HaltUnacknowledged",
        "absent",
        {HALTS: (still(20, 2),)},
        {10: None, 20: None},
    ),
)


def _built(job: str = "tail", instance: str = "a:9464", name: str = "sidecar_build_info") -> str:
    return f"{name}{{{_labels(job, instance)}}}"


def _up(job: str = "tail", instance: str = "a:9464") -> str:
    return f"up{{{_labels(job, instance)}}}"


def _down(instance: str, job: str = "tail") -> Fires:
    return Fires(f'{instance} (job "{job}") does not answer.', {"job": job, "instance": instance})


def _left(job: str) -> Fires:
    return Fires(f'Nobody of job "{job}" is left.', {"job": job})


NO_SIDECAR = Fires("There is no sidecar: nothing is judged.", {})

SIDECAR_DOWN = (
    Case(
        "all answer; something else does not; a replica that was taken away is not scraped any more",
        "SidecarDown",
        "quiet",
        {
            _up(): (still(20, 1),),
            _built(): (still(20, 1),),
            _up(instance="b:9464"): (still(10, 1), still(10, MISSING)),
            _built(instance="b:9464"): (still(10, 1), still(10, MISSING)),
            _up("else", "x:1"): (still(20, 0),),
        },
        {5: None, 15: None, 20: None},
    ),
    Case(
        "one of two does not answer",
        "SidecarDown",
        "firing",
        {
            _up(): (still(20, 1),),
            _built(): (still(20, 1),),
            _up(instance="b:9464"): (still(5, 1), still(15, 0)),
            _built(instance="b:9464"): (still(5, 1), still(15, MISSING)),
        },
        {6: None, 8: _down("b:9464"), 20: _down("b:9464")},
    ),
    Case(
        "the fleet view does not answer",
        "SidecarDown",
        "firing",
        {
            _up(): (still(20, 1),),
            _built(): (still(20, 1),),
            _up("fleet", "a:9465"): (still(5, 1), still(15, 0)),
            _built("fleet", "a:9465", "sidecar_fleet_build_info"): (still(5, 1), still(15, MISSING)),
        },
        {6: None, 8: _down("a:9465", "fleet")},
    ),
    Case(
        "it answers again",
        "SidecarDown",
        "recovering",
        {
            _up(): (still(2, 1), still(5, 0), still(10, 1)),
            _built(): (still(2, 1), still(5, MISSING), still(10, 1)),
            _up(instance="b:9464"): (still(17, 1),),
            _built(instance="b:9464"): (still(17, 1),),
        },
        {6: _down("a:9464"), 7.5: _down("a:9464"), 9: None},
    ),
    Case(
        "the only replica does not answer: that is one alert, not two, and it lasts over days",
        "SidecarDown",
        "firing",
        {_up(): (still(5, 1), still(1500, 0)), _built(): (still(5, 1), still(2000, MISSING))},
        {4: None, 8: _down("a:9464"), 600: _down("a:9464"), 1430: _down("a:9464"), 1460: (_down("a:9464"), NO_SIDECAR)},
    ),
    Case(
        "the fleet view has no targets any more, as when its only pod is gone, and comes back",
        "SidecarDown",
        "firing",
        {
            _up(): (still(40, 1),),
            _built(): (still(40, 1),),
            _up("fleet", "a:9465"): (still(5, 1), still(20, MISSING), still(15, 1)),
            _built("fleet", "a:9465", "sidecar_fleet_build_info"): (still(5, 1), still(20, MISSING), still(15, 1)),
        },
        {6: None, 8: _left("fleet"), 25: _left("fleet"), 28: None},
    ),
    Case(
        "it restarts within a minute",
        "SidecarDown",
        "reset",
        {
            _up(): (still(5, 1), still(1, 0), still(10, 1)),
            _built(): (still(5, 1), still(1, MISSING), still(10, 1)),
        },
        {5.5: None, 6.5: None, 10: None},
    ),
    Case(
        "none has ever been scraped",
        "SidecarDown",
        "absent",
        {_up("else", "x:1"): (still(20, 1),)},
        {1: None, 3: NO_SIDECAR, 20: NO_SIDECAR},
    ),
)

WELL = f"sidecar_last_well_timestamp_seconds{{{_labels()}}}"
FLEET_PROGRESS = f"sidecar_fleet_last_progress_timestamp_seconds{{{_labels('fleet', 'a:9465')}}}"
FLEET_LAG = f"sidecar_fleet_lag_records{{{_labels('fleet', 'a:9465', topic='agent.findings', partition='0')}}}"


def _stalled(seconds: int, job: str = "tail", instance: str = "a:9464") -> Fires:
    return Fires(f"Seconds without progress at {instance}: {seconds}.", {"job": job, "instance": instance})


SIDECAR_STALLED = (
    Case(
        "one is always well; the fleet view has had nothing to read for long",
        "SidecarStalled",
        "quiet",
        {WELL: ((20, 0, 60),), FLEET_PROGRESS: (still(20, 0),), FLEET_LAG: (still(20, 0),)},
        {5: None, 20: None},
    ),
    Case(
        "one was last well four minutes in",
        "SidecarStalled",
        "firing",
        {
            WELL: ((4, 0, 60), still(16, 240)),
            f"sidecar_last_well_timestamp_seconds{{{_labels(instance='b:9464')}}}": ((20, 0, 60),),
        },
        {6: None, 8: _stalled(240), 10: _stalled(360)},
    ),
    Case(
        "the fleet view has something to read, and does not",
        "SidecarStalled",
        "firing",
        {FLEET_PROGRESS: (still(10, 0),), FLEET_LAG: (still(1, 0), still(9, 12))},
        {2.5: None, 4: _stalled(240, "fleet", "a:9465")},
    ),
    Case(
        "the brokers do not take what the fleet view writes, so that it reads no further",
        "SidecarStalled",
        "firing",
        {
            FLEET_PROGRESS: (still(10, 0),),
            FLEET_LAG: (still(10, 0),),
            f"sidecar_fleet_broker_up{{{_labels('fleet', 'a:9465')}}}": (still(4, 1), still(6, 0)),
        },
        {4: None, 6: _stalled(360, "fleet", "a:9465")},
    ),
    Case(
        "it goes on",
        "SidecarStalled",
        "recovering",
        {WELL: (still(6, 0), (14, 360, 60))},
        {5: _stalled(300), 6.5: _stalled(330), 8: None},
    ),
    Case(
        "it is restarted, and begins anew",
        "SidecarStalled",
        "reset",
        {WELL: (still(6, 0), still(0.5, MISSING), (14, 390, 60))},
        {5: _stalled(300), 8: None, 20: None},
    ),
    Case("no sidecar is scraped", "SidecarStalled", "absent", {'up{job="else"}': (still(20, 1),)}, {10: None}),
)


def _lag(partition: int, instance: str = "a:9464", topic: str = "agent.events") -> str:
    return f"sidecar_lag_records{{{_labels(instance=instance, topic=topic, partition=str(partition))}}}"


def _behind(records: int, job: str = "tail") -> Fires:
    return Fires(f"Records that {job} is behind: {records}.", {"job": job})


SIDECAR_LAGGING = (
    Case(
        "a burst is read within minutes",
        "SidecarLagging",
        "quiet",
        {_lag(0): (still(2, 0), still(5, 50_000), still(20, 10))},
        {6: None, 15: None, 25: None},
    ),
    Case(
        "two replicas together are too far behind, each is not",
        "SidecarLagging",
        "firing",
        {_lag(0): (still(30, 6000),), _lag(1, "b:9464"): (still(30, 6000),)},
        {9: None, 11: _behind(12_000)},
    ),
    Case(
        "the fleet view is behind",
        "SidecarLagging",
        "firing",
        {FLEET_LAG: (still(30, 20_000),)},
        {9: None, 11: _behind(20_000, "fleet")},
    ),
    Case(
        "it catches up, and what comes after a rebalance is at another replica",
        "SidecarLagging",
        "recovering",
        {_lag(0): (still(12, 20_000), still(20, MISSING)), _lag(0, "b:9464"): (still(12, MISSING), still(20, 100))},
        {11: _behind(20_000), 16: _behind(20_000), 18: None},
    ),
    Case(
        "it restarts while behind: nothing is known of the lag until it has been asked for",
        "SidecarLagging",
        "reset",
        {_lag(0): (still(12, 20_000), still(1, MISSING), still(10, 22_000))},
        {11: _behind(20_000), 12.75: _behind(20_000), 15: _behind(22_000)},
    ),
    Case("no sidecar is scraped", "SidecarLagging", "absent", {'up{job="else"}': (still(20, 1),)}, {15: None}),
)


def _letters(topic: str = "agent.events", instance: str = "a:9464") -> str:
    return f"sidecar_dead_letters_total{{{_labels(instance=instance, topic=topic)}}}"


def _growing(count: int, job: str = "tail") -> Fires:
    return Fires(f"Records that cannot be used keep coming; in the last minutes: {count}.", {"job": job})


DEAD_LETTERS = (
    Case(
        "a few at once, and no more",
        "DeadLettersGrowing",
        "quiet",
        {_letters(): (still(5, 0), still(60, 40))},
        {6: None, 12: None, 16: None, 21: None, 30: None, 60: None},
    ),
    Case(
        "four a minute, of two topics",
        "DeadLettersGrowing",
        "firing",
        {_letters(): ((40, 0, 2),), _letters("agent.compactions"): ((40, 100, 2),)},
        {14: None, 30: _growing(40)},
    ),
    Case(
        "one every eight minutes",
        "DeadLettersGrowing",
        "firing",
        {_letters(): tuple(still(8, n) for n in range(6))},
        {21: None, 26: _growing(1), 39: _growing(1), 47: _growing(1)},
    ),
    Case(
        "the fleet view cannot use what it reads",
        "DeadLettersGrowing",
        "firing",
        {f"sidecar_fleet_unusable_records_total{{{_labels('fleet', 'a:9465', topic='agent.halts')}}}": ((40, 0, 2),)},
        {14: None, 30: _growing(20, "fleet")},
    ),
    Case(
        "the producer is mended",
        "DeadLettersGrowing",
        "recovering",
        {_letters(): (still(0.25, 0), (30, 0, 2), still(40, 60))},
        {29: _growing(20), 35: _growing(10), 44: _growing(0), 46.5: None},
    ),
    Case(
        "a counter that begins again at zero and stays there",
        "DeadLettersGrowing",
        "reset",
        {_letters(): (still(10, 500), still(1, MISSING), still(30, 0))},
        {10: None, 12: None, 25: None},
    ),
    Case(
        "restarts do not hide that they keep coming",
        "DeadLettersGrowing",
        "reset",
        {_letters(): ((16, 0, 4), still(0.5, MISSING), (16, 0, 4))},
        {20: _growing(37), 32: _growing(40)},
    ),
    Case("no sidecar is scraped", "DeadLettersGrowing", "absent", {'up{job="else"}': (still(20, 1),)}, {15: None}),
)


def _misplaced(instance: str = "a:9464") -> str:
    return f"sidecar_misplaced_records_total{{{_labels(instance=instance, topic='agent.events')}}}"


SPLIT = f"sidecar_sessions_in_two_partitions_total{{{_labels()}}}"
CHANGED = f"sidecar_partitions_changed{{{_labels()}}}"


def _elsewhere(count: int) -> Fires:
    return Fires(f"Records in another partition than their session's, or partitions that changed: {count}.")


MISPLACED = (
    Case(
        "every record is at home",
        "RecordsMisplaced",
        "quiet",
        {_misplaced(): (still(30, 0),), SPLIT: (still(30, 0),), CHANGED: (still(30, 0),)},
        {5: None, 29: None},
    ),
    Case(
        "one record of another partitioner",
        "RecordsMisplaced",
        "firing",
        {_misplaced(): (still(5, 0), still(60, 1)), SPLIT: (still(65, 0),), CHANGED: (still(65, 0),)},
        {4: None, 8: _elsewhere(1), 14: _elsewhere(1), 40: None},
    ),
    Case(
        "topics have grown",
        "RecordsMisplaced",
        "recovering",
        {_misplaced(): (still(90, 0),), SPLIT: (still(90, 0),), CHANGED: (still(5, 0), still(30, 1), still(55, 0))},
        {4: None, 8: _elsewhere(1), 34: _elsewhere(1), 60: None},
    ),
    Case(
        "a counter that begins again at zero and stays there",
        "RecordsMisplaced",
        "reset",
        {
            _misplaced(): (still(10, 500), still(1, MISSING), still(30, 0)),
            SPLIT: (still(10, 0), still(1, MISSING), still(30, 0)),
            CHANGED: (still(10, 0), still(1, MISSING), still(30, 0)),
        },
        {10: None, 12: None, 25: None},
    ),
    Case("no sidecar is scraped", "RecordsMisplaced", "absent", {'up{job="else"}': (still(20, 1),)}, {15: None}),
)

KEPT_AT = f"sidecar_last_snapshot_timestamp_seconds{{{_labels()}}}"
REFUSED = f"sidecar_snapshots_refused_total{{{_labels()}}}"
TOO_LARGE = f"sidecar_snapshots_too_large_total{{{_labels()}}}"
CANNOT_KEEP = Fires("tail cannot keep its state, or could not use what it had kept.")

SNAPSHOTS = (
    Case(
        "a round every five minutes, none refused",
        "SnapshotsFailing",
        "quiet",
        {
            KEPT_AT: tuple(still(5, 300 * n) for n in range(12)),
            REFUSED: (still(60, 0),),
            TOO_LARGE: (still(60, 0),),
        },
        {10: None, 30: None, 60: None},
    ),
    Case(
        "no round for more than twenty minutes",
        "SnapshotsFailing",
        "firing",
        {KEPT_AT: (still(60, 60),), REFUSED: (still(60, 0),), TOO_LARGE: (still(60, 0),)},
        {20: None, 22.5: CANNOT_KEEP, 60: CANNOT_KEEP},
    ),
    Case(
        "a partition's snapshots could not be used at the start",
        "SnapshotsFailing",
        "firing",
        {
            KEPT_AT: ((90, 0, 60),),
            REFUSED: (still(1, MISSING), still(89, 1)),
            TOO_LARGE: (still(90, 0),),
            **_began(still(1, MISSING), still(89, 0.5)),
        },
        {1: None, 3: CANNOT_KEEP, 69: CANNOT_KEEP, 75: None},
    ),
    Case(
        "a session cannot be kept",
        "SnapshotsFailing",
        "firing",
        {KEPT_AT: ((60, 0, 60),), REFUSED: (still(60, 0),), TOO_LARGE: (still(10, 0), still(50, 1))},
        {9: None, 12: CANNOT_KEEP},
    ),
    Case(
        "rounds are committed again",
        "SnapshotsFailing",
        "recovering",
        {KEPT_AT: (still(30, 0), (40, 1800, 60)), REFUSED: (still(70, 0),)},
        {29: CANNOT_KEEP, 38: CANNOT_KEEP, 41: None},
    ),
    Case(
        "it restarts: its counters begin again, and the state has been kept as it ended",
        "SnapshotsFailing",
        "reset",
        {
            KEPT_AT: ((30, 0, 60), still(1, MISSING), (30, 1860, 60)),
            REFUSED: (still(30, 0), still(1, MISSING), still(30, 0)),
            TOO_LARGE: (still(1, 0), still(1, MISSING), still(59, 0)),
        },
        {29: None, 32: None, 60: None},
    ),
    Case(
        "a sidecar on files has no brokers to keep anything on",
        "SnapshotsFailing",
        "absent",
        {_built(): (still(60, 1),), REFUSED: (still(60, 0),), TOO_LARGE: (still(60, 0),)},
        {30: None, 60: None},
    ),
)

CASES: tuple[Case, ...] = (
    *FRONTIER_DEGRADED,
    *RECOVERY_EXPOSED,
    *UNAUTHORIZED,
    *PROHIBITIONS,
    *IDEMPOTENCE,
    *HALT_UNACKNOWLEDGED,
    *SIDECAR_DOWN,
    *SIDECAR_STALLED,
    *SIDECAR_LAGGING,
    *MISPLACED,
    *DEAD_LETTERS,
    *SNAPSHOTS,
)
