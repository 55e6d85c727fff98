"""The dashboard *Compaction quality*: what survives summaries, by level and by summarizer."""

from grafana_foundation_sdk.builders import dashboard

from grafana.source.boards import board, window
from grafana.source.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    YELLOW,
    Query,
    Section,
    Step,
    Text,
    line,
    lines,
    number,
    rows,
)
from grafana.source.rules import DOCS

S = 'job=~"$job"'

LEVEL_COLOURS = {"level 1": BLUE, "level 2": PURPLE, "level 3": YELLOW, "level 4+": ORANGE}

_GOOD_FROM: tuple[Step, ...] = ((0.95, ORANGE), (0.99, YELLOW), (1, GREEN))
"""Colours of a share that has to be everything; below the first step it is red."""


def _share(what: str, over: str, by: str = "") -> str:
    """Return the share of what had to survive that did, as long as there was anything."""
    kept, checked = (
        f'sum{by}(increase(sidecar_survival_{name}_total{{what="{what}", {S}}}[{over}]))'
        for name in ("kept", "checked")
    )
    return f"{kept} / ({checked} > 0)"


def _of_model(what: str) -> str:
    kept, checked = (
        f'sum by (model) (sidecar_fleet_survival_{name}{{what="{what}", {S}}})' for name in ("kept", "checked")
    )
    return f"{kept} / ({checked} > 0)"


def _found(*rules: str, over: str = "$window", by: str = "") -> str:
    pattern = "|".join(rules)
    return f'sum{by}(increase(sidecar_findings_total{{rule=~"{pattern}", {S}}}[{over}]))'


def _per_summary(*rules: str) -> str:
    """Return how many findings there were for each summary, as long as there were summaries."""
    summaries = f'sum(increase(sidecar_records_total{{kind="summary", {S}}}[$window]))'
    return f"{_found(*rules)} / ({summaries} > 0)"


def _survival() -> Section:
    numbers = [
        number(
            title,
            Text(
                f"Of the {things} that summaries had to carry in the selected time, the share that they did.",
                bad,
                alerts,
            ),
            Query(_share(what, "$__range")),
            unit="percentunit",
            decimals=2,
            steps=_GOOD_FROM,
            base=RED,
            none="nothing checked",
        )
        for title, what, things, bad, alerts in (
            (
                "Prohibitions kept",
                "constraint",
                "prohibitions",
                "find the level and the model below, and carry prohibitions in a channel that is not summarized.",
                ("ProhibitionsLost",),
            ),
            (
                "Facts kept",
                "fact",
                "declared facts",
                "summarize again with the facts pinned; see *Floors* for how they were lost.",
                (),
            ),
            (
                "Referents reachable",
                "referent",
                "referents",
                "the claim survives and the value does not: keep referents in the durable store until no summary needs"
                " them.",
                ("IdempotenceViolations",),
            ),
        )
    ]
    made = number(
        "Summaries",
        Text(
            "Summaries that were judged in the selected time.",
            "none at all: compaction does not run, or its records do not reach the topic; then nothing here says"
            " anything.",
        ),
        Query(f'sum(increase(sidecar_records_total{{kind="summary", {S}}}[$__range]))'),
        unit="locale",
        decimals=0,
    )
    by_level = [
        lines(
            f"{title}, by summary level",
            Text(
                f"The share of {things} that summaries of each level kept, over the window that is selected above."
                " Gaps: there was nothing to keep.",
                bad,
                alerts,
            ),
            Query(_share(what, "$window", " by (level) "), "level {{level}}"),
            unit="percentunit",
            colours=LEVEL_COLOURS,
            least=None,
            around=0.95,
            most=1,
            none="nothing checked, or no sidecar is scraped",
        )
        for title, what, things, bad, alerts in (
            (
                "Prohibitions",
                "constraint",
                "prohibitions",
                "a level that is below 100% loses them itself: what is only inherited from below is not counted again.",
                ("ProhibitionsLost",),
            ),
            (
                "Facts",
                "fact",
                "declared facts",
                "deeper levels lose more where facts are not pinned: pin them at the level that loses them first.",
                (),
            ),
            (
                "Referents",
                "referent",
                "referents",
                "a drop at all levels at once is a store that has evicted; at one level, a summarizer that makes up"
                " ids.",
                ("IdempotenceViolations",),
            ),
        )
    ]
    return Section("Survival", (line(*numbers, made), line(*by_level)))


