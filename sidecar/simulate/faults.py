"""The faults that can be planted, each with exactly the findings that it must cause.

A fault is planted once, after some healthy life. Its incident goes wrong in one way, states what that must cause,
and returns a checkpoint that must not be resumed from on its account, if there is one.
"""

from collections.abc import Callable

from msgspec import Struct

from sidecar.simulate.life import quiet
from sidecar.simulate.names import CONSTRAINT_LOSS, RANKING_INSTRUCTIONS
from sidecar.simulate.session import Checkpoint, Session

Incident = Callable[[Session], Checkpoint | None]


def _nothing(session: Session) -> None:
    """Leave the session as it is."""


class Fault(Struct, frozen=True):
    """Describe a fault kind.

    Args:
        incident: what goes wrong.
        rules: the rules it can be flagged by (which of them each time, the incident says).
        summarizer: whether a summarizer is to blame, so that worse models do it more often.
        prepare: what has to be so from the session's begin.
    """

    incident: Incident
    rules: tuple[str, ...]
    summarizer: bool = False
    prepare: Callable[[Session], None] = _nothing


FAULTS: dict[str, Fault] = {}
"""Every fault kind by name. One that is named like a rule causes that rule's finding and hardly another."""


def _fault(
    *rules: str, summarizer: bool = False, prepare: Callable[[Session], None] = _nothing
) -> Callable[[Incident], Incident]:
    def register(incident: Incident) -> Incident:
        name = incident.__name__
        FAULTS[name] = Fault(incident, rules or (name,), summarizer, prepare)
        return incident

    return register


def _acts_on_memory(session: Session) -> None:
    session.narrative = False


# --- causal frontier --------------------------------------------------------------------------------


@_fault()
def frontier_ahead_of_log(s: Session) -> Checkpoint | None:
    """Claim to cover turns that have not happened yet."""
    ahead = s.rng.randint(1, 5)
    if s.rng.random() < 0.3:
        s.expect("frontier_ahead_of_log", s.leaf(frontier_hi=s.log.seq + ahead).node_id)
        return None
    checkpoint = s.checkpoint(s.leaf(), frontier_hi=s.log.seq + 1 + ahead, sound=False)
    s.expect("frontier_ahead_of_log", checkpoint.checkpoint_id)
    return checkpoint


@_fault()
def checkpoint_rewritten(s: Session) -> Checkpoint | None:
    """Write two checkpoints under one id."""
    first = s.checkpoint(s.leaf())
    quiet(s)
    s.checkpoint(s.leaf(), checkpoint_id=first.checkpoint_id)
    s.checkpoints.pop()  # the second one is not taken
    first.sound = False
    s.expect("checkpoint_rewritten", first.checkpoint_id)
    return first


@_fault(summarizer=True)
def edge_hallucinated(s: Session) -> Checkpoint | None:
    """Assert that an approval allowed an action that it was never given for."""
    (action, _), node = s.rng.choice(list(s.edges)), s.tree(s.rng.randint(1, 3))
    whole = s.rng.random() < 0.5
    asserted = [*s.granted(1 if whole else node.lo, node.hi), (action, s.name("approval"))]
    checkpoint = s.checkpoint(node, whole=whole, asserted_edges=asserted, sound=False)
    s.expect("edge_hallucinated", checkpoint.checkpoint_id)
    return checkpoint


