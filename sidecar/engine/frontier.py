"""Authorization edges: which precondition allowed which action, over which positions.

Source of the rules: the text on the causal frontier. Edges are kept by position, so that a checkpoint's range
is a slice, and by action, so that an action asks only for its own.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from sidecar.engine.context import NAMED, Context, moment
from sidecar.engine.missing import missing_in
from sidecar.engine.state import AHEAD, SAID_STALE, UNVERIFIED, Edge, Fan, Frontier, Session, Written
from sidecar.protocol.records import Action, Authorization, Checkpoint, Revocation
from sidecar.protocol.records import Edge as RecordEdge

_LONGEST = 1024
"""How long an id may be that evidence repeats for every action: a record must not cost much more than it says."""


def authorize(ctx: Context, session: Session, record: Authorization) -> None:
    """Apply an authorization; one that names no action or no precondition grants nothing."""
    action, precondition = record.action_id, record.precondition_id
    if action and precondition:
        grant(ctx, session, action, precondition, record.uses or 0)
        return
    frontier = _frontier(session)
    frontier.latest = session.applied
    if frontier.implicit is None:
        frontier.implicit = [session.applied]
    else:
        frontier.implicit.append(session.applied)
    _expose(ctx, session)


def grant(ctx: Context, session: Session, action: str, precondition: str, uses: int = 0) -> None:
    """Grant an edge at the log's position.

    Args:
        uses: for how many irreversible actions; 0: no limit.
    """
    frontier = _frontier(session)
    position = frontier.latest = session.applied
    index = _granted(frontier, action, precondition, position, uses)
    frontier.grant_at.append(position)
    frontier.grant_of.append(index)
    _expose(ctx, session)


def revoke(ctx: Context, session: Session, record: Revocation) -> None:
    """Apply a revocation: of one edge, or of every edge of the action."""
    frontier = _frontier(session)
    frontier.latest = session.applied
    precondition = record.precondition_id
    if precondition:
        one = find(frontier, record.action_id, precondition)
        edges = [one] if one is not None and not one.ended else []
    else:
        edges = list(effective_edges(frontier, record.action_id))
    for edge in edges:
        _end(frontier, edge, session.applied)
    _expose(ctx, session)


def act(ctx: Context, session: Session, record: Action) -> None:
    """Judge an action, then count it as a use of the edge that allowed it."""
    if not record.irreversible:
        return
    judge_action(ctx, session, record.action_id)
    frontier = session.frontier
    if frontier is None:
        return
    used = _used(frontier, record.action_id)
    if used is None:
        return  # nothing allowed it, or an edge without a limit did
    if used.left > 1:
        used.left -= 1
    else:
        _end(frontier, used, session.applied)
        frontier.latest = session.applied
        _expose(ctx, session)


def judge_action(ctx: Context, session: Session, action: str) -> None:
    """Judge an irreversible action: it needs an effective edge, and a session that is not awaiting."""
    frontier = session.frontier
    key = (moment(session),)
    if frontier is None or not authorized(frontier, action):
        edges = _grants(frontier, action) if frontier else []
        revoked = [{"precondition_id": e.precondition, "granted": e.granted, "ended": e.ended} for e in edges]
        ctx.report(
            session,
            "action_unauthorized",
            action,
            key,
            witness=[session.applied, *(e.ended for e in edges)],
            evidence={"revoked": revoked} if revoked else None,
        )
    recovery = session.recovery
    if recovery is not None and recovery.awaiting:
        ctx.report(session, "action_on_degraded", action, key, witness=[recovery.resumed_at, session.applied])


def authorized(frontier: Frontier, action: str) -> bool:
    """Tell whether some edge of the action is effective now."""
    held = frontier.actions.get(action)
    if held is None:
        return False
    return bool(held.live) if type(held) is Fan else not frontier.edges[held].ended  # type: ignore[index]


def effective_edges(frontier: Frontier | None, action: str | None = None) -> Iterator[Edge]:
    """Yield the edges that are effective now, in order of their first grant; those of an action of their newest.

    Args:
        action: only those of this action; None: all.
    """
    if frontier is None:
        return
    held = None if action is None else frontier.actions.get(action)
    if action is None:
        yield from (edge for edge in frontier.edges if not edge.ended)
    elif type(held) is Fan:
        yield from (frontier.edges[held.edges[precondition]] for precondition in held.live)
    elif type(held) is int and not frontier.edges[held].ended:
        yield frontier.edges[held]


def judge_edges(ctx: Context, session: Session, written: Written, record: Checkpoint) -> None:
    """Judge what a checkpoint asserts against the log over its range."""
    lo, hi = written.lo, written.hi
    frontier = session.frontier or Frontier()
    kept_from = session.applied - ctx.limits.positions + 1
    gap_before, gap_inside = missing_in(session, 1, hi), missing_in(session, lo, hi)
    unknown, revoked, outside = [], [], []
    asserted = dict.fromkeys(record.asserted_edges or ())
    for action, precondition in asserted:
        edge = find(frontier, action, precondition)
        if edge is None or edge.first > hi:
            unknown.append((action, precondition, 0, 0))
            continue
        if hi < kept_from:
            continue  # the edge's state of that time is forgotten; the range is unverified, see below
        granted, ended = state_at(edge, hi)
        if ended:
            revoked.append((action, precondition, granted, ended))
        elif granted < lo and not gap_inside:
            outside.append((action, precondition, granted, 0))
    if unknown and not gap_before:
        _blame_edges(ctx, session, written, "edge_hallucinated", unknown)
    _blame_edges(ctx, session, written, "edge_revoked", revoked)
    _blame_edges(ctx, session, written, "edge_out_of_range", outside)
    if record.asserted_edges is not None:
        _judge_dropped(ctx, session, written, frontier, asserted, max(lo, kept_from))
    _judge_verifiable(ctx, session, written, record, kept_from, gap_inside, gap_before if unknown else 0, unknown)


def _judge_dropped(
    ctx: Context, session: Session, written: Written, frontier: Frontier, asserted: dict[RecordEdge, None], lo: int
) -> None:
    """Judge whether a checkpoint leaves out an edge that its range granted and that is effective at its end."""
    dropped = []
    for edge in _granted_in(frontier, lo, written.hi):
        granted, ended = state_at(edge, written.hi)
        if not ended and (edge.action, edge.precondition) not in asserted:
            dropped.append((edge.action, edge.precondition, granted, 0))
    _blame_edges(ctx, session, written, "edge_dropped", dropped)


def _judge_verifiable(
    ctx: Context,
    session: Session,
    written: Written,
    record: Checkpoint,
    kept_from: int,
    gap_inside: int,
    gap_before: int,
    unknown: list[tuple[str, str, int, int]],
) -> None:
    """Judge whether what a checkpoint asserts can be verified at all."""
    lo, hi = written.lo, written.hi
    reasons: dict[str, object] = {}
    witness = [written.position]
    if record.asserted_edges is None:
        reasons["edges"] = "not asserted"
    if implicit := _first_in(session.frontier.implicit if session.frontier else None, lo, hi):
        reasons["authorization_not_explicit"] = implicit
        witness.append(implicit)
    if gap_inside:
        reasons["missing_in_range"] = gap_inside
    if gap_before:
        reasons["missing_before_the_end"] = gap_before
        reasons["edges_not_found"] = [{"action_id": a, "precondition_id": p} for a, p, _, _ in unknown[:NAMED]]
    if gap_after := missing_in(session, hi + 1, max(session.applied, session.order.awaited)):
        reasons["missing_after_range"] = gap_after
    if lo < kept_from:
        reasons["kept_from"] = kept_from
    if session.lost and session.order.moment is not None:
        reasons["records_lost"] = "a checkpoint without a place in the log cannot tell that it reaches the log's end"
    if reasons:
        ctx.blame_checkpoint(session, written, "frontier_unverified", witness=witness, evidence={"reasons": reasons})


def judge_staleness(ctx: Context, session: Session, written: Written) -> None:
    """Judge whether an authorization or revocation came after the range of the newest checkpoint."""
    frontier = session.frontier
    if frontier is not None and frontier.latest > written.hi and not written.flags & SAID_STALE:
        written.flags |= SAID_STALE
        ctx.report(
            session,
            "stale_on_authorization",
            written.id,
            (),
            witness=[written.position, frontier.latest],
            evidence={"frontier_hi": written.hi, "authorization": frontier.latest},
        )


def judge_gap(ctx: Context, session: Session, first: int, last: int, at: int | None = None) -> None:
    """Judge the newest checkpoint when positions in its range or after it turn out to be missing.

    Args:
        at: the position to report it at; None: the first of them.
    """
    tree = session.tree
    if tree is None or tree.newest is None:
        return
    newest = tree.checkpoints[tree.newest]
    if last < newest.lo or newest.flags & (UNVERIFIED | AHEAD):
        return
    ctx.blame_checkpoint(
        session,
        newest,
        "frontier_unverified",
        witness=[newest.position],
        evidence={"reasons": {"missing_in_range" if first <= newest.hi else "missing_after_range": first}},
        position=first if at is None else at,
    )


def distrust(ctx: Context, session: Session, lost: str) -> None:
    """Make a session unverifiable, because records of it may be gone that nobody has seen."""
    session.lost = True
    tree = session.tree
    if tree is None:
        return
    for written in tree.checkpoints.values():
        if written.id == tree.newest and not written.flags & (UNVERIFIED | AHEAD):
            reasons = {"records_lost": lost}
            ctx.blame_checkpoint(
                session, written, "frontier_unverified", witness=[written.position], evidence={"reasons": reasons}
            )
        written.flags |= UNVERIFIED


def find(frontier: Frontier, action: str, precondition: str) -> Edge | None:
    """Return an edge that was granted at some time, or None."""
    held = frontier.actions.get(action)
    if held is None:
        return None
    if type(held) is Fan:
        index = held.edges.get(precondition)
        return None if index is None else frontier.edges[index]
    edge = frontier.edges[held]  # type: ignore[index]
    return edge if edge.precondition == precondition else None


def state_at(edge: Edge, position: int) -> tuple[int, int]:
    """Return an edge's latest grant at or before a position, and the end that followed it by then (0: none)."""
    granted, ended = edge.granted, edge.ended
    if granted > position:
        pairs = edge.past or []
        i = bisect_right(pairs, position, key=_granted_at)
        if i == 0:
            return 0, 0
        granted, ended = pairs[i - 1]
    return granted, ended if ended <= position else 0