def _models() -> Section:
    table = rows(
        "Survival by summarizer model",
        Text(
            "Of what the summaries of each model had to carry, the share that they did, over all sessions that the"
            " fleet view knows. The models that had the most to carry; the others count as `other`, unnamed ones as"
            " `none`.",
            "take the model with the lowest share of prohibitions out of use for summaries, or give it fewer levels."
            " Since when it is so is told by the fleet view: `sidecar fleet status`, or the board.",
            ("ProhibitionsLost",),
        ),
        Query(_of_model("constraint")),
        Query(_of_model("fact")),
        Query(_of_model("referent")),
        Query(f"sum by (model) (sidecar_fleet_survival_checked{{{S}}})"),
        columns={
            "model": "Model",
            "Value #A": "Prohibitions",
            "Value #B": "Facts",
            "Value #C": "Referents",
            "Value #D": "Checked",
        },
        units={"Prohibitions": "percentunit", "Facts": "percentunit", "Referents": "percentunit", "Checked": "locale"},
        decimals={"Prohibitions": 1, "Facts": 1, "Referents": 1, "Checked": 0},
        steps=dict.fromkeys(("Prohibitions", "Facts", "Referents"), ((0, RED), *_GOOD_FROM)),
        widths={"Prohibitions": 110, "Facts": 110, "Referents": 110, "Checked": 110},
        sort="Checked",
        none="no fleet view, or nothing checked",
    )
    over_time = lines(
        "Prohibitions kept, by summarizer model",
        Text(
            "The share of prohibitions that each model's summaries have kept, over all sessions that the fleet view"
            " knows.",
            "a line that bends down is a model (or a prompt) that has begun to lose them: look at what was deployed"
            " then.",
            ("ProhibitionsLost",),
        ),
        Query(_of_model("constraint"), "{{model}}"),
        unit="percentunit",
        least=None,
        around=0.95,
        most=1,
        none="no fleet view, or nothing checked",
    )
    by_level = rows(
        "Prohibitions by model and level",
        Text(
            "The share of prohibitions that each model's summaries kept, by the level of the summary.",
            "a model that is good at level 1 and bad above it should not summarize summaries.",
            ("ProhibitionsLost",),
        ),
        Query(
            f'sum by (model, level) (sidecar_fleet_survival_kept{{what="constraint", {S}}})'
            f' / (sum by (model, level) (sidecar_fleet_survival_checked{{what="constraint", {S}}}) > 0)'
        ),
        columns={"model": "Model", "level": "Level", "Value": "Kept"},
        units={"Kept": "percentunit"},
        decimals={"Kept": 1},
        steps={"Kept": ((0, RED), *_GOOD_FROM)},
        widths={"Level": 80, "Kept": 90},
        none="no fleet view, or nothing checked",
    )
    return Section("By summarizer", (line(table, over_time, by_level, widths=(10, 8, 6)),))


def _gate() -> Section:
    retention = lines(
        "Retention gate",
        Text(
            "Nodes whose recall, to the power of the tree's depth, is below their workload's floor; recall that is only"
            " the summarizer's own word; nodes reclaimed before a probe of them passed. Counted over the window.",
            "below the floor: flatten the tree and keep the leaves. Reclaimed too early: defer the reclaiming, for"
            " the only recoverable copy is gone. Self-reported: probe with held-out questions.",
        ),
        Query(_found("retention_below_floor", "recall_self_reported", "gc_before_probe", by=" by (rule) "), "{{rule}}"),
        colours={"retention_below_floor": RED, "gc_before_probe": ORANGE, "recall_self_reported": YELLOW},
        whole=True,
    )
    closure = lines(
        "Budget closure",
        Text(
            "The share of summaries that read exactly the input they declared, and kept to their token budget.",
            "below 100%: a tail was never read, or the summary will be cut by whoever reads it next, at a place nobody"
            " chose. Split the node, or give it input that fits.",
        ),
        Query(f"1 - {_per_summary('budget_open')}", "read what it declared"),
        Query(f"1 - {_per_summary('budget_exceeded')}", "kept to its budget"),
        unit="percentunit",
        least=None,
        around=0.95,
        most=1,
        colours={"read what it declared": BLUE, "kept to its budget": PURPLE},
        none="no summaries, or no sidecar is scraped",
    )
    again = lines(
        "Idempotence",
        Text(
            "Summaries of a node that was summarized before, and lost more by it, or were made of a node that had lost"
            " referents already. Counted over the window.",
            "compaction that is no fixed point loses more with every pass: freeze the node at its first generation.",
            ("IdempotenceViolations",),
        ),
        Query(
            _found("idempotence_violation", "orphaned_resummarized", "unreconciled_recompaction", by=" by (rule) "),
            "{{rule}}",
        ),
        whole=True,
        colours={
            "idempotence_violation": RED,
            "orphaned_resummarized": ORANGE,
            "unreconciled_recompaction": PURPLE,
        },
    )
    return Section("Gates", (line(retention, closure, again),))


def _losses() -> Section:
    floors = lines(
        "Floors: what was lost, and how",
        Text(
            "Facts that are missing from summaries, that survive below their floor, or without the substring that makes"
            " them actionable; prohibitions that were dropped; rankings without a floor. Counted over the window.",
            "a dropped prohibition comes first. Without an anchor the topic is still mentioned and the identifier is"
            " not: pin the facts verbatim.",
            ("ProhibitionsLost",),
        ),
        Query(
            _found(
                "constraint_dropped", "fact_dropped", "fact_below_floor", "anchor_lost", "reranking_without_floor",
                by=" by (rule) ",
            ),
            "{{rule}}",
        ),
        whole=True,
        colours={
            "constraint_dropped": RED,
            "fact_dropped": ORANGE,
            "fact_below_floor": YELLOW,
            "anchor_lost": PURPLE,
            "reranking_without_floor": GREY,
        },
    )  # fmt: skip
    edges = lines(
        "Authorization edges in checkpoints",
        Text(
            "Checkpoints that assert permission that never was, that was revoked, or that they cannot have read; that"
            " leave out one that is in effect; or that cannot be checked. Counted over the window.",
            "invented and revoked ones are corrupt: their checkpoints are to be discarded, and edges re-derived from"
            " the log.",
            ("FrontierDegraded",),
        ),
        Query(
            _found(
                "edge_hallucinated", "edge_revoked", "edge_out_of_range", "edge_dropped", "frontier_unverified",
                by=" by (rule) ",
            ),
            "{{rule}}",
        ),
        whole=True,
        colours={
            "edge_hallucinated": PURPLE,
            "edge_revoked": RED,
            "edge_out_of_range": ORANGE,
            "edge_dropped": YELLOW,
            "frontier_unverified": GREY,
        },
    )  # fmt: skip
    return Section("Losses", (line(floors, edges),))


def quality(docs: str | None = DOCS) -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "frontier-quality",
        "Frontier / Compaction quality",
        "What survives summaries, at which level and by which model, and which gates were passed.",
        (_survival(), _models(), _gate(), _losses()),
        docs=docs,
        more=(window(),),
    )
