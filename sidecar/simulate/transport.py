"""The noise on the way from the agents to the log: late, twice, one topic behind the other."""

import random
from operator import attrgetter

from sidecar.simulate.log import Entry
from sidecar.simulate.settings import Transport

_when = attrgetter("at")


def carry(entries: list[Entry], transport: Transport, rng: random.Random, seconds: float) -> list[Entry]:
    """Return a session's records in the order in which they arrive.

    Args:
        entries: the records in the order in which they were written.
        transport: how noisy the way is.
        rng: where the chance comes from.
        seconds: the mean time between two of the session's records.

    A topic keeps its order towards the other's lag; late log events are the retries of a producer. Compaction
    records are never late on their own: without `seq` they are judged in the order of their arrival.
    """
    if not (transport.duplicates or transport.delayed or transport.lagging):
        return entries
    chance, late = rng.random, transport.lag * seconds
    lags = chance() < transport.lagging
    behind, lag = ("events" if chance() < 0.5 else "compactions") if lags else "", late * chance()
    again, delayed = transport.duplicates, transport.duplicates + transport.delayed
    arrived: list[Entry] = []
    for entry in entries:
        at, role, value, plain = entry
        if role == behind:
            entry = Entry(at := at + lag, role, value, plain)
        x = chance()
        if x < delayed and plain:
            then = Entry(at + late * chance(), role, value)
            if x < again:
                arrived.append(then)
            elif role == "events":
                entry = then
        arrived.append(entry)
    arrived.sort(key=_when)
    return arrived
