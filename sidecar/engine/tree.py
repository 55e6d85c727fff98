"""The summary tree: generations, what they were built from, and which of them are in use.

Two counts keep the questions cheap. `held` says whether a generation stands in the basis of the checkpoint in
force: when that changes, only the generations that enter or leave the basis are touched. `below` collects the
flags of a generation's whole basis, marked upward when a finding is made.
"""

from collections.abc import Iterable

from sidecar.engine.context import Context, mark_upward
from sidecar.engine.ranges import inherited
from sidecar.engine.state import FORGOTTEN, Generation, Node, Session, Tree, Written
from sidecar.protocol.records import Summary

LINKS = 8
"""How many links to others a generation may have on average, where there are as many as `Limits.nodes` allows."""


def tree_of(session: Session) -> Tree:
    """Return the session's tree, made when it is first needed."""
    if session.tree is None:
        session.tree = Tree()
    return session.tree


def newest_of(tree: Tree, node_id: str) -> Generation | None:
    """Return a node's newest generation, or None if the node is unknown."""
    node = tree.nodes.get(node_id)
    return None if node is None else tree.generations[node.newest]


def taken(tree: Tree, node_id: str) -> int:
    """Return the number of a node's newest generation, also of a forgotten one; 0 if none was taken."""
    newest = newest_of(tree, node_id)
    if newest is not None:
        return newest.number
    return (tree.forgotten or {}).get(node_id, 0)


def known_children(tree: Tree, record: Summary) -> list[Generation]:
    """Return the newest generations of the nodes that a summary names as children, itself aside."""
    found = []
    for child in dict.fromkeys(record.children or ()):
        node = tree.nodes.get(child)
        if node is not None and child != record.node_id:
            found.append(tree.generations[node.newest])
    return found


def commit(ctx: Context, session: Session, tree: Tree, record: Summary, partial: bool) -> Generation:
    """Take a summary: make its generation the newest of its node."""
    children = known_children(tree, record)
    tree.made += 1
    retention = record.retention
    generation = Generation(
        id=tree.made,
        node_id=record.node_id,
        number=record.generation,
        order=tree.order,
        position=session.applied,
        level=record.level,
        lo=record.frontier_lo,
        hi=record.frontier_hi,
        partial=partial,
        workload=retention.workload if retention else None,
        children=tuple(dict.fromkeys(c for c in record.children or () if c != record.node_id)),
        referents=tuple(dict.fromkeys(record.referents or ())),
        constraints=record.negative_constraints or (),
        facts=record.facts or None,
        built_from=[child.id for child in children],
        inherited=inherited(record.frontier_lo, record.frontier_hi, children),
    )
    tree.generations[generation.id] = generation
    if tree.links + _links(generation) > LINKS * ctx.limits.nodes:
        # Too many to walk for each resume: what it was built from is as good as forgotten.
        children, generation.built_from, generation.children = [], [], ()
        generation.below |= FORGOTTEN
    tree.links += _links(generation)
    for child in children:
        generation.below |= child.below
        if child.above is None:
            child.above = [generation.id]
        else:
            child.above.append(generation.id)
    if tree.forgotten and any(name in tree.forgotten for name in (record.node_id, *generation.children)):
        generation.below |= FORGOTTEN  # what it replaces or was built from can no longer be judged
    if session.stub and (
        len(children) < len(generation.children) or (record.generation > 1 and record.node_id not in tree.nodes)
    ):
        generation.below |= FORGOTTEN  # the same, where not even their names are kept
    node = tree.nodes.get(record.node_id)
    if node is None:
        tree.nodes[record.node_id] = Node(generation.id)
    else:
        _supersede(tree, node, generation)
    if generation.children and tree.parents is None:
        tree.parents = {}
    for name in generation.children:
        assert tree.parents is not None
        tree.parents.setdefault(name, {})[generation.node_id] = None
    track(session, tree, generation)
    if len(tree.generations) > ctx.limits.nodes:
        _forget_oldest(tree)
    return generation


def attach(tree: Tree, generation: Generation) -> list[Written]:
    """Give a generation to the checkpoints that named it before it was committed; return them."""
    waiting = (tree.expected or {}).pop(_expectation(generation.node_id, generation.number), ())
    found = [tree.checkpoints[c] for c in waiting if c in tree.checkpoints]
    for written in found:
        written.basis = generation.id
    return found


def find_basis(tree: Tree, written: Written) -> None:
    """Find a checkpoint's generation, or note that it is expected."""
    node = tree.nodes.get(written.node_id)
    newest = tree.generations[node.newest] if node else None
    if newest is not None and written.generation == newest.number:
        written.basis = newest.id
    elif node is not None and newest is not None and written.generation < newest.number:
        written.basis = (node.older or {}).get(written.generation)
    else:
        if tree.expected is None:
            tree.expected = {}
        tree.expected.setdefault(_expectation(written.node_id, written.generation), []).append(written.id)


def hold(session: Session, tree: Tree, root: int | None) -> list[Generation]:
    """Make a generation (or none) the root of the basis in force; return those that came into the basis."""
    entered: list[Generation] = []
    if root == tree.root:
        return entered
    todo = [root] if root is not None else []
    while todo:
        generation = tree.generations[todo.pop()]
        generation.held += 1
        if generation.held == 1:
            if not generation.newest:
                track(session, tree, generation)
            if generation.lost:
                tree.broken += 1
            entered.append(generation)
            todo.extend(generation.built_from)
    if tree.root is not None:
        _release(tree, [tree.root])
    tree.root = root
    return entered


