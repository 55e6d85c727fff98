"""Checkpoints that claim what the log does not say, and actions that nothing allows."""

from sidecar.simulate.faults.kinds import planted
from sidecar.simulate.life import quiet
from sidecar.simulate.session import Session
from sidecar.simulate.world import Checkpoint


@planted()
def frontier_ahead_of_log(s: Session) -> Checkpoint | None:
    """Claim to cover turns that have not happened yet."""
    ahead = s.rng.randint(1, 5)
    if s.rng.random() < 0.3:
        s.expect("frontier_ahead_of_log", s.leaf(frontier_hi=s.log.seq + ahead).node_id)
        return None
    checkpoint = s.checkpoint(s.leaf(), frontier_hi=s.log.seq + 1 + ahead, sound=False)
    s.expect("frontier_ahead_of_log", checkpoint.checkpoint_id)
    return checkpoint


@planted()
def checkpoint_rewritten(s: Session) -> Checkpoint | None:
    """Write two checkpoints under one id."""
    first = s.checkpoint(s.leaf())
    quiet(s)
    s.checkpoint(s.leaf(), checkpoint_id=first.checkpoint_id)
    s.checkpoints.pop()  # the second one is not taken
    first.sound = False
    s.expect("checkpoint_rewritten", first.checkpoint_id)
    return first


@planted(summarizer=True)
def edge_hallucinated(s: Session) -> Checkpoint | None:
    """Assert that an approval allowed an action that it was never given for."""
    (action, _), node = s.rng.choice(list(s.edges)), s.tree(s.rng.randint(1, 3))
    whole = s.rng.random() < 0.5
    asserted = [*s.granted(1 if whole else node.lo, node.hi), (action, s.name("approval"))]
    checkpoint = s.checkpoint(node, whole=whole, asserted_edges=asserted, sound=False)
    s.expect("edge_hallucinated", checkpoint.checkpoint_id)
    return checkpoint


@planted(
    "edge_hallucinated",
    "edge_dropped",
    "resumed_unverified",
    "action_unauthorized",
    "action_on_degraded",
    summarizer=True,
)
def merged_approval(s: Session) -> Checkpoint | None:
    """Merge two approvals into one, crash, and act on the permission that came of it."""
    edges = s.granted(1, s.log.seq)
    lost = s.rng.choice(edges)
    rollback = f"rollback-{lost[0]}"
    asserted = [*(edge for edge in edges if edge != lost), (rollback, lost[1])]
    checkpoint = s.checkpoint(s.tree(2), whole=True, asserted_edges=asserted, sound=False)
    s.expect("edge_hallucinated", checkpoint.checkpoint_id)
    s.expect("edge_dropped", checkpoint.checkpoint_id)
    quiet(s)
    s.resume(checkpoint)
    s.act(rollback)
    s.expect("action_unauthorized", rollback)
    s.expect("action_on_degraded", rollback)
    return None


def _revokes(session: Session) -> None:
    session.revoke(session.authorize())


@planted(summarizer=True, prepare=_revokes)
def edge_revoked(s: Session) -> Checkpoint | None:
    """Assert an edge that was revoked long ago."""
    node, whole = s.tree(s.rng.randint(1, 2)), s.rng.random() < 0.5
    asserted = [*s.granted(1 if whole else node.lo, node.hi), s.rng.choice(s.revoked)]
    checkpoint = s.checkpoint(node, whole=whole, asserted_edges=asserted, sound=False)
    s.expect("edge_revoked", checkpoint.checkpoint_id)
    return checkpoint


@planted(summarizer=True)
def edge_out_of_range(s: Session) -> Checkpoint | None:
    """Assert an edge that was granted before the range that was read."""
    node = s.leaf()
    edge = s.rng.choice(s.granted(1, node.lo - 1))
    asserted = [*s.granted(node.lo, node.hi), edge]
    checkpoint = s.checkpoint(node, whole=False, asserted_edges=asserted, sound=False)
    s.expect("edge_out_of_range", checkpoint.checkpoint_id)
    return checkpoint


@planted(summarizer=True)
def edge_dropped(s: Session) -> Checkpoint | None:
    """Keep both facts of an approval and lose which one allowed which."""
    node = s.tree(s.rng.randint(1, 3))
    asserted = s.granted(1, node.hi)
    asserted.remove(s.rng.choice(asserted))
    checkpoint = s.checkpoint(node, whole=True, asserted_edges=asserted, sound=False)
    s.expect("edge_dropped", checkpoint.checkpoint_id)
    return checkpoint


@planted("frontier_unverified")
def edges_not_asserted(s: Session) -> Checkpoint | None:
    """Write a checkpoint without any edges, as a framework that knows of none does."""
    checkpoint = s.checkpoint(s.leaf(), asserted_edges=None, sound=False)
    s.expect("frontier_unverified", checkpoint.checkpoint_id)
    return checkpoint


@planted("frontier_unverified", prepare=Session.authorize_implicitly)
def implicit_authorization(s: Session) -> Checkpoint | None:
    """Be authorized in prose only, so that no checkpoint over it can be verified."""
    return s.checkpoint(s.leaf(), whole=True)


def _grants_late(session: Session) -> None:
    session.late_grants = True


@planted("stale_on_authorization", prepare=_grants_late)
def exposure(s: Session) -> Checkpoint | None:
    """Be authorized after the newest checkpoint, as any agent that goes on is: exposed until the next one."""
    s.authorize()
    return None


@planted("stale_on_authorization", "resumed_unverified")
def resumed_stale(s: Session) -> Checkpoint | None:
    """Crash after an authorization or a revocation that no checkpoint covers."""
    checkpoint = s.checkpoint(s.leaf())
    quiet(s)
    if s.rng.random() < 0.5:
        s.authorize()
    else:
        s.revoke(s.rng.choice(list(s.edges)))
    quiet(s)
    s.resume(checkpoint)
    return None


@planted()
def action_unauthorized(s: Session) -> Checkpoint | None:
    """Do something irreversible that nothing allowed, or that is not allowed any more."""
    ended = [action for action, _ in s.revoked]
    action = s.rng.choice(ended) if ended and s.rng.random() < 0.5 else s.name("drop-table")
    s.expect("action_unauthorized", s.act(action))
    return None


def _approved_once(session: Session) -> None:
    session.authorize_once()


@planted("stale_on_authorization", "action_unauthorized", prepare=_approved_once)
def approval_used_twice(s: Session) -> Checkpoint | None:
    """Act twice on an approval that was given for one action."""
    edge = next(iter(s.once), None) or s.authorize_once()
    s.use_up(edge)
    quiet(s)
    s.expect("action_unauthorized", s.act(edge[0]))
    return None
