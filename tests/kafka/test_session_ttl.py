"""What is forgotten for its age stays refused if it was halted, also across a restart."""

from sidecar.config import Settings
from sidecar.engine import ask
from sidecar.protocol.api import AuthorizeRequest
from sidecar.tail.tail import Tail
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import read_topic
from tests.kafka.tail_support import running, send, settings_for, until, until_committed


def grant(session: str, seq: int) -> bytes:
    line = '{"kind":"authorization","session_id":"%s","seq":%d,"action_id":"deploy","precondition_id":"ticket"}'
    return (line % (session, seq)).encode()


def aged(settings: Settings) -> Settings:
    """Return settings under which sessions are forgotten after a second, which settings from outside may not say."""
    session = settings.session.model_copy(update={"ttl": 1.0})
    return settings.model_copy(
        update={"session": session, "snapshot": settings.snapshot.model_copy(update={"interval": 0.2})}
    )


def allowed(tail: Tail, session: str) -> bool | None:
    engine = tail.sessions.find(session).engine
    if engine is None or session not in engine:
        return None
    return ask.authorize(engine, AuthorizeRequest(session_id=session, action_id="deploy")).allowed


async def forgotten(settings: Settings, session: str) -> bool:
    told = await read_topic(settings.kafka.bootstrap_servers[0], settings.topics.sessions)
    return any(record.key == session.encode() and record.value is None for record in told)


async def test_a_halted_session_that_was_forgotten_stays_refused(kafka: KafkaBroker, unique: str) -> None:
    settings = settings_for(kafka.bootstrap, unique)
    action = b'{"kind":"action","session_id":"halted","seq":2,"action_id":"drop","irreversible":true}'
    async with running(aged(settings)) as (tail, _, _):
        await send(settings, [grant("well", 1), grant("halted", 1), action])
        await until(lambda: allowed(tail, "well") is True)
        await until(lambda: allowed(tail, "halted") is False)
        await until(lambda: forgotten(settings, "well"), within=20)
        await until(lambda: allowed(tail, "well") is None)
        assert allowed(tail, "halted") is False
    assert not await forgotten(settings, "halted")
    async with running(settings) as (tail, _, _):
        await until(lambda: allowed(tail, "halted") is False)
        assert allowed(tail, "well") is None
        # What comes later does not make it good, with whatever position.
        await send(settings, [grant("halted", 1), grant("halted", 3), grant("halted", 4)])
        await until_committed(settings)
        await until(lambda: tail.sessions.find("halted").engine is not None)
        assert allowed(tail, "halted") is False
