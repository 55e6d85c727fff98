"""Ask, act, publish: what is done around every irreversible action.

Whether its record can be written is known before the action: room for it is kept before the guard is asked, and the
intention is in the log before anything is done. So a full disk or a full journal refuses, and after a crash the log
shows what had been begun.
"""

from typing import Any, Literal, Protocol

from sidecar.client.deferred import refuse_deferred
from sidecar.client.refused import ActionUnlogged, Answer, Refused
from sidecar.client.standing import behind
from sidecar.client.steps import Call, Procedure, call, finish
from sidecar.protocol.api import Reason

OnError = Literal["publish", "skip"]


class Log(Protocol):
    """Be what is needed of an `Emitter` or a `SyncEmitter`."""

    @property
    def session_id(self) -> str:
        """The session."""

    @property
    def position(self) -> int:
        """The last `seq` given out."""

    def give_back(self, room: int) -> None:
        """Give back room that was kept and not used; never waits."""


def carried_out(
    guard: object,
    log: Log,
    act: Call,
    *,
    action_id: str,
    checkpoint_id: str | None = None,
    on_error: OnError = "publish",
    not_acted: tuple[type[BaseException], ...] = (),
) -> Procedure[Any]:
    """Ask whether an action may be carried out, carry it out, and publish that it was; return what it returned.

    Args:
        guard: whom to ask.
        log: where to publish.
        act: what carries it out.
        action_id: the action.
        checkpoint_id: the checkpoint that must be verified for it.
        on_error: whether an action that raised counts as carried out.
        not_acted: what the action raises if it has not been carried out yet.

    Raises:
        Refused: it was not permitted, so it was not carried out.
        ActionUnlogged: it was carried out, or may have been, and could not be published.
        ClientError: the log takes no records, so nothing was asked, and nothing was carried out.
        TypeError: it returned something that acts only later.
    """
    if not action_id:
        raise ValueError("the action has no id: an empty one authorizes nothing")
    room = yield call(log, "reserve", action_id)
    kept = 2  # for the intention, and for the action
    try:
        answer = yield call(
            guard, "authorize", log.session_id, action_id, checkpoint_id=checkpoint_id, min_seq=log.position
        )
        if (behind := fallen_behind(log, answer)) is not None:
            answer.allowed = False
            answer.reasons.append(behind)
        if answer.allowed is not True:
            raise Refused(action_id, answer)
        kept -= 1
        yield call(log, "intend", action_id, room)
        try:
            result = yield act
            refuse_deferred(result)
        except GeneratorExit:
            raise
        except BaseException as error:
            # It may have been carried out all the same: a lost answer, a timeout, a failure after the effect.
            if on_error == "publish" and not isinstance(error, not_acted):
                kept -= 1
                yield from _published(log, action_id, room, None, error)
            raise
        kept -= 1
        yield from _published(log, action_id, room, result, None)
        return result
    finally:
        log.give_back(kept * room)


def fallen_behind(log: Log, answer: Answer) -> Reason | None:
    """Return why nothing may be done if the guard knows records of the session that this log has not written.

    A log has one writer, so nobody else can have written them: its journal was lost, or is an older copy.
    """
    # Read after the answer: what was logged meanwhile may be known there already.
    position, own = answer.position, log.position
    if position is None or position <= own:
        return None
    return Reason(code="log_incomplete", detail=behind(log.session_id, "the guard", position, own))


def _published(log: Log, action_id: str, room: int, result: object, error: BaseException | None) -> Procedure[None]:
    try:
        yield finish(log, "acted", action_id, room)
    except GeneratorExit:
        raise
    except Exception as failure:
        unlogged = ActionUnlogged(log.session_id, action_id, result, error)
        if error is not None and not isinstance(error, Exception):
            error.add_note(str(unlogged))  # whoever cancels or interrupts must get just that
            raise error from failure
        raise unlogged from failure