def trim(session: Session, kept_from: int) -> None:
    """Forget grants before a position; each edge keeps its first grant and its last pair before that."""
    frontier = session.frontier
    if frontier is None:
        return
    i = bisect_left(frontier.grant_at, kept_from)
    for index in set(frontier.grant_of[:i]):
        edge = frontier.edges[index]
        if edge.past:
            j = bisect_right(edge.past, kept_from, key=_granted_at)
            edge.past = edge.past[:1] + edge.past[max(1, j - 1) :]
    frontier.grant_at = array("Q", frontier.grant_at[i:])
    frontier.grant_of = array("Q", frontier.grant_of[i:])
    if frontier.implicit:
        frontier.implicit = frontier.implicit[bisect_left(frontier.implicit, kept_from) :] or None


def _granted_at(pair: tuple[int, int]) -> int:
    return pair[0]


def _frontier(session: Session) -> Frontier:
    if session.frontier is None:
        session.frontier = Frontier()
    return session.frontier


def _end(frontier: Frontier, edge: Edge, position: int) -> None:
    held = frontier.actions[edge.action]
    if type(held) is Fan:
        _count_limited(frontier, held)
        held.limited -= edge.left > 0
        del held.live[edge.precondition]
    edge.ended, edge.left = position, 0


def _used(frontier: Frontier, action: str) -> Edge | None:
    """Return the edge that an irreversible action uses up one use of, or None.

    All that have a limit were granted at positions of their own, so the first of them needs no second criterion.
    """
    held = frontier.actions.get(action)
    if type(held) is Fan:
        _count_limited(frontier, held)
        if not held.live or held.limited < len(held.live):
            return None
        return frontier.edges[held.edges[next(iter(held.live))]]
    edge = frontier.edges[held] if held is not None else None  # type: ignore[index]
    return edge if edge is not None and edge.left else None


