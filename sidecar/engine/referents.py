"""Referents: what the stores hold, and which summaries in use depend on what they no longer hold.

Source of the rules: the text on the lossy-recovery boundary. `stores` keeps one integer a referent:
the position where it was last seen, the store it was seen in, and which stores hold it now.
"""

from collections.abc import Iterable
from typing import Any

from sidecar.engine.context import Context
from sidecar.engine.state import Generation, Session, Tree
from sidecar.engine.tree import in_use
from sidecar.protocol.records import ReferentAdded, ReferentRemoved, Summary

LIVE, DURABLE, _HELD, _SEEN_DURABLE, _SHIFT = 1, 2, 3, 4, 3


def add(ctx: Context, session: Session, record: ReferentAdded) -> None:
    """Put a referent into a store."""
    put(session, record.referent_id, DURABLE if record.store == "durable" else LIVE)


def put(session: Session, referent: str, store: int) -> None:
    """Put a referent into a store; what needs it counts it as reachable again."""
    stores = session.stores
    if stores is None:
        stores = session.stores = {}
    held = stores.get(referent, 0) & _HELD
    stores[referent] = session.applied << _SHIFT | (_SEEN_DURABLE if store == DURABLE else 0) | held | store
    tree = session.tree
    if not held and tree is not None:
        for generation_id in tree.needed.get(referent, ()):
            generation = tree.generations[generation_id]
            generation.lost -= 1
            if generation.held and not generation.lost:
                tree.broken -= 1


def remove(ctx: Context, session: Session, record: ReferentRemoved) -> None:
    """Take a referent out of a store; with the last store gone, whatever in use needs it is orphaned."""
    stores = session.stores
    referent = record.referent_id
    code = stores.get(referent, 0) if stores is not None else 0
    store = DURABLE if record.store == "durable" else LIVE
    if stores is None or not code & store:
        return
    stores[referent] = code ^ store
    tree = session.tree
    if code & _HELD != store or tree is None:
        return
    for generation_id in tree.needed.get(referent, ()):
        generation = tree.generations[generation_id]
        generation.lost += 1
        if generation.held and generation.lost == 1:
            tree.broken += 1
        if in_use(tree, generation):
            _orphan(ctx, session, tree, generation, referent)


def reachable(session: Session, referent: str) -> bool:
    """Tell whether a store holds the referent now."""
    return bool(session.stores and session.stores.get(referent, 0) & _HELD)


def last_seen(session: Session, referent: str) -> dict[str, Any] | None:
    """Return the position and store where a referent was last added, or None if it never was."""
    code = (session.stores or {}).get(referent, 0)
    if not code:
        return None
    return {"position": code >> _SHIFT, "store": "durable" if code & _SEEN_DURABLE else "live"}


def judge_entered(ctx: Context, session: Session, tree: Tree, entered: Iterable[Generation]) -> None:
    """Judge the generations that came into use."""
    for generation in entered:
        if generation.lost and not generation.reclaimed:
            judge_reachability(ctx, session, tree, generation)


def judge_reachability(ctx: Context, session: Session, tree: Tree, generation: Generation) -> None:
    """Report each referent of a generation that is unreachable and has not been reported for it."""
    for referent in generation.referents:
        if not reachable(session, referent):
            _orphan(ctx, session, tree, generation, referent)


def judge_resummary(ctx: Context, session: Session, tree: Tree, previous: Generation, generation: Generation) -> None:
    """Judge a re-summarization: its orphans must be the previous generation's, and those none."""
    before = {r for r in previous.referents if not reachable(session, r)}
    after = {r for r in generation.referents if not reachable(session, r)}
    witness = [previous.position, generation.position]
    if before != after:
        ctx.blame_node(
            session,
            tree,
            generation,
            "idempotence_violation",
            witness=witness,
            evidence={"orphans_before": sorted(before), "orphans_after": sorted(after)},
        )
    if before:
        ctx.blame_node(
            session,
            tree,
            generation,
            "orphaned_resummarized",
            witness=witness,
            evidence={"orphans_before": sorted(before)},
        )


def count_survival(ctx: Context, session: Session, record: Summary, generation: Generation) -> None:
    """Count how many referents of a new generation are reachable."""
    if generation.referents:
        total = len(generation.referents)
        ctx.count_survival(session, record, "referent", total, total - generation.lost)


def trim(session: Session, kept_from: int) -> None:
    """Forget where referents were seen that no store has held since before a position."""
    stores = session.stores
    if stores:
        limit = kept_from << _SHIFT
        for referent in [r for r, code in stores.items() if not code & _HELD and code < limit]:
            del stores[referent]


def _orphan(ctx: Context, session: Session, tree: Tree, generation: Generation, referent: str) -> None:
    if generation.reported is None:
        generation.reported = {}
    elif referent in generation.reported:
        return
    generation.reported[referent] = None
    seen = last_seen(session, referent)
    witness = [generation.position, session.applied]
    if seen is not None:
        witness.append(seen["position"])
    ctx.blame_node(
        session,
        tree,
        generation,
        "referent_orphaned",
        (referent,),
        witness=witness,
        evidence={"referent_id": referent, "last_seen": seen},
    )
