"""Tell results that act later: when they do, nobody asks any more."""

import concurrent.futures
import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any

_LAZY = (types.GeneratorType, types.AsyncGeneratorType, map, filter, zip)
_CONTAINERS = (list, tuple, set, frozenset)


def refuse_deferred(result: object) -> None:
    """See that a function has acted when it returned; what it would have done later is not done.

    Raises:
        TypeError: it returned something that acts when it is awaited, iterated over, or in another thread.
    """
    later = [thing for thing in (result, *_inside(result)) if _acts_later(thing)]
    if not later:
        return
    for thing in later:
        _stopped(thing)
    raise TypeError(
        f"the function returned a {type(later[0]).__name__}, which acts only later, when a revocation may have come:"
        " it was stopped. Guard a function that has acted when it returns: with `Guard`, an `async def` that awaits"
        " everything; with `SyncGuard`, a `def` that waits for its result"
    )


def _inside(result: object) -> Iterable[Any]:
    if isinstance(result, Mapping):
        return result.values()
    return result if isinstance(result, _CONTAINERS) else ()


def _acts_later(thing: object) -> bool:
    if isinstance(thing, _LAZY):
        return True
    if not inspect.isawaitable(thing) and not isinstance(thing, concurrent.futures.Future):
        return False
    done = getattr(thing, "done", None)
    return not (callable(done) and done() is True)


def _stopped(thing: object) -> None:
    for name in ("close", "cancel"):
        stop = getattr(thing, name, None)
        if callable(stop) and not isinstance(thing, types.AsyncGeneratorType):
            stop()
            return