def _count_limited(frontier: Frontier, fan: Fan) -> None:
    """Count the edges that have a limit, and put them in order, where an older program has not done so."""
    if fan.limited < 0:
        live = sorted((frontier.edges[fan.edges[name]] for name in fan.live), key=lambda edge: edge.granted)
        fan.live, fan.limited = {edge.precondition: None for edge in live}, sum(edge.left > 0 for edge in live)


def _granted(frontier: Frontier, action: str, precondition: str, position: int, uses: int) -> int:
    edges = frontier.edges
    held = frontier.actions.get(action)
    if held is None:
        index = len(edges)
        edges.append(Edge(action, precondition, position, left=uses))
        frontier.actions[action] = index
        return index
    if type(held) is not Fan:
        only = edges[held]  # type: ignore[index]
        if only.precondition == precondition:
            _regrant(only, position, uses)
            return held  # type: ignore[return-value]
        live = {} if only.ended else {only.precondition: None}
        fan = Fan({only.precondition: held}, live, int(only.left > 0))  # type: ignore[dict-item]
        held = frontier.actions[action] = fan
    _count_limited(frontier, held)
    known = held.edges.get(precondition)
    if known is None:
        known = held.edges[precondition] = len(edges)
        edges.append(Edge(action, precondition, position, left=uses))
    else:
        if precondition in held.live:
            held.limited -= edges[known].left > 0
            del held.live[precondition]  # last again: the order is that of the newest grants
        _regrant(edges[known], position, uses)
    held.live[precondition] = None
    held.limited += uses > 0
    return known


