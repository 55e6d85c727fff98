"""What is raised instead of acting: a refusal with its reasons; and what is raised when the log no longer tells."""

from collections.abc import Iterator, Sequence

from sidecar.client.errors import ClientError
from sidecar.engine.rules import CATALOGUE
from sidecar.protocol.api import AuthorizeAnswer, CommitAnswer, GcAnswer, Reason, ResumeAnswer

Answer = AuthorizeAnswer | ResumeAnswer | CommitAnswer | GcAnswer

SHOWN = 20
"""How many reasons a message lists; the answer has them all."""


class GuardError(ClientError):
    """Say why something cannot be shown.

    Args:
        what: what was to be looked at.
        reasons: why it cannot be shown.
    """

    def __init__(self, what: str, reasons: Sequence[Reason]) -> None:
        super().__init__(what, reasons)
        self.what = what
        self.reasons = list(reasons)

    @property
    def codes(self) -> frozenset[str]:
        """Return the reasons' codes, such as `unknown_session`."""
        return frozenset(reason.code for reason in self.reasons)

    def __str__(self) -> str:
        return "\n".join((f"{self.what} cannot be shown:", *_lines(self.reasons)))


class Refused(ClientError):
    """Say that the guard has not permitted something, so that it was not done.

    The message names every reason, and for a rule what to do about it; it may be shown to the model.

    Args:
        what: what was not done, as in "deploy-b".
        answer: the guard's answer.
    """

    def __init__(self, what: str, answer: Answer) -> None:
        super().__init__(what, answer)
        self.what = what
        self.answer = answer

    @property
    def reasons(self) -> list[Reason]:
        """Return why."""
        return self.answer.reasons

    def __str__(self) -> str:
        answer = self.answer
        session = f" in session {answer.session_id}" if answer.session_id is not None else ""
        position = f" (log applied up to {answer.position})" if answer.position is not None else ""
        return "\n".join((f"{self.what} is refused{session}{position}:", *_lines(answer.reasons), *_recovery(answer)))


class ActionUnlogged(ClientError):
    """Say that an action was carried out, or may have been, and is not in the log.

    The log lacks it until somebody publishes an `action` record for it. Do not repeat the action.

    Args:
        session_id: the session.
        action_id: the action.
        result: what the function returned, if it did.
        error: what the function raised, if it did.
    """

    def __init__(
        self, session_id: str, action_id: str, result: object = None, error: BaseException | None = None
    ) -> None:
        super().__init__(session_id, action_id, result, error)
        self.session_id = session_id
        self.action_id = action_id
        self.result = result
        self.error = error

    def __str__(self) -> str:
        done = "was carried out" if self.error is None else f"may have been carried out (it raised {self.error!r})"
        return (
            f"{self.action_id} {done} in session {self.session_id}, and is not in the log: publish an `action` record "
            "for it, irreversible, before anything else; do not repeat it"
        )


_WOULD = {
    "action_unauthorized": "Nothing in the log allows this action now; it would be done without permission.",
    "action_on_degraded": "The session resumed from a state that nobody has confirmed. The action would rest on it.",
    "resumed_unverified": "It is unknown or not verified. The agent would act on a state that does not match the log.",
}
"""What a verdict means before the fact: the catalogue says it of what has been done."""

_INSTEAD = {
    "action_unauthorized": (
        "Do not do it, nor anything else to the same end. Ask for approval; once the log has an `authorization` for"
        " exactly this action, try again."
    ),
    "action_on_degraded": "Do not do it. Have an operator reconcile the session, then try again.",
    "resumed_unverified": "Do not resume from it. Resume from the checkpoint named below; without one, replay the log.",
}


def _lines(reasons: Sequence[Reason]) -> Iterator[str]:
    """Yield a line for each reason, and what to do about each rule once.

    A verdict (code `rule`) is about what would have come of the question, so it is told as that.
    """
    told = set()
    for reason in reasons[:SHOWN]:
        named = reason.rule if isinstance(reason.rule, str) else None
        rule = CATALOGUE.get(named) if named is not None else None
        before = reason.code in ("rule", "checkpoint")
        detail = reason.detail
        if rule is not None and before and rule.name in _WOULD:
            detail = detail.replace(rule.meaning, _WOULD[rule.name])
        yield f"- {named or reason.code}: {detail}"
        if rule is not None and (rule.name, before) not in told:
            told.add((rule.name, before))
            yield f"  do: {_INSTEAD.get(rule.name, rule.remedy) if before else rule.remedy}"
    if len(reasons) > SHOWN:
        yield f"- and {len(reasons) - SHOWN} more"


def _recovery(answer: Answer) -> Iterator[str]:
    """Yield what an answer says about going on."""
    if isinstance(answer, ResumeAnswer):
        if answer.status is not None and answer.status != "verified":
            yield f"the checkpoint is {answer.status}"
        for missing in answer.missing[:SHOWN]:
            seen = missing.last_seen
            where = f", last seen at position {seen.position} ({seen.store})" if seen is not None else ", never seen"
            yield f"missing: {missing.reference}{where}"
        if answer.reexpand_from is not None:
            yield f"re-expand from: {answer.reexpand_from}"
        if answer.replay_from is not None:
            yield f"replay from: position {answer.replay_from}"
    elif isinstance(answer, CommitAnswer):
        for constraint in answer.constraints[:SHOWN]:
            yield f"pin: constraint {constraint.constraint_id}"
        for fact in answer.facts[:SHOWN]:
            yield f"pin: fact {fact.fact_id}, {fact.anchor!r} word for word"
