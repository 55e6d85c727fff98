"""Read JSON that can be read in one way only: an object that has the same name twice is refused."""

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What `decode` raises."""


def decode(body: bytes, kind: type[T]) -> T:
    """Read a guard's answer.

    Raises:
        ValueError: it is no UTF-8, or an object has the same name twice.
        msgspec.MsgspecError: it is no JSON, or of another type.
        RecursionError: it is nested too deeply.
    """
    # As text: what no field holds is not looked at by msgspec, and might be no UTF-8.
    text = body.decode()
    answer = msgspec.json.decode(text, type=kind)
    json.loads(text, object_pairs_hook=_unique)
    return answer


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"`{twice[:60]}` stands in it twice, which two readers may read in two ways")
