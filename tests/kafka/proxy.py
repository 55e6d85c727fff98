"""A TCP proxy before a Kafka broker that reads along, and loses a chosen request or its answer."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Literal, Self

PRODUCE = 0
INIT_PRODUCER_ID = 22
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
TXN_OFFSET_COMMIT = 28

NAMES = {
    PRODUCE: "Produce",
    INIT_PRODUCER_ID: "InitProducerId",
    ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxn",
    ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    END_TXN: "EndTxn",
    TXN_OFFSET_COMMIT: "TxnOffsetCommit",
}

Part = Literal["request", "answer"]


class _Trap:
    def __init__(self, api: int, part: Part, act: Callable[[], None] | None) -> None:
        self.api = api
        self.part = part
        self.act = act
        self.sprung: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Proxy:
    """Pass connections on to a broker; use it as an async context manager.

    Args:
        port: the broker's port.
        listen: the port to listen on, which the broker advertises.
    """

    def __init__(self, port: int, listen: int) -> None:
        self._port = port
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._traps: list[_Trap] = []

    async def lose(self, api: int, part: Part, within: float = 20.0) -> None:
        """Cut the connection that the next such request comes on: before it is passed on, or before its answer is."""
        trap = _Trap(api, part, None)
        self._traps.append(trap)
        await asyncio.wait_for(trap.sprung, within)

    async def meet(self, api: int, act: Callable[[], None], within: float = 20.0) -> None:
        """Call a function when the next such request comes, before it is passed on."""
        trap = _Trap(api, "request", act)
        self._traps.append(trap)
        await asyncio.wait_for(trap.sprung, within)

    def hold(self) -> None:
        """Pass nothing on until `release`; connections stay open."""
        self._open.clear()

    def release(self) -> None:
        """Pass on what was held, and what comes."""
        self._open.set()

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.release()
        self.cut()
        if self._serving:
            await asyncio.wait(self._serving, timeout=10)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, back}
        self._writers |= both
        doomed: set[int] = set()
        ways = (
            asyncio.create_task(self._pass(reader, back, lambda frame: self._request(frame, doomed))),
            asyncio.create_task(self._pass(there, writer, lambda frame: self._answer(frame, doomed))),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in both:
                end.transport.abort()
            await asyncio.wait(ways)
            self._writers -= both

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[bytes], bool]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", head)[0])
                await self._open.wait()
                if not passes(frame):
                    return
                # What the caller did meanwhile may have been to hold.
                await self._open.wait()
                writer.write(head + frame)
                await writer.drain()

    def _request(self, frame: bytes, doomed: set[int]) -> bool:
        api, _, correlation = struct.unpack(">hhi", frame[:8])
        for trap in self._traps:
            if trap.api == api:
                self._traps.remove(trap)
                trap.sprung.set_result(None)
                if trap.act is not None:
                    trap.act()
                    return True
                if trap.part == "answer":
                    doomed.add(correlation)
                    return True
                return False
        return True

    def _answer(self, frame: bytes, doomed: set[int]) -> bool:
        return struct.unpack(">i", frame[:4])[0] not in doomed
