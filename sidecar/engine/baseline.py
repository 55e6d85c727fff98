"""Sessions joined midstream: nothing is claimed of them until a baseline says what holds.

Source of the rules: the protocol's "Joined midstream" and "Baseline".
"""

from sidecar.engine import floors, frontier, referents
from sidecar.engine.context import Context
from sidecar.engine.state import Session
from sidecar.protocol.records import Baseline


def join(ctx: Context, session: Session, first: int) -> None:
    """Leave a session unjudged whose beginning is not in the log.

    Args:
        first: the position of its first record.
    """
    session.unjudged = True
    session.applied = first - 1
    ctx.report(session, "session_joined", session.session_id, (), witness=[first], position=first)


def begin(ctx: Context, session: Session, record: Baseline) -> None:
    """Judge a session from here on, on what a baseline states; elsewhere a baseline is opaque."""
    if not session.unjudged and session.applied != 1:
        return
    session.unjudged = False
    session.unread = session.unread and session.applied <= session.unread_at
    session.baseline = session.applied
    ctx.news[session.session_id] = None
    for action, precondition in dict.fromkeys(record.edges or ()):
        frontier.grant(ctx, session, action, precondition)
    for referent in record.live or ():
        referents.put(session, referent, referents.LIVE)
    for referent in record.durable or ():
        referents.put(session, referent, referents.DURABLE)
    for constraint_id in dict.fromkeys(record.negative_constraints or ()):
        floors.forbid(session, constraint_id)
