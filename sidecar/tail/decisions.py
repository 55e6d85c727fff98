"""The guard's decisions on `topics.decisions`: kept by all replicas of the topic before the agent gets its answer."""

# mypy: untyped-calls-exclude="aiokafka"

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from sidecar.config import Settings
from sidecar.tail.clients import STARTUP_TIMEOUT, close_producer, open_producer, reach
from sidecar.tail.errors import TailError
from sidecar.tail.homes import partition_of
from sidecar.tail.planned import Role
from sidecar.tail.topics import create_missing

_ROLES: tuple[Role, ...] = ("decisions",)


class Decisions:
    """Write decisions to a topic, acknowledged by all its replicas (see `sidecar.engine.live.DecisionLog`).

    A decision whose writing failed may still be on the topic: it was not given to the agent, and permits nothing.

    Args:
        settings: the settings tree.
        within: seconds in which a decision has to be acknowledged.
    """

    def __init__(self, settings: Settings, within: float = 2.0) -> None:
        self._settings = settings
        self._topic = settings.topics.decisions
        self._within = within
        self._producer: AIOKafkaProducer | None = None
        self._count = 0
        self._opening = asyncio.Lock()

    async def start(self, options: Mapping[str, Any] | None = None) -> None:
        """See that the topic is there, and open the producer.

        Args:
            options: client options, where a broker has been reached already.

        Raises:
            TailError: no broker, or the topic is missing or refused.
        """
        options = options or await reach(self._settings, STARTUP_TIMEOUT)
        topics = await create_missing(self._settings, only=_ROLES, equal=(), options=options)
        self._count = next(spec.partitions for spec in (*topics.existing, *topics.created))
        await self._open(options)

    async def write(self, session_id: str, value: bytes) -> None:
        """Write one decision; return once all replicas of the topic have it.

        Args:
            session_id: the session it is about, which is the key.
            value: the decision, encoded.

        Raises:
            TailError: it was not acknowledged in time, or refused; the permission must not be given.
        """
        key = session_id.encode("utf-8", "replace")
        try:
            async with asyncio.timeout(self._within):
                producer = await self._opened()
                await producer.send_and_wait(
                    self._topic, value, key, partition_of(key, self._count, self._settings.kafka.partitioner)
                )
        except (KafkaError, TimeoutError, OSError) as error:
            # An idempotent producer keeps what it could not deliver before what comes next: begin with a new one.
            await self._drop()
            raise TailError(
                f"The decision could not be written to {self._topic} in {self._within:g} s ({error!r}): see whether the"
                " brokers answer and the sidecar's principal has the ACL WRITE on the topic."
            ) from error

    async def close(self) -> None:
        """Close the producer, in bounded time."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer, within=1.0)

    async def _opened(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                await self._open(await reach(self._settings, self._within))
            assert self._producer is not None
            return self._producer

    async def _open(self, options: Mapping[str, Any]) -> None:
        try:
            self._producer = await open_producer(options)
        except KafkaError as error:
            raise TailError(f"The producer of decisions could not be opened: {error!r}.") from error

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            asyncio.get_running_loop().create_task(close_producer(producer, within=0.5))
