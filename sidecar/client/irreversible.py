"""Ask, act, publish: what is done around every irreversible action."""

import inspect
import string
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from sidecar.client.refused import ActionUnlogged, Refused
from sidecar.client.steps import Call, Procedure, call, finish

T = TypeVar("T")

OnError = Literal["publish", "skip"]


class Log(Protocol):
    """Be what is needed of an `Emitter` or a `SyncEmitter`."""

    @property
    def session_id(self) -> str:
        """The session."""

    @property
    def position(self) -> int:
        """The last `seq` given out."""


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
    """
    if not action_id:
        raise ValueError("the action has no id: an empty one authorizes nothing")
    answer = yield call(
        guard, "authorize", log.session_id, action_id, checkpoint_id=checkpoint_id, min_seq=log.position
    )
    if answer.allowed is not True:
        raise Refused(action_id, answer)
    try:
        result = yield act
    except GeneratorExit:
        raise
    except BaseException as error:
        # It may have been carried out all the same: a lost answer, a timeout, a failure after the effect.
        if on_error == "publish" and not isinstance(error, not_acted):
            yield from _published(log, action_id, None, error)
        raise
    yield from _published(log, action_id, result, None)
    return result


def _published(log: Log, action_id: str, result: object, error: BaseException | None) -> Procedure[None]:
    try:
        yield finish(log, "action", action_id, irreversible=True)
    except GeneratorExit:
        raise
    except Exception as failure:
        unlogged = ActionUnlogged(log.session_id, action_id, result, error)
        if error is not None and not isinstance(error, Exception):
            error.add_note(str(unlogged))  # whoever cancels or interrupts must get just that
            raise error from failure
        raise unlogged from failure


def check_template(template: str, known: Mapping[str, inspect.Parameter] | None) -> None:
    """See that a template can be filled.

    Args:
        template: as in `deploy-{env}`.
        known: the parameters that there are; None: any.

    Raises:
        ValueError: it is no template, or names something that is no parameter.
    """
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"the template {template!r} cannot be read: {error}") from None
    if not template:
        raise ValueError("the action has no id: an empty one authorizes nothing")
    anything = known is None or any(p.kind is p.VAR_KEYWORD for p in known.values())
    for name in names:
        if not name.isidentifier():
            raise ValueError(f"the template {template!r} has {{{name}}}: only the names of parameters can be filled in")
        if not anything and known is not None and name not in known:
            raise ValueError(f"the template {template!r} has {{{name}}}, which is no parameter: {', '.join(known)}")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template.

    Raises:
        ValueError: a value is missing, or there is nothing in it that tells one action from another.
    """
    for _, name, _, _ in string.Formatter().parse(template):
        if name is None:
            continue
        if name not in values:
            raise ValueError(f"the action's id {template!r} cannot be filled in: `{name}` was not given")
        if values[name] is None or str(values[name]) == "":
            raise ValueError(f"the action's id {template!r} cannot be filled in: `{name}` is empty")
    return string.Formatter().vformat(template, (), values)


def identify(
    action: str | Callable[..., str], function: Callable[..., Any]
) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """Return what tells the action's id from the arguments of a call.

    Raises:
        ValueError: the template cannot be filled from that function's parameters.
    """
    if not isinstance(action, str):
        return lambda args, kwargs: _text(action(*args, **kwargs))
    signature = inspect.signature(function)
    template = action
    check_template(template, signature.parameters)

    def of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                values = values.pop(name) | values  # a parameter is what it is, whatever else was given
        return fill(template, values)

    return of


def _text(action_id: object) -> str:
    if not isinstance(action_id, str):
        raise TypeError(f"the action's id is {action_id!r}, which is no string")
    return action_id
