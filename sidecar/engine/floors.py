"""Floors: prohibitions, declared facts and token budgets that a summary has to keep.

Source of the rules: the texts on the lossy-recovery boundary (constraints) and on truncation collapse (facts,
budgets). A loss is blamed on the node where it happened, not on those that inherited it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from sidecar.engine.context import Context
from sidecar.engine.ranges import Coverage, inherited, ranges_of
from sidecar.engine.state import Floors, Generation, Session, Stated, Tree
from sidecar.protocol.records import Constraint, Fact, Summary

_RANKING = ("prioriti", "focus on", "summarize for")


def state_constraint(ctx: Context, session: Session, record: Constraint) -> None:
    """Note a constraint, its restatement or its withdrawal."""
    _floors(session).constraints.append(
        Stated(
            session.applied,
            record.constraint_id,
            negative=record.polarity == "negative",
            retired=bool(record.retired),
            inferred=bool(record.inferred),
        )
    )


def forbid(session: Session, constraint_id: str) -> None:
    """Note a prohibition that a baseline states."""
    _floors(session).constraints.append(Stated(session.applied, constraint_id, negative=True))


def state_fact(ctx: Context, session: Session, record: Fact) -> None:
    """Note a declared fact."""
    _floors(session).facts.append(
        Stated(
            session.applied,
            record.fact_id,
            anchor=record.anchor,
            floor=record.floor_tokens,
            inferred=bool(record.inferred),
        )
    )


def judge_budget(ctx: Context, session: Session, tree: Tree, generation: Generation, record: Summary) -> None:
    """Judge whether the compaction read all its input and kept to its budget."""
    declared, read = record.input_tokens, record.input_tokens_read
    # A range has records, so an input of nothing left them out.
    if declared is not None and (declared == 0 or (read is not None and declared != read)):
        ctx.blame_node(
            session,
            tree,
            generation,
            "budget_open",
            witness=[generation.position],
            evidence={"input_tokens": declared, "input_tokens_read": read},
        )
    budget, emitted = record.token_budget, record.tokens_emitted
    if budget is not None and emitted is not None and emitted > budget:
        ctx.blame_node(
            session,
            tree,
            generation,
            "budget_exceeded",
            witness=[generation.position],
            evidence={"token_budget": budget, "tokens_emitted": emitted},
        )


def judge_constraints(
    ctx: Context,
    session: Session,
    tree: Tree,
    generation: Generation,
    record: Summary,
    children: list[Generation],
) -> None:
    """Judge whether the prohibitions in force in a summary's range are carried by it."""
    floors = session.floors
    if floors is None or not floors.constraints:
        return
    carried = set(generation.constraints)
    covered: Coverage | None = None
    carried_below: set[str] = set()
    checked = kept = 0
    for stated in _last_in(floors.constraints, ranges_of(generation), generation.hi):
        if not stated.negative or stated.retired:
            continue
        checked += 1
        if stated.id in carried:
            kept += 1
            continue
        if covered is None:
            covered = Coverage(children)
            carried_below = {name for child in children for name in child.constraints}
        # It only inherited the loss where a child covers the record and none carries it.
        if stated.position not in covered or stated.id in carried_below:
            ctx.blame_node(
                session,
                tree,
                generation,
                "constraint_dropped",
                (stated.id,),
                witness=[stated.position, generation.position],
                evidence={"constraint_id": stated.id, "root": bool(record.root)},
                severity="critical" if record.root else None,
                inferred=stated.inferred,
            )
    if checked:
        ctx.count_survival(session, record, "constraint", checked, kept)


def judge_facts(
    ctx: Context,
    session: Session,
    tree: Tree,
    generation: Generation,
    record: Summary,
    children: list[Generation],
) -> None:
    """Judge whether the facts declared in a summary's range survive in it, at their floor, with their anchor."""
    floors = session.floors
    if floors is None or not floors.facts:
        return
    dropped = set(record.dropped or ())
    undeclared: list[Stated] = []
    harmed: list[tuple[Stated, list[str]]] = []
    checked = kept = 0
    for stated in _last_in(floors.facts, ranges_of(generation), generation.hi):
        if stated.floor is None:
            undeclared.append(stated)
        if stated.floor == 0 and stated.id in dropped:
            continue
        checked += 1
        broken = [rule for rule, kept_in in _RESPECTS.items() if not kept_in(stated, generation.facts)]
        kept += not broken
        if broken:
            harmed.append((stated, broken))
    if harmed:
        covered, texts = Coverage(children), _texts_below(children, {stated.id for stated, _ in harmed})
        for stated, broken in harmed:
            for rule in broken:
                carried = any(_RESPECTS[rule](stated, {stated.id: text}) for text in texts.get(stated.id, ()))
                if stated.position not in covered or carried:
                    _blame_fact(ctx, session, tree, generation, stated, rule)
    if checked:
        ctx.count_survival(session, record, "fact", checked, kept)
    instruction = (record.instruction or "").lower()
    if undeclared and any(word in instruction for word in _RANKING):
        ctx.blame_node(
            session,
            tree,
            generation,
            "reranking_without_floor",
            witness=[*(s.position for s in undeclared), generation.position],
            evidence={"fact_ids": [s.id for s in undeclared], "instruction": record.instruction},
        )


