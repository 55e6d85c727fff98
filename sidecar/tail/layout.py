"""The number of partitions and the partitioner that kept state belongs to.

They decide which task has which session. With others, the records of a session come to a task that does not know what
came before: a revocation to one that does not know the grant, an action to one that does not know the revocation. So a
difference is refused by name, whether it is found in the kept state or in the brokers' metadata.
"""

from collections.abc import Mapping

from sidecar.config import Settings
from sidecar.tail.envelope import Layout, origin_of
from sidecar.tail.errors import PartitionsChanged

_MOST_PARTITIONS = 10_000

_REMEDY = (
    "The guard refuses every question, and nothing is read, until this is mended. Either undo the change, or stop all"
    " replicas and judge the log again with `sidecar run --reset`: sessions that began before then have records in"
    " partitions that are no longer theirs, and are refused; new sessions are answered for."
)


def layout_today(settings: Settings, counts: Mapping[str, int]) -> Layout:
    """Return how many partitions the topics have that decide about kept state, and the partitioner.

    Args:
        settings: the settings tree.
        counts: how many partitions each topic has; those that are not known are left out.
    """
    names = (*settings.topics.followed, settings.topics.snapshots)
    return Layout({name: counts[name] for name in names if counts.get(name)}, settings.kafka.partitioner)


def check_layout(settings: Settings, number: int, origin: int, kept: Layout, today: Layout) -> None:
    """Compare the layout of kept state with today's.

    Args:
        settings: the settings tree.
        number: the task whose state it is.
        origin: the origin of the state; an older version tells the number of partitions only by it.
        kept: the layout of the state; where it is empty, an older version wrote it.
        today: the layout now.

    Raises:
        PartitionsChanged: they differ; it says in what, and what to do.
    """
    before = kept.counts
    if not before and (count := _count_by_origin(settings, number, origin)) is not None:
        before = dict.fromkeys(settings.topics.inputs, count)
    check_counts(before, today.counts, "when its state was kept")
    if kept.partitioner and kept.partitioner != today.partitioner:
        raise PartitionsChanged(
            f"The state of the group {settings.tail.group_id} was kept with kafka.partitioner {kept.partitioner}, and"
            f" the setting is {today.partitioner} now: sessions would be looked for in other partitions than before."
            f" {_REMEDY}"
        )


def check_counts(before: Mapping[str, int], now: Mapping[str, int], when: str) -> None:
    """Compare numbers of partitions.

    Args:
        before: by topic; a topic that is not in both is not compared.
        now: the same today.
        when: what `before` is of, as a clause.

    Raises:
        PartitionsChanged: they differ; it names the topics with both numbers, and what to do.
    """
    changed = {name: count for name, count in before.items() if name in now and now[name] != count}
    if changed:
        listed = " and ".join(f"{name} had {count} and has {now[name]}" for name, count in sorted(changed.items()))
        raise PartitionsChanged(
            f"The number of partitions has changed: {listed} ({when}, and now). Sessions moved to other partitions,"
            f" whose readers do not know what came before. {_REMEDY}"
        )


def _count_by_origin(settings: Settings, number: int, origin: int) -> int | None:
    """Return with how many partitions an origin was computed; None: with none, it is another group's or task's."""
    group, inputs = settings.tail.group_id, settings.topics.inputs
    return next((n for n in range(1, _MOST_PARTITIONS + 1) if origin_of(group, inputs, n, number) == origin), None)
