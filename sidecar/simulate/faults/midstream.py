"""Sessions whose beginning is not in the log."""

from sidecar.simulate.faults.kinds import planted
from sidecar.simulate.life import quiet
from sidecar.simulate.session import Session
from sidecar.simulate.world import Checkpoint


def _joined(session: Session) -> None:
    """Begin the log at a position far behind its first: what comes is not judged."""
    session.log.seq = session.covered = session.rng.randint(20, 5000)
    session.expect("session_joined")
    session.unjudged = True


def _state(s: Session) -> None:
    """Let an authority state what holds, which is all that is known from then on."""
    fields = {"edges": list(s.edges), "live": s.live, "durable": s.durable}
    seq = s.log.event("baseline", **fields, negative_constraints=list(s.constraints))
    s.unjudged = s.awaiting = False
    s.edges = dict.fromkeys(s.edges, seq)
    s.constraints = dict.fromkeys(s.constraints, seq)
    s.facts, s.calls, s.covered = {}, {}, seq - 1
    s.leaves, s.sections, s.root, s.checkpoints = [], [], None, []
    s.probed, s.revoked, s.once = set(), [], {}
    s.implicit, s.missing = [], []


@planted(prepare=_joined)
def session_joined(s: Session) -> Checkpoint | None:
    """Run for long before the sidecar does, so that nothing can be said of it, whatever it does."""
    quiet(s)
    s.act(s.name("drop-table"))
    return None


@planted("session_joined", "action_unauthorized", prepare=_joined)
def baseline_left_out(s: Session) -> Checkpoint | None:
    """Act on an approval that is missing where an authority states what holds in a session joined midstream."""
    if not s.unjudged:
        return None
    action, _ = left_out = s.rng.choice(list(s.edges))
    del s.edges[left_out]
    _state(s)
    quiet(s)
    s.act()
    s.checkpoint(s.leaf())
    quiet(s)
    s.expect("action_unauthorized", s.act(action))
    return None
