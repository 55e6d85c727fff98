"""A process ends at a signal whatever it is doing: cleanly, in bounded time, and at once when asked twice."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import asyncio, sys, time
from sidecar.observe.ending import Ending

async def work(kind):
    stop = asyncio.Event()
    ending.attend(stop.set)
    print("up", flush=True)
    if kind == "busy":
        while True:  # the event loop does not get a turn
            time.sleep(0.01)
    await stop.wait()
    print("stopping", flush=True)
    if kind == "deaf":
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

with Ending(within=float(sys.argv[2])) as ending:
    asyncio.run(work(sys.argv[1]))
print("ended", flush=True)
"""


def started(kind: str, within: float) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind, str(within)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    return child


def test_one_signal_ends_cleanly() -> None:
    child = started("idle", 20)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out, err) == (0, "stopping\nended\n", "")


@pytest.mark.parametrize("kind", ["busy", "deaf"])
def test_what_does_not_end_in_time_is_named_and_left(kind: str) -> None:
    child = started(kind, 1.0)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=10)
    assert child.returncode == 1
    assert "did not stop in 1 s" in err and "Not finished: work" in err


@pytest.mark.parametrize("kind", ["busy", "deaf"])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(kind: str, second: signal.Signals) -> None:
    child = started(kind, 60)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    begun = time.monotonic()
    child.send_signal(second)
    _, err = child.communicate(timeout=10)
    assert child.returncode == 128 + second and time.monotonic() - begun < 2
    assert f"{second.name} again" in err