def _regrant(edge: Edge, position: int, uses: int) -> None:
    pair = (edge.granted, edge.ended)
    if edge.past is None:
        edge.past = [pair]
    else:
        edge.past.append(pair)
    edge.granted, edge.ended, edge.left = position, 0, uses


def _expose(ctx: Context, session: Session) -> None:
    tree = session.tree
    if tree is not None and tree.newest is not None:
        judge_staleness(ctx, session, tree.checkpoints[tree.newest])


def _grants(frontier: Frontier, action: str) -> list[Edge]:
    """Return up to eight edges of an action, for the evidence; not such as would make it long."""
    held = frontier.actions.get(action)
    if held is None:
        return []
    if type(held) is Fan:
        found = [frontier.edges[i] for i, _ in zip(held.edges.values(), range(8), strict=False)]
    else:
        found = [frontier.edges[held]]  # type: ignore[index]
    return [edge for edge in found if len(edge.precondition) <= _LONGEST]


def _granted_in(frontier: Frontier, lo: int, hi: int) -> list[Edge]:
    """Return the edges granted in a range, each once, in order of their first grant there."""
    i, j = bisect_left(frontier.grant_at, lo), bisect_right(frontier.grant_at, hi)
    return [frontier.edges[index] for index in dict.fromkeys(frontier.grant_of[i:j])]


def _first_in(positions: list[int] | None, lo: int, hi: int) -> int:
    if not positions:
        return 0
    i = bisect_left(positions, lo)
    return positions[i] if i < len(positions) and positions[i] <= hi else 0


def _blame_edges(
    ctx: Context, session: Session, written: Written, rule: str, edges: list[tuple[str, str, int, int]]
) -> None:
    """Report a rule that some of a checkpoint's edges break, if any does: (action, precondition, granted, ended)."""
    if not edges:
        return
    witness = [written.position]
    listed = []
    for action, precondition, granted, ended in edges[:NAMED]:
        entry: dict[str, object] = {"action_id": action, "precondition_id": precondition}
        if granted:
            entry["granted"] = granted
        if ended:
            entry["ended"] = ended
        listed.append(entry)
        witness += [granted, ended]
    ctx.blame_checkpoint(
        session,
        written,
        rule,
        witness=witness,
        evidence={
            "edges": listed,
            "frontier_lo": written.lo,
            "frontier_hi": written.hi,
            **({"more": len(edges) - NAMED} if len(edges) > NAMED else {}),
        },
    )