@_fault(
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


@_fault(summarizer=True, prepare=_revokes)
def edge_revoked(s: Session) -> Checkpoint | None:
    """Assert an edge that was revoked long ago."""
    node, whole = s.tree(s.rng.randint(1, 2)), s.rng.random() < 0.5
    asserted = [*s.granted(1 if whole else node.lo, node.hi), s.rng.choice(s.revoked)]
    checkpoint = s.checkpoint(node, whole=whole, asserted_edges=asserted, sound=False)
    s.expect("edge_revoked", checkpoint.checkpoint_id)
    return checkpoint


@_fault(summarizer=True)
def edge_out_of_range(s: Session) -> Checkpoint | None:
    """Assert an edge that was granted before the range that was read."""
    node = s.leaf()
    edge = s.rng.choice(s.granted(1, node.lo - 1))
    asserted = [*s.granted(node.lo, node.hi), edge]
    checkpoint = s.checkpoint(node, whole=False, asserted_edges=asserted, sound=False)
    s.expect("edge_out_of_range", checkpoint.checkpoint_id)
    return checkpoint


@_fault(summarizer=True)
def edge_dropped(s: Session) -> Checkpoint | None:
    """Keep both facts of an approval and lose which one allowed which."""
    node = s.tree(s.rng.randint(1, 3))
    asserted = s.granted(1, node.hi)
    asserted.remove(s.rng.choice(asserted))
    checkpoint = s.checkpoint(node, whole=True, asserted_edges=asserted, sound=False)
    s.expect("edge_dropped", checkpoint.checkpoint_id)
    return checkpoint


@_fault("frontier_unverified")
def edges_not_asserted(s: Session) -> Checkpoint | None:
    """Write a checkpoint without any edges, as a framework that knows of none does."""
    checkpoint = s.checkpoint(s.leaf(), asserted_edges=None, sound=False)
    s.expect("frontier_unverified", checkpoint.checkpoint_id)
    return checkpoint


@_fault("frontier_unverified", prepare=Session.authorize_implicitly)
def implicit_authorization(s: Session) -> Checkpoint | None:
    """Be authorized in prose only, so that no checkpoint over it can be verified."""
    return s.checkpoint(s.leaf(), whole=True)


def _grants_late(session: Session) -> None:
    session.late_grants = True


@_fault("stale_on_authorization", prepare=_grants_late)
def exposure(s: Session) -> Checkpoint | None:
    """Be authorized after the newest checkpoint, as any agent that goes on is: exposed until the next one."""
    s.authorize()
    return None


@_fault("stale_on_authorization", "resumed_unverified")
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


@_fault()
def action_unauthorized(s: Session) -> Checkpoint | None:
    """Do something irreversible that nothing allowed, or that is not allowed any more."""
    ended = [action for action, _ in s.revoked]
    action = s.rng.choice(ended) if ended and s.rng.random() < 0.5 else s.name("drop-table")
    s.expect("action_unauthorized", s.act(action))
    return None


# --- recovery ---------------------------------------------------------------------------------------


def _resume_unknown(s: Session) -> None:
    node = s.newest.node
    s.resume(Checkpoint(f"checkpoint-{s.rng.randint(900, 999)}", node, node.lo, node.hi, [], sound=False))


@_fault()
def resumed_unverified(s: Session) -> Checkpoint | None:
    """Resume from a checkpoint that the log knows nothing of."""
    _resume_unknown(s)
    return None


@_fault("resumed_unverified", "action_on_degraded")
def action_on_degraded(s: Session) -> Checkpoint | None:
    """Act irreversibly after an unsafe resume, before anybody has reconciled."""
    _resume_unknown(s)
    quiet(s)
    s.expect("action_on_degraded", s.act())
    return None


@_fault()
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


@_fault()
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


@_fault("generation_mismatch", "resumed_unverified")
def crash_before_checkpoint(s: Session) -> Checkpoint | None:
    """Crash between a node's next generation and the checkpoint of it."""
    node = s.leaf()
    checkpoint = s.checkpoint(node, sound=False)
    quiet(s)
    s.again(node)
    s.resume(checkpoint)
    s.expect("generation_mismatch", checkpoint.checkpoint_id)
    return None


@_fault()
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


@_fault()
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


@_fault()
def provenance_divergence(s: Session) -> Checkpoint | None:
    """Call again after a resume, and get another resource than before."""
    checkpoint, key = s.checkpoint(s.leaf()), s.call()
    _reissue(s, checkpoint, key)
    return None


@_fault("dependency_missing", "provenance_divergence")
def handle_reissued(s: Session) -> Checkpoint | None:
    """Lose a handle in the compaction, miss it after the crash, and call for a new one."""
    key = s.call()
    checkpoint = s.checkpoint(s.leaf())
    handle = s.calls[key]
    checkpoint.refs = [ref for ref in checkpoint.refs if ref != handle]
    _reissue(s, checkpoint, key, missing=(f"{handle}/lease",))
    return None


@_fault("dependency_missing", "unreconciled_recompaction")
def unreconciled_recompaction(s: Session) -> Checkpoint | None:
    """Compact on after an unsafe resume, as if it had been a recovery."""
    dependency_missing(s)
    quiet(s)
    s.expect("unreconciled_recompaction", s.leaf().node_id)
    return None


# --- referents --------------------------------------------------------------------------------------


@_fault("referent_orphaned", "idempotence_violation", summarizer=True)
def referent_never_held(s: Session) -> Checkpoint | None:
    """Mention something in a summary that no store ever held."""
    node = s.tree(s.rng.randint(1, 3), ghost=s.name("benchmark"))
    s.expect("referent_orphaned", node.node_id)
    if node.generation > 1:  # a root that did not mention it the last time
        s.expect("idempotence_violation", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault()
def referent_orphaned(s: Session) -> Checkpoint | None:
    """Evict something from the last store while a summary in use depends on it."""
    node = s.leaf(ghost=(referent := _held_apart(s)))
    checkpoint = s.checkpoint(node)
    quiet(s)
    _evict(s, referent)
    checkpoint.sound = False
    s.expect("referent_orphaned", node.node_id)
    return checkpoint


def _held_apart(s: Session) -> str:
    """Store something that no other summary will mention."""
    referent = s.name("snapshot")
    s.log.event("referent_added", referent_id=referent, store=s.rng.choice(("live", "durable")))
    return referent


def _evict(s: Session, referent: str) -> None:
    s.log.event("referent_removed", referent_id=referent, store="live")
    s.log.event("referent_removed", referent_id=referent, store="durable")


@_fault("idempotence_violation", "referent_orphaned", summarizer=True)
def idempotence_violation(s: Session) -> Checkpoint | None:
    """Summarize a node again and mention more than anybody can look up."""
    node = s.leaf()
    quiet(s)
    s.again(node, ghost=s.name("benchmark"))
    s.expect("idempotence_violation", node.node_id)
    s.expect("referent_orphaned", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault("orphaned_resummarized", "referent_orphaned")
def orphaned_resummarized(s: Session) -> Checkpoint | None:
    """Summarize a node again although what it mentions is gone."""
    node = s.leaf(ghost=(referent := _held_apart(s)))
    quiet(s)
    _evict(s, referent)
    s.again(node)
    s.expect("referent_orphaned", node.node_id)
    s.expect("orphaned_resummarized", node.node_id)
    return s.checkpoint(node, sound=False)


# --- floors -----------------------------------------------------------------------------------------


@_fault(summarizer=True)
def constraint_dropped(s: Session) -> Checkpoint | None:
    """Forget a prohibition, at the level where summarizers do."""
    constraint = s.prohibit()
    quiet(s)
    (level,) = s.rng.choices((1, 2, 3), CONSTRAINT_LOSS)
    node = s.tree(level, forget=constraint)
    s.expect("constraint_dropped", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault(summarizer=True)
def fact_dropped(s: Session) -> Checkpoint | None:
    """Forget a fact without saying so."""
    fact = s.learn()
    quiet(s)
    node = s.tree(s.rng.randint(1, 3), forget=fact)
    s.expect("fact_dropped", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault(summarizer=True)
def fact_below_floor(s: Session) -> Checkpoint | None:
    """Shorten a fact to its bare identifier."""
    fact = s.learn()
    quiet(s)
    node = s.tree(s.rng.randint(1, 3), texts={fact: s.facts[fact].anchor})
    s.expect("fact_below_floor", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault(summarizer=True)
def anchor_lost(s: Session) -> Checkpoint | None:
    """Paraphrase a fact until its identifier is gone."""
    fact = s.learn()
    quiet(s)
    node = s.tree(s.rng.randint(1, 3), texts={fact: "a related error about the lease was seen"})
    s.expect("anchor_lost", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault(summarizer=True)
def budget_open(s: Session) -> Checkpoint | None:
    """Read a part of the input only."""
    tokens = s.rng.randint(2500, 9000)
    node = s.leaf(input_tokens=tokens, input_tokens_read=tokens - s.rng.randint(1, 2000))
    s.expect("budget_open", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault(summarizer=True)
def budget_exceeded(s: Session) -> Checkpoint | None:
    """Write more than the budget allows."""
    node = s.leaf(token_budget=2000, tokens_emitted=2000 + s.rng.randint(1, 400))
    s.expect("budget_exceeded", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault()
def reranking_without_floor(s: Session) -> Checkpoint | None:
    """Ask the summarizer to rank while nothing says what of a fact must survive."""
    s.learn(floor=None)
    quiet(s)
    node = s.leaf(instruction=s.rng.choice(RANKING_INSTRUCTIONS))
    s.expect("reranking_without_floor", node.node_id)
    s.checkpoint(node)  # a warning about a node leaves the checkpoint verified
    return None


# --- retention --------------------------------------------------------------------------------------


@_fault(prepare=_acts_on_memory)
def retention_below_floor(s: Session) -> Checkpoint | None:
    """Commit a node deep enough that 90% a level is not enough: 73% after three, 59% after five."""
    retention = {
        "per_node_recall": 0.9,
        "source": "probe",
        "depth": s.rng.choice((3, 5)),
        "workload": "remediation",
        "flatten_available": s.rng.random() < 0.5,
    }
    node = s.leaf(retention=retention)
    s.expect("retention_below_floor", node.node_id)
    return s.checkpoint(node, sound=False)


@_fault(summarizer=True)
def recall_self_reported(s: Session) -> Checkpoint | None:
    """Take the summarizer's word for its recall."""
    node = s.leaf(retention={"per_node_recall": 0.999, "source": "self_reported", "depth": 1})
    s.expect("recall_self_reported", node.node_id)
    s.checkpoint(node)  # a warning about a node leaves the checkpoint verified
    return None


@_fault(prepare=_acts_on_memory)
def gc_before_probe(s: Session) -> Checkpoint | None:
    """Reclaim a leaf before anybody has asked what the summary above it still knows."""
    leaf = s.leaf()
    s.gc((leaf.node_id,))
    s.expect("gc_before_probe", leaf.node_id)
    return None


@_fault("gc_before_probe", prepare=_acts_on_memory)
def gc_after_failed_probe(s: Session) -> Checkpoint | None:
    """Reclaim leaves although the section above them failed its probe."""
    section = s.tree(2)
    s.probe(section, recalled=s.rng.randint(8, 16))
    s.gc(section.children)
    for node_id in section.children:
        s.expect("gc_before_probe", node_id)
    return None


# --- transport --------------------------------------------------------------------------------------


@_fault("log_gap", "frontier_unverified")
def log_gap(s: Session) -> Checkpoint | None:
    """Lose a record on the way to the log."""
    quiet(s)
    s.miss(s.log.lose())
    quiet(s)
    return s.newest


@_fault("log_gap", "frontier_unverified")
def unreadable_record(s: Session) -> Checkpoint | None:
    """Publish a record with a field of the wrong type: its position can be read, and it cannot."""
    quiet(s)
    s.miss(s.log.garble())
    s.dead_letters += 1
    quiet(s)
    return s.newest


@_fault("log_gap", "frontier_unverified")
def torn_record(s: Session) -> Checkpoint | None:
    """Publish half a record."""
    quiet(s)
    s.miss(s.log.tear())
    s.dead_letters += 1
    quiet(s)
    return s.newest


@_fault()
def log_conflict(s: Session) -> Checkpoint | None:
    """Publish two different records for one position."""
    quiet(s)
    seq = s.log.turn()
    quiet(s)
    s.log.contradict(seq)
    s.expect("log_conflict")
    return None


def stray_bytes(s: Session) -> Checkpoint | None:
    """Publish something that is no record at all: a dead letter, and no finding."""
    s.log.stray(s.rng.choice((b"\x00" * 16, b"not a record", b'["neither"]')))
    s.dead_letters += 1
    return None


FAULTS["stray_bytes"] = Fault(stray_bytes, ())
