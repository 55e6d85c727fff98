"""Summaries that lose what they must carry, or carry what nobody can look up."""

from sidecar.simulate.faults.kinds import planted
from sidecar.simulate.life import quiet
from sidecar.simulate.names import CONSTRAINT_LOSS, RANKING_INSTRUCTIONS
from sidecar.simulate.session import Session
from sidecar.simulate.world import Checkpoint


def _acts_on_memory(session: Session) -> None:
    session.narrative = False


# --- referents --------------------------------------------------------------------------------------


@planted("referent_orphaned", "idempotence_violation", summarizer=True)
def referent_never_held(s: Session) -> Checkpoint | None:
    """Mention something in a summary that no store ever held."""
    node = s.tree(s.rng.randint(1, 3), ghost=s.name("benchmark"))
    s.expect("referent_orphaned", node.node_id)
    if node.generation > 1:  # a root that did not mention it the last time
        s.expect("idempotence_violation", node.node_id)
    return s.checkpoint(node, sound=False)


@planted()
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


@planted("idempotence_violation", "referent_orphaned", summarizer=True)
def idempotence_violation(s: Session) -> Checkpoint | None:
    """Summarize a node again and mention more than anybody can look up."""
    node = s.leaf()
    quiet(s)
    s.again(node, ghost=s.name("benchmark"))
    s.expect("idempotence_violation", node.node_id)
    s.expect("referent_orphaned", node.node_id)
    return s.checkpoint(node, sound=False)


@planted("orphaned_resummarized", "referent_orphaned")
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


@planted(summarizer=True)
def constraint_dropped(s: Session) -> Checkpoint | None:
    """Forget a prohibition, at the level where summarizers do."""
    constraint = s.prohibit()
    quiet(s)
    (level,) = s.rng.choices((1, 2, 3), CONSTRAINT_LOSS)
    node = s.tree(level, forget=constraint)
    s.expect("constraint_dropped", node.node_id)
    return s.checkpoint(node, sound=False)


@planted(summarizer=True)
def fact_dropped(s: Session) -> Checkpoint | None:
    """Forget a fact without saying so."""
    fact = s.learn()
    quiet(s)
    node = s.tree(s.rng.randint(1, 3), forget=fact)
    s.expect("fact_dropped", node.node_id)
    return s.checkpoint(node, sound=False)


@planted(summarizer=True)
def fact_below_floor(s: Session) -> Checkpoint | None:
    """Shorten a fact to its bare identifier."""
    fact = s.learn()
    quiet(s)
    node = s.tree(s.rng.randint(1, 3), texts={fact: s.facts[fact].anchor})
    s.expect("fact_below_floor", node.node_id)
    return s.checkpoint(node, sound=False)


@planted(summarizer=True)
def anchor_lost(s: Session) -> Checkpoint | None:
    """Paraphrase a fact until its identifier is gone."""
    fact = s.learn()
    quiet(s)
    node = s.tree(s.rng.randint(1, 3), texts={fact: "a related error about the lease was seen"})
    s.expect("anchor_lost", node.node_id)
    return s.checkpoint(node, sound=False)


@planted(summarizer=True)
def budget_open(s: Session) -> Checkpoint | None:
    """Read a part of the input only."""
    tokens = s.rng.randint(2500, 9000)
    node = s.leaf(input_tokens=tokens, input_tokens_read=tokens - s.rng.randint(1, 2000))
    s.expect("budget_open", node.node_id)
    return s.checkpoint(node, sound=False)


@planted("budget_open", summarizer=True)
def summary_of_nothing(s: Session) -> Checkpoint | None:
    """Get nothing to summarize, summarize that, and say so."""
    node = s.leaf(input_tokens=0, input_tokens_read=0, tokens_emitted=0)
    s.expect("budget_open", node.node_id)
    return s.checkpoint(node, sound=False)


@planted(summarizer=True)
def budget_exceeded(s: Session) -> Checkpoint | None:
    """Write more than the budget allows."""
    node = s.leaf(token_budget=2000, tokens_emitted=2000 + s.rng.randint(1, 400))
    s.expect("budget_exceeded", node.node_id)
    return s.checkpoint(node, sound=False)


@planted()
def reranking_without_floor(s: Session) -> Checkpoint | None:
    """Ask the summarizer to rank while nothing says what of a fact must survive."""
    s.learn(floor=None)
    quiet(s)
    node = s.leaf(instruction=s.rng.choice(RANKING_INSTRUCTIONS))
    s.expect("reranking_without_floor", node.node_id)
    s.checkpoint(node)  # a warning about a node leaves the checkpoint verified
    return None


# --- retention --------------------------------------------------------------------------------------


@planted(prepare=_acts_on_memory)
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


@planted(summarizer=True)
def recall_self_reported(s: Session) -> Checkpoint | None:
    """Take the summarizer's word for its recall."""
    node = s.leaf(retention={"per_node_recall": 0.999, "source": "self_reported", "depth": 1})
    s.expect("recall_self_reported", node.node_id)
    s.checkpoint(node)  # a warning about a node leaves the checkpoint verified
    return None


@planted(prepare=_acts_on_memory)
def gc_before_probe(s: Session) -> Checkpoint | None:
    """Reclaim a leaf before anybody has asked what the summary above it still knows."""
    leaf = s.leaf()
    s.gc((leaf.node_id,))
    s.expect("gc_before_probe", leaf.node_id)
    return None


@planted("gc_before_probe", prepare=_acts_on_memory)
def gc_after_failed_probe(s: Session) -> Checkpoint | None:
    """Reclaim leaves although the section above them failed its probe."""
    section = s.tree(2)
    s.probe(section, recalled=s.rng.randint(8, 16))
    s.gc(section.children)
    for node_id in section.children:
        s.expect("gc_before_probe", node_id)
    return None
