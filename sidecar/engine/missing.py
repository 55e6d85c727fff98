"""Missing positions: nobody knows what the log said there.

Source of the rules: the protocol's "Gaps", "Duplicates" (what two records contend for is missing too) and "Baseline".
"""

from bisect import bisect_left, bisect_right

from sidecar.engine.state import Session

RUNS = 1024
"""How many runs of missing positions a session keeps apart; past it the two oldest become one, which fails closed."""


def mark_missing(session: Session, first: int, last: int) -> None:
    """Count the positions `first`..`last` as missing from now on."""
    order = session.order
    los, his = order.missing_lo, order.missing_hi
    if los is None or his is None:
        order.missing_lo, order.missing_hi = [first], [last]
        return
    i, j = bisect_left(his, first - 1), bisect_right(los, last + 1)
    if i < j:  # it touches runs that are there
        first, last = min(first, los[i]), max(last, his[j - 1])
    los[i:j], his[i:j] = [first], [last]
    if len(los) > RUNS:
        del los[1], his[0]


def missing_in(session: Session, lo: int, hi: int, *, alone: bool = True) -> int:
    """Return the first missing position in `lo`..`hi`, or 0.

    Args:
        alone: count what the record being judged waited for, which is missing for it alone.
    """
    if hi < session.baseline:
        return lo  # a range that ends before the baseline: nobody knows what it held
    order = session.order
    if order.missing_lo and order.missing_hi:
        i = bisect_left(order.missing_hi, lo)
        if i < len(order.missing_lo) and order.missing_lo[i] <= hi:
            return max(order.missing_lo[i], lo)
    if alone and order.awaited:
        first = max(lo, session.applied + 1)
        if first <= min(hi, order.awaited):
            return first
    return 0
