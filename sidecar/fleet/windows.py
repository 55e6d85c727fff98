"""Counts of findings by rule in buckets of time: two sliding windows, and a day to compare them with.

A bucket is a number: event time divided by its length. Only the newest buckets are kept, and which are kept depends on
nothing but which were counted, not on the order; so the same findings give the same counts in any order. Nothing here
knows the time: a window ends where the caller says.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

FINE = 30
"""Seconds of a fine bucket: a window is exact to so much."""

HOUR = 3600
SHORT = 300.0
LONG = 3600.0
DAY = 86400.0

_SLACK = 10
_FINE_KEPT = HOUR // FINE + _SLACK  # clocks differ: what is a little ahead must not push an hour's counts out
_HOURS_KEPT = 26

Buckets = dict[int, dict[str, int]]


class Counts(Struct, array_like=True, gc=False):
    """Count findings by rule: in buckets of 30 seconds for an hour, and of an hour for a day."""

    fine: Buckets = field(default_factory=dict)
    hours: Buckets = field(default_factory=dict)

    def add(self, rule: str, at: float, number: int = 1) -> None:
        """Count findings of a rule at a time (Unix seconds); what is older than what is kept is not counted."""
        _add(self.fine, int(at // FINE), rule, number, _FINE_KEPT)
        _add(self.hours, int(at // HOUR), rule, number, _HOURS_KEPT)

    def include(self, other: "Counts", sign: int = 1) -> None:
        """Add another's counts, or take them away (`sign` -1)."""
        for mine, theirs, kept in ((self.fine, other.fine, _FINE_KEPT), (self.hours, other.hours, _HOURS_KEPT)):
            for bucket, rules in theirs.items():
                for rule, number in rules.items():
                    _add(mine, bucket, rule, sign * number, kept)

    def within(self, seconds: float, now: float) -> dict[str, int]:
        """Return how often each rule fired in the window of at most an hour that ends now."""
        return _sum(self.fine, int((now - seconds) // FINE) + 1, int(now // FINE) + _SLACK)

    def before(self, now: float) -> dict[str, int]:
        """Return how often each rule fired in the day before the current hour and the one before it."""
        hour = int(now // HOUR)
        return _sum(self.hours, hour - 24, hour - 2)

    def rules(self) -> set[str]:
        """Return every rule that is counted at all."""
        return {rule for buckets in (self.fine, self.hours) for rules in buckets.values() for rule in rules}

    def first(self, rule: str, now: float) -> float | None:
        """Return when a rule fired first in the last day, as exactly as that is known."""
        hours = [hour for hour, rules in self.hours.items() if rules.get(rule) and hour * HOUR > now - DAY - HOUR]
        if not hours:
            return None
        return self._begin(rule, min(hours))

    def oldest(self) -> float | None:
        """Return the begin of the oldest hour that is counted."""
        return float(min(self.hours) * HOUR) if self.hours else None

    def risen(self, rule: str, now: float, factor: float, least: int) -> float | None:
        """Return since when a rule has fired far more often than in what is known of the day before; None: it does not.

        That is the first hour from which on every hour up to now has at least `least` findings and at least `factor`
        times the mean of the hours before it. The current hour may still have few, unless it is the first.

        Args:
            rule: the rule.
            now: the time.
            factor: how much more often.
            least: fewest findings in an hour of a rise.
        """
        hour = int(now // HOUR)
        oldest = max(hour - 24, min(self.hours, default=hour))
        counts = [self.hours.get(h, {}).get(rule, 0) for h in range(oldest, hour + 1)]
        before = 0
        for i in range(1, len(counts)):
            before += counts[i - 1]
            bound = max(float(least), factor * before / i)
            if counts[i] >= bound and all(count >= bound for count in counts[i:-1]):
                return self._begin(rule, oldest + i)
        return None

    def _begin(self, rule: str, hour: int) -> float:
        fine = [bucket for bucket, rules in self.fine.items() if rules.get(rule) and bucket * FINE // HOUR == hour]
        # The fine buckets of an hour that is partly gone would make it begin too late.
        whole = hour * HOUR // FINE > max(self.fine, default=0) - _FINE_KEPT
        return float(min(fine) * FINE if fine and whole else hour * HOUR)

    def __bool__(self) -> bool:
        return bool(self.fine or self.hours)


def total(parts: Iterable[Counts]) -> Counts:
    """Return the sum of counts."""
    result = Counts()
    for part in parts:
        result.include(part)
    return result


def _add(buckets: Buckets, bucket: int, rule: str, number: int, kept: int) -> None:
    rules = buckets.get(bucket)
    if rules is None:
        if number < 0 or (buckets and bucket <= max(buckets) - kept):
            return
        rules = buckets[bucket] = {}
        if len(buckets) > 1:
            _trim(buckets, kept)
    count = rules.get(rule, 0) + number
    if count > 0:
        rules[rule] = count
        return
    rules.pop(rule, None)
    if not rules:
        del buckets[bucket]


def _trim(buckets: Buckets, kept: int) -> None:
    oldest = max(buckets) - kept
    for bucket in [bucket for bucket in buckets if bucket <= oldest]:
        del buckets[bucket]


def _sum(buckets: Buckets, first: int, last: int) -> dict[str, int]:
    result: dict[str, int] = {}
    for rules in _between(buckets, first, last):
        for rule, number in rules.items():
            result[rule] = result.get(rule, 0) + number
    return result


def _between(buckets: Buckets, first: int, last: int) -> Iterator[dict[str, int]]:
    return (rules for bucket, rules in buckets.items() if first <= bucket <= last)
