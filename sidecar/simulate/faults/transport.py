"""Records that are lost, damaged, or written by somebody else."""

from sidecar.simulate.faults.kinds import FAULTS, Fault, planted
from sidecar.simulate.life import quiet
from sidecar.simulate.session import Session
from sidecar.simulate.world import Checkpoint


@planted("log_gap", "frontier_unverified")
def log_gap(s: Session) -> Checkpoint | None:
    """Lose a record on the way to the log."""
    quiet(s)
    s.miss(s.log.lose())
    quiet(s)
    return s.newest


@planted("log_gap", "frontier_unverified")
def unreadable_record(s: Session) -> Checkpoint | None:
    """Publish a record with a field of the wrong type: its position can be read, and it cannot."""
    quiet(s)
    s.miss(s.log.garble())
    s.dead_letters += 1
    quiet(s)
    return s.newest


@planted("log_gap", "frontier_unverified")
def torn_record(s: Session) -> Checkpoint | None:
    """Publish half a record."""
    quiet(s)
    s.miss(s.log.tear())
    s.dead_letters += 1
    quiet(s)
    return s.newest


@planted("log_conflict", "frontier_unverified")
def log_conflict(s: Session) -> Checkpoint | None:
    """Publish two different records for one position."""
    quiet(s)
    seq = s.log.guarded_turn()
    quiet(s)
    s.log.contradict(seq, text="(a second writer's turn)")
    s.miss(seq, "log_conflict")
    return s.newest


@planted("log_conflict", "frontier_unverified")
def contested_revocation(s: Session) -> Checkpoint | None:
    """Take an approval back at a position that somebody else was given: nobody knows whether it still holds."""
    quiet(s)
    seq = s.log.guarded_turn()
    quiet(s)
    action, precondition = s.rng.choice(list(s.edges))
    s.log.contradict(seq, "revocation", action_id=action, precondition_id=precondition)
    s.miss(seq, "log_conflict")
    quiet(s)
    s.checkpoint(s.leaf())
    return s.newest


@planted("log_gap", "frontier_unverified", "action_unauthorized")
def another_tenants_grant(s: Session) -> Checkpoint | None:
    """Let another tenant approve something in this session, and act on it."""
    quiet(s)
    action = s.name("drop-table")
    s.miss(s.log.smuggle("authorization", "umbrella", action_id=action, precondition_id=s.name("approval")))
    s.dead_letters += 1
    quiet(s)
    s.expect("action_unauthorized", s.act(action))
    return s.newest


def stray_bytes(s: Session) -> Checkpoint | None:
    """Publish something that is no record at all: a dead letter, and no finding."""
    s.log.stray(s.rng.choice((b"\x00" * 16, b"not a record", b'["neither"]')))
    s.dead_letters += 1
    return None


FAULTS["stray_bytes"] = Fault(stray_bytes, ())