def must_carry(session: Session, record: Summary, children: list[Generation]) -> tuple[list[Stated], list[Stated]]:
    """Return the prohibitions and the facts that a summary has to carry, itself or through a child."""
    floors = session.floors
    if floors is None:
        return [], []
    lo, hi = record.frontier_lo, record.frontier_hi
    ranges = [(lo, hi), *(inherited(lo, hi, children) or ())]
    waived = set(record.dropped or ())
    constraints = [s for s in _last_in(floors.constraints, ranges, hi) if s.negative and not s.retired]
    facts = [s for s in _last_in(floors.facts, ranges, hi) if not (s.floor == 0 and s.id in waived)]
    return constraints, facts


def trim(session: Session, kept_from: int) -> None:
    """Forget what was restated or withdrawn before a position: no later range can ask for it."""
    floors = session.floors
    if floors is None:
        return
    for name in ("constraints", "facts"):
        stated: list[Stated] = getattr(floors, name)
        cut = bisect_left(stated, kept_from, key=_position)
        last = {s.id: s for s in stated[:cut]}
        old = [s for s in stated[:cut] if last[s.id] is s and not s.retired]
        setattr(floors, name, old + stated[cut:])


def _floors(session: Session) -> Floors:
    if session.floors is None:
        session.floors = Floors()
    return session.floors


def _position(stated: Stated) -> int:
    return stated.position


def _last_in(records: list[Stated], ranges: list[tuple[int, int]], hi: int) -> list[Stated]:
    """Return of each id the last record at or before `hi`, if that one lies in one of the ranges."""
    i, j = bisect_left(records, min(lo for lo, _ in ranges), key=_position), bisect_right(records, hi, key=_position)
    last = {stated.id: stated for stated in records[i:j]}.values()
    if len(ranges) == 1:
        return list(last)
    return [stated for stated in last if any(lo <= stated.position <= end for lo, end in ranges)]


def _texts_below(children: list[Generation], wanted: set[str]) -> dict[str, list[str]]:
    """Return what children carry of some facts, by fact."""
    texts: dict[str, list[str]] = {}
    for child in children:
        if child.facts:
            for fact_id in child.facts.keys() & wanted:
                texts.setdefault(fact_id, []).append(child.facts[fact_id])
    return texts


def _present(stated: Stated, facts: dict[str, str] | None) -> bool:
    return facts is not None and stated.id in facts


def _above_floor(stated: Stated, facts: dict[str, str] | None) -> bool:
    # A fact that is missing altogether is `fact_dropped`, and nothing more.
    return stated.floor is None or not facts or stated.id not in facts or len(facts[stated.id].split()) >= stated.floor


def _anchored(stated: Stated, facts: dict[str, str] | None) -> bool:
    return not facts or stated.id not in facts or stated.anchor in facts[stated.id]


_RESPECTS: dict[str, Callable[[Stated, dict[str, str] | None], bool]] = {
    "fact_dropped": _present,
    "fact_below_floor": _above_floor,
    "anchor_lost": _anchored,
}


def _blame_fact(ctx: Context, session: Session, tree: Tree, generation: Generation, stated: Stated, rule: str) -> None:
    evidence: dict[str, object] = {"fact_id": stated.id}
    if rule == "fact_below_floor":
        evidence |= {"floor_tokens": stated.floor, "tokens": len((generation.facts or {})[stated.id].split())}
    elif rule == "anchor_lost":
        evidence["anchor"] = stated.anchor
    ctx.blame_node(
        session,
        tree,
        generation,
        rule,
        (stated.id,),
        witness=[stated.position, generation.position],
        evidence=evidence,
        inferred=stated.inferred,
    )
