"""Ending what may not want to end."""

import asyncio
from typing import Any


async def ended_within(task: asyncio.Task[Any], seconds: float) -> bool:
    """Cancel a task, and wait for it to end, for a while: aiokafka may swallow what cancels it.

    Args:
        task: the task; its failure is not raised.
        seconds: how long to wait.

    Returns:
        Whether it has ended.
    """
    task.cancel()
    await asyncio.wait((task,), timeout=seconds)
    if not task.done():
        return False
    if not task.cancelled():
        task.exception()  # retrieved, so that the event loop does not report it
    return True
