"""Retention: is what a summary tree recalls enough for its workload, and was that measured before reclaiming.

Source of the rules: the text on the fidelity cliff: loss compounds with depth, and only probes measure it.
"""

from sidecar.engine.context import Context, moment
from sidecar.engine.state import Generation, Session, Tree
from sidecar.engine.tree import newest_of, parents_of, tree_of
from sidecar.protocol.records import Gc, Probe, Summary


def judge_retention(ctx: Context, session: Session, tree: Tree, generation: Generation, record: Summary) -> None:
    """Judge a summary's recall to the power of its depth against the workload's floor."""
    retention = record.retention
    if retention is None:
        return
    recall = retention.per_node_recall
    witness = [generation.position]
    if retention.source == "self_reported":
        probe = (tree.probes or {}).get(record.node_id)
        if probe is None:
            ctx.blame_node(
                session,
                tree,
                generation,
                "recall_self_reported",
                witness=witness,
                evidence={"per_node_recall": recall},
            )
        else:
            recalled, probes, _, position = probe
            recall = recalled / probes
            witness.append(position)
    floor = ctx.limits.workload(retention.workload).floor
    estimate = recall**retention.depth
    if estimate < floor:
        flatten = retention.flatten_available
        ctx.blame_node(
            session,
            tree,
            generation,
            "retention_below_floor",
            witness=witness,
            evidence={
                "per_node_recall": recall,
                "depth": retention.depth,
                "estimate": round(estimate, 6),
                "floor": floor,
            },
            disposition="flatten_and_defer_gc" if flatten else None,
        )


def note_probe(ctx: Context, session: Session, record: Probe) -> None:
    """Note what a probe of a node recalled."""
    tree = tree_of(session)
    tree.order += 1
    if tree.probes is None:
        tree.probes = {}
    tree.probes.pop(record.node_id, None)  # last again: the node that was not probed for longest is forgotten first
    tree.probes[record.node_id] = (record.recalled, record.probes, tree.order, session.applied)
    if len(tree.probes) > ctx.limits.nodes:
        del tree.probes[next(iter(tree.probes))]


def reclaim(ctx: Context, session: Session, record: Gc) -> None:
    """Judge and apply the reclaiming of nodes: first a probe of each, or of a summary above it, must have passed."""
    tree = tree_of(session)
    tree.order += 1
    verdicts: dict[float, dict[str, bool]] = {}
    for node_id in dict.fromkeys(record.node_ids):
        newest = newest_of(tree, node_id)
        if newest is None:
            continue
        workload = ctx.limits.workload(newest.workload)
        if not workload.gc_requires_probe:
            continue
        passed, best = _passed(tree, node_id, workload.floor, verdicts.setdefault(workload.floor, {}))
        if not passed:
            ctx.blame_node(
                session,
                tree,
                newest,
                "gc_before_probe",
                (moment(session),),
                witness=[newest.position, session.applied],
                evidence={"best_recall": best, "floor": workload.floor},
            )
    for node_id in record.node_ids:
        node = tree.nodes.get(node_id)
        if node is not None:
            for generation_id in (node.newest, *(node.older or {}).values()):
                tree.generations[generation_id].reclaimed = True


def _passed(tree: Tree, node_id: str, floor: float, known: dict[str, bool]) -> tuple[bool, float | None]:
    """Tell whether a probe of a node, or of one above it, reaches a floor; and if not, the best recall seen there.

    Args:
        known: what was found out for other nodes of the same record: above one that failed there is none that passes,
            and one that passed, with all between it and that probe, need not be asked again.
    """
    came_from: dict[str, str | None] = {node_id: None}
    todo = [node_id]
    best: float | None = None
    while todo:
        current = todo.pop()
        recall = _probed(tree, current)
        if known.get(current) or (recall is not None and recall >= floor):
            step: str | None = current
            while step is not None:
                known[step] = True
                step = came_from[step]
            return True, None
        if recall is not None:
            best = recall if best is None else max(best, recall)
        if current in known:
            continue  # it failed, and so did all above it
        for parent in parents_of(tree, current):
            if parent not in came_from:
                came_from[parent] = current
                todo.append(parent)
    known.update(dict.fromkeys(came_from, False))
    return False, best


def _probed(tree: Tree, node_id: str) -> float | None:
    """Return what the latest probe of a node since its own newest generation recalled, or None."""
    probe, newest = (tree.probes or {}).get(node_id), newest_of(tree, node_id)
    if probe is None or newest is None or probe[2] < newest.order:
        return None
    return probe[0] / probe[1]
