"""The life of a session: it is planned, works, compacts, crashes and resumes."""

from sidecar.simulate.session import Session
from sidecar.simulate.settings import Shape
from sidecar.simulate.world import Checkpoint


def plan(session: Session) -> None:
    """Begin: the task, its approvals, its rules, its facts.

    Whatever is approved after the first checkpoint makes that one stale, which is exposure and so has to be
    planted; therefore a healthy session gets its approvals here.
    """
    rng, log = session.rng, session.log
    log.turn()
    for _ in range(rng.randint(3, 6)):
        session.authorize()
        log.turn()
    if rng.random() < 0.3:
        session.revoke(rng.choice(list(session.edges)))
    for _ in range(rng.randint(1, 3)):
        session.prohibit()
    session.prefer()
    for _ in range(rng.randint(1, 3)):
        session.learn(floor=rng.choice((0, 3, 5, 5)))
    for _ in range(rng.randint(2, 4)):
        session.store()


def work(session: Session, turns: int) -> None:
    """Go on for some turns: mostly opaque, now and then a call, an action, something learnt or let go."""
    turn, chance = session.log.turn, session.rng.random
    for _ in range(turns):
        x = chance()
        if x < 0.66:
            turn()
        elif x < 0.82:
            session.call()
        elif x < 0.87:
            session.act()
        elif x < 0.90:
            session.log.event("action", action_id=session.name("look"))
        elif x < 0.93:
            session.store()
        elif x < 0.97:
            if session.live:
                session.spill() if x < 0.95 else session.forget()
        elif x < 0.98:
            session.learn(floor=session.rng.choice((0, 3, 5)))
        elif x < 0.99:
            session.permit() if len(session.constraints) > 2 else session.prohibit()
        elif session.late_grants:
            session.authorize()


def quiet(session: Session, turns: int = 4) -> None:
    """Go on without doing anything that a verdict could depend on."""
    for _ in range(turns):
        session.call() if session.rng.random() < 0.25 else session.log.turn()


def compact(session: Session, leaves_per_section: int) -> Checkpoint:
    """Summarize, probe, reclaim, and write a checkpoint on the highest node made."""
    node = session.leaf()
    if len(session.leaves) >= leaves_per_section:
        reclaimed = tuple(leaf.node_id for leaf in session.leaves)
        section = session.section()
        session.probe(section)
        node = session.rewrite_root()
        session.probe(node)
        checkpoint = session.checkpoint(node)
        session.gc(reclaimed)
        return checkpoint
    return session.checkpoint(node)


def recover(session: Session) -> None:
    """Reconcile if need be, and write a new checkpoint that stands on nothing that came before."""
    if session.awaiting:
        session.reconcile()
    quiet(session)
    session.checkpoint(session.leaf(), whole=False)
    quiet(session, 2)


def live(session: Session, shape: Shape) -> None:
    """Work, compact and crash for as many cycles as the shape says."""
    rng = session.rng
    for _ in range(rng.randint(*shape.cycles)):
        work(session, rng.randint(*shape.turns))
        checkpoint = compact(session, shape.leaves_per_section)
        if checkpoint.sound and rng.random() < 0.35:
            quiet(session)
            session.resume(checkpoint)
            session.call(again=True)
            if rng.random() < 0.2:
                session.reconcile()
    work(session, rng.randint(*shape.turns) // 2)