def in_use(tree: Tree, generation: Generation) -> bool:
    """Tell whether a generation is in use (protocol: "Words used")."""
    if generation.reclaimed:
        return False
    if generation.held:
        return True
    if not generation.newest:
        return False
    return tree.newest is None or generation.order > tree.checkpoints[tree.newest].order


def track(session: Session, tree: Tree, generation: Generation) -> None:
    """Start to count a generation's unreachable referents."""
    stores = session.stores or {}
    lost = 0
    for referent in generation.referents:
        tree.needed.setdefault(referent, []).append(generation.id)
        lost += not stores.get(referent, 0) & 3
    generation.lost = lost


def parents_of(tree: Tree, node_id: str) -> Iterable[str]:
    """Return the nodes whose newest generations name a node as their child."""
    return (tree.parents or {}).get(node_id, ())


def unreachable_below(session: Session, tree: Tree, root: Generation, known: dict[int, bool]) -> bool:
    """Tell whether a referent of a generation, or of one that it was built from, is unreachable now.

    For the basis in force this is a count; another one is walked.

    Args:
        known: what was found out before about generations, at the same moment; what is found out now is added.
    """
    if root.id == tree.root:
        return tree.broken > 0
    stores = session.stores or {}
    todo = [root]
    while todo:
        generation = todo[-1]
        if generation.id in known:
            todo.pop()
            continue
        if generation.newest or generation.held:
            lost = generation.lost > 0
        else:
            lost = any(not stores.get(r, 0) & 3 for r in generation.referents)
        below = [known.get(b) for b in generation.built_from]
        if lost or any(below):
            known[generation.id] = True
        elif None in below:
            todo += [tree.generations[b] for b in generation.built_from if b not in known]
            continue
        else:
            known[generation.id] = False
        todo.pop()
    return known[root.id]


def forget_checkpoint(tree: Tree, written: Written) -> None:
    """Forget a checkpoint: from here on it is an unknown one."""
    del tree.checkpoints[written.id]
    if written.id in tree.candidates:
        tree.candidates.remove(written.id)
    if written.basis is None and tree.expected:
        key = _expectation(written.node_id, written.generation)
        waiting = tree.expected.get(key, [])
        if written.id in waiting:
            waiting.remove(written.id)
            if not waiting:
                del tree.expected[key]


def _supersede(tree: Tree, node: Node, generation: Generation) -> None:
    old = tree.generations[node.newest]
    old.newest = False
    old.facts, old.constraints = None, ()  # only newest generations are asked what they carry
    if node.older is None:
        node.older = {}
    node.older[old.number] = old.id
    node.newest = generation.id
    if not old.held:
        _untrack(tree, old)
    _disown(tree, old)


def _disown(tree: Tree, generation: Generation) -> None:
    """Take a generation that is no longer its node's newest out of the children's index of parents."""
    if tree.parents is None:
        return
    for name in generation.children:
        parents = tree.parents.get(name)
        if parents is not None:
            parents.pop(generation.node_id, None)
            if not parents:
                del tree.parents[name]


def _untrack(tree: Tree, generation: Generation) -> None:
    for referent in generation.referents:
        needing = tree.needed[referent]
        needing.remove(generation.id)
        if not needing:
            del tree.needed[referent]
    generation.lost = 0


def _release(tree: Tree, todo: list[int]) -> None:
    while todo:
        generation = tree.generations[todo.pop()]
        generation.held -= 1
        if generation.held == 0:
            if generation.lost:
                tree.broken -= 1
            if not generation.newest:
                _untrack(tree, generation)
            todo.extend(generation.built_from)


def _forget_oldest(tree: Tree) -> None:
    """Forget the oldest generation; what was built from it can no longer be verified."""
    oldest = next((g for g in tree.generations.values() if g.id != tree.root and g.id != tree.made), None)
    if oldest is None:
        return  # the one just made, and the one that the checkpoint in force stands on
    for parent_id in oldest.above or ():
        parent = tree.generations[parent_id]
        if parent.held:
            _release(tree, [oldest.id])
        parent.built_from.remove(oldest.id)
        tree.links -= 1
        mark_upward(tree, parent, FORGOTTEN)
    for child_id in oldest.built_from:
        above = tree.generations[child_id].above
        if above is not None:
            above.remove(oldest.id)
    if oldest.newest:
        _disown(tree, oldest)
        _untrack(tree, oldest)
        if tree.forgotten is None:
            tree.forgotten = {}
        tree.forgotten[oldest.node_id] = oldest.number
        for older in (tree.nodes.pop(oldest.node_id).older or {}).values():
            tree.generations[older].newest = False
    else:
        node = tree.nodes.get(oldest.node_id)
        if node is not None and node.older:
            node.older.pop(oldest.number, None)
    for written in tree.checkpoints.values():
        if written.basis == oldest.id:
            written.basis = None
            written.flags |= FORGOTTEN
    tree.links -= _links(oldest)
    del tree.generations[oldest.id]


def _links(generation: Generation) -> int:
    return len(generation.built_from) + len(generation.children)


def _expectation(node_id: str, generation: int) -> str:
    return f"{generation} {node_id}"
