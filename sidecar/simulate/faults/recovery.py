"""Resumes that are not safe, and what is done after them."""

from sidecar.simulate.faults.kinds import planted
from sidecar.simulate.life import quiet
from sidecar.simulate.session import Session
from sidecar.simulate.world import Checkpoint


@planted("stale_on_authorization")
def resumed_after_replay(s: Session) -> Checkpoint | None:
    """Crash after an approval of the checkpoint was taken back, and replay the log on top of it: exposure only."""
    checkpoint = s.checkpoint(s.leaf())
    quiet(s)
    s.revoke(s.rng.choice(list(s.edges)))
    quiet(s)
    s.resume(checkpoint, replayed=True)
    return None


def _resume_unknown(s: Session) -> None:
    node = s.newest.node
    s.resume(Checkpoint(f"checkpoint-{s.rng.randint(900, 999)}", node, node.lo, node.hi, [], sound=False))


@planted()
def resumed_unverified(s: Session) -> Checkpoint | None:
    """Resume from a checkpoint that the log knows nothing of."""
    _resume_unknown(s)
    return None


@planted("resumed_unverified", "action_on_degraded")
def action_on_degraded(s: Session) -> Checkpoint | None:
    """Act irreversibly after an unsafe resume, before anybody has reconciled."""
    _resume_unknown(s)
    quiet(s)
    s.expect("action_on_degraded", s.act())
    return None


@planted()
def generation_regressed(s: Session) -> Checkpoint | None:
    """Summarize a node under a generation that it already has, as a second compactor does."""
    node = s.leaf()
    s.again(node)
    quiet(s)
    node.generation -= s.rng.randint(1, 2)
    s.again(node)
    node.generation = 2
    s.expect("generation_regressed", node.node_id)
    return None


@planted()
def generation_mismatch(s: Session) -> Checkpoint | None:
    """Write a checkpoint that names another generation than the node's newest, or no known node."""
    node = s.leaf()
    if s.rng.random() < 0.5:
        s.again(node)
        checkpoint = s.checkpoint(node, summary_generation=1, sound=False)
    else:
        checkpoint = s.checkpoint(node, node_id=f"{node.node_id}-draft", sound=False)
    s.expect("generation_mismatch", checkpoint.checkpoint_id)
    return checkpoint


@planted("generation_mismatch", "resumed_unverified")
def crash_before_checkpoint(s: Session) -> Checkpoint | None:
    """Crash between a node's next generation and the checkpoint of it."""
    node = s.leaf()
    checkpoint = s.checkpoint(node, sound=False)
    quiet(s)
    s.again(node)
    s.resume(checkpoint)
    s.expect("generation_mismatch", checkpoint.checkpoint_id)
    return None


@planted()
def partial_summary(s: Session) -> Checkpoint | None:
    """Let a checkpoint capture a half-written summary, or one that reaches outside its range."""
    if s.rng.random() < 0.5:
        checkpoint = s.checkpoint(s.leaf(partial=True), sound=False)
    else:
        node = s.leaf()
        lo = node.lo + 1
        checkpoint = s.checkpoint(node, whole=False, frontier_lo=lo, asserted_edges=s.granted(lo, node.hi), sound=False)
    s.expect("partial_summary", checkpoint.checkpoint_id)
    return checkpoint


@planted()
def dependency_missing(s: Session) -> Checkpoint | None:
    """Resume without a reference that the next turn needs."""
    checkpoint = s.checkpoint(s.leaf())
    quiet(s)
    s.resume(checkpoint, missing=(s.name("ticket"),))
    return None


def _reissue(s: Session, checkpoint: Checkpoint, key: str, missing: tuple[str, ...] = ()) -> None:
    quiet(s)
    s.resume(checkpoint, missing)
    s.log.event("tool_result", call_key=key, handle=f"h{s.rng.getrandbits(32):08x}")
    s.expect("provenance_divergence", key)


@planted()
def provenance_divergence(s: Session) -> Checkpoint | None:
    """Call again after a resume, and get another resource than before."""
    checkpoint, key = s.checkpoint(s.leaf()), s.call()
    _reissue(s, checkpoint, key)
    return None


@planted("dependency_missing", "provenance_divergence")
def handle_reissued(s: Session) -> Checkpoint | None:
    """Lose a handle in the compaction, miss it after the crash, and call for a new one."""
    key = s.call()
    checkpoint = s.checkpoint(s.leaf())
    handle = s.calls[key]
    checkpoint.refs = [ref for ref in checkpoint.refs if ref != handle]
    _reissue(s, checkpoint, key, missing=(f"{handle}/lease",))
    return None


@planted("dependency_missing", "unreconciled_recompaction")
def unreconciled_recompaction(s: Session) -> Checkpoint | None:
    """Compact on after an unsafe resume, as if it had been a recovery."""
    dependency_missing(s)
    quiet(s)
    s.expect("unreconciled_recompaction", s.leaf().node_id)
    return None
