"""Input topics may be compressed with whatever Kafka knows."""

from __future__ import annotations

import pytest

from tests.kafka.broker import KafkaBroker
from tests.kafka.support import create_topics, produce
from tests.kafka.tail_support import PARTITIONS, judged, outgoing, running, settings_for, stream, until_found


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
async def test_compressed_records_are_read(kafka: KafkaBroker, unique: str, codec: str) -> None:
    settings, lines = settings_for(kafka.bootstrap, unique), stream(1)
    topics = (settings.topics.events, settings.topics.compactions)
    await create_topics(kafka.bootstrap, *topics, partitions=PARTITIONS)
    # All on one topic: which one does not matter, as long as a session stays together.
    keyed = [(key.encode() if isinstance(key, str) else key, line) for _, key, line in outgoing(lines)]
    await produce(kafka.bootstrap, topics[0], keyed, compression_type=codec)
    async with running(settings):
        await until_found(settings, [finding.finding_id for finding in judged(lines).findings])
