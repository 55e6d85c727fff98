"""Make an action's id from the values of a call: other values, another id.

A template with one value needs nothing. With several, whatever stands between two values must not occur inside of
them: `deploy-{a}-{b}` would make the same id of `api-eu` and `prod` as of `api` and `eu-prod`, so that the approval of
one was the approval of the other. So the sign between them is escaped inside the values (`%2D`), as in a URL.
"""

import inspect
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

_ESCAPE = "%"
_SHOWN = 60
_WHOLE = re.compile(r"(0?[1-9][0-9]*)?[bdoxX]?")
"""Formats that write no two whole numbers in the same way."""


class Template:
    """Fill an action's id from values.

    Args:
        text: as in `deploy-{env}`; `{{` and `}}` stand for braces, `!r` and `!s` for how a value is written.
        known: the parameters that there are; None: any.

    Raises:
        ValueError: it is no template, names something that is no parameter, or would give two actions one id.
    """

    def __init__(self, text: str, known: Mapping[str, inspect.Parameter] | None = None) -> None:
        if not text:
            raise ValueError("the action has no id: an empty one authorizes nothing")
        self.text = text
        self.literals = [""]
        self._fields: list[tuple[str, str, str | None]] = []
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"the template {text!r} cannot be read: {error}") from None
        for literal, name, spec, conversion in parsed:
            self.literals[-1] += literal
            if name is None:
                continue
            self._check(name, spec or "", known)
            self._fields.append((name, spec or "", conversion))
            self.literals.append("")
        marks = [_mark_in(literal) for literal in self.literals[1:-1]]
        if None in marks:
            raise ValueError(
                f"the template {text!r} gives different actions the same id, because between two of its values is"
                " nothing that tells where the one ends: put a sign between them, such as `/`, or give a function"
            )
        self._escaped = {ord(mark): _encoded(mark) for mark in (*marks, _ESCAPE) if mark} if marks else {}

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the id for some values.

        Raises:
            ValueError: one is missing or empty.
        """
        parts = [self.literals[0]]
        for (name, spec, conversion), literal in zip(self._fields, self.literals[1:], strict=True):
            if name not in values:
                raise ValueError(f"the action's id {self.text!r} cannot be filled in: `{name}` was not given")
            value = string.Formatter().convert_field(values[name], conversion)
            if spec and not isinstance(value, int):
                raise ValueError(
                    f"the action's id {self.text!r} cannot be filled in: only whole numbers are formatted ({spec!r}),"
                    f" and `{name}` is a {type(value).__name__}"
                )
            shown = "" if value is None else format(value, spec)
            if not shown:
                raise ValueError(f"the action's id {self.text!r} cannot be filled in: `{name}` is empty")
            parts += (shown.translate(self._escaped), literal)
        return "".join(parts)

    def overlaps(self, other: "Template") -> bool:
        """Tell whether two templates could give the same id, as far as their ends show."""
        if not self._fields or not other._fields:
            fixed, open_ = (self, other) if not self._fields else (other, self)
            (whole,), begin, end = fixed.literals, open_.literals[0], open_.literals[-1]
            if not open_._fields:
                return whole == begin
            return len(whole) > len(begin) + len(end) and whole.startswith(begin) and whole.endswith(end)
        pairs = ((self.literals[0], other.literals[0]), (self.literals[-1][::-1], other.literals[-1][::-1]))
        return all(one.startswith(two) or two.startswith(one) for one, two in pairs)

    def _check(self, name: str, spec: str, known: Mapping[str, inspect.Parameter] | None) -> None:
        text = self.text
        if not name.isidentifier():
            raise ValueError(f"the template {text!r} has {{{name}}}: only the names of parameters can be filled in")
        if not _WHOLE.fullmatch(spec):
            raise ValueError(
                f"the template {text!r} formats `{name}` with {spec!r}, which may give different values the same id:"
                " leave the format out, or give a function"
            )
        anything = known is None or any(p.kind is p.VAR_KEYWORD for p in known.values())
        if not anything and known is not None and name not in known:
            raise ValueError(f"the template {text!r} has {{{name}}}, which is no parameter: {', '.join(known)}")


def identify(
    action: str | Callable[..., str], function: Callable[..., Any]
) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """Return what tells the action's id from the arguments of a call.

    Raises:
        ValueError: the template cannot be filled from that function's parameters.
    """
    if not isinstance(action, str):
        return lambda args, kwargs: checked(action(*args, **kwargs))
    signature = inspect.signature(function)
    template = Template(action, signature.parameters)

    def of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return template.fill(bound(signature, args, kwargs))

    return of


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each parameter of a function is in a call, defaults included.

    Raises:
        TypeError: the function cannot be called so.
    """
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    values = dict(given.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            values = values.pop(name) | values  # a parameter is what it is, whatever else was given
    return values


def checked(action_id: object) -> str:
    """Return an id that a function gave.

    Raises:
        TypeError: it is no string.
    """
    if not isinstance(action_id, str):
        raise TypeError(f"the action's id is {str(action_id)[:_SHOWN]!r}, which is no string")
    return action_id


def _mark_in(literal: str) -> str | None:
    """Return a sign that no escape has in it: once it is escaped in values, it ends the value before it."""
    return next((c for c in literal if not c.isalnum() and c != _ESCAPE), None)


def _encoded(mark: str) -> str:
    return "".join(f"{_ESCAPE}{byte:02X}" for byte in mark.encode())
