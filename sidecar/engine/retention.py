"""Retention: is what a summary tree recalls enough for its workload, and was that measured before reclaiming.

Source of the rules: the text on the fidelity cliff: loss compounds with depth, and only probes measure it.
"""

from sidecar.engine.context import Context, moment
from sidecar.engine.state import Generation, Session, Tree
from sidecar.engine.tree import ancestors, newest_of, tree_of
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
    tree.probes[record.node_id] = (record.recalled, record.probes, tree.order, session.applied)


def reclaim(ctx: Context, session: Session, record: Gc) -> None:
    """Judge and apply the reclaiming of nodes: first a probe of each, or of a summary above it, must have passed."""
    tree = tree_of(session)
    tree.order += 1
    for node_id in dict.fromkeys(record.node_ids):
        newest = newest_of(tree, node_id)
        if newest is None:
            continue
        workload = ctx.limits.workload(newest.workload)
        if workload.gc_requires_probe:
            candidates = [node_id, *ancestors(tree, node_id)]
            best = max((r for n in candidates if (r := _probed(tree, n)) is not None), default=None)
            if best is None or best < workload.floor:
                ctx.blame_node(
                    session,
                    tree,
                    newest,
                    "gc_before_probe",
                    (moment(session),),
                    witness=[newest.position, session.applied],
                    evidence={"best_recall": best, "floor": workload.floor, "probe_any_of": candidates[:16]},
                )
    for node_id in record.node_ids:
        node = tree.nodes.get(node_id)
        if node is not None:
            for generation_id in (node.newest, *(node.older or {}).values()):
                tree.generations[generation_id].reclaimed = True


def _probed(tree: Tree, node_id: str) -> float | None:
    """Return what the latest probe of a node since its own newest generation recalled, or None."""
    probe, newest = (tree.probes or {}).get(node_id), newest_of(tree, node_id)
    if probe is None or newest is None or probe[2] < newest.order:
        return None
    return probe[0] / probe[1]
