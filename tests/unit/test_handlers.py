"""A task that is left behind does not keep its process from exiting."""

import subprocess
import sys

import pytest

STUBBORN = """
import asyncio, sys
import uvloop
from trunkline.handlers import leave_behind

async def swallow_everything():
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue

async def main():
    task = asyncio.create_task(swallow_everything())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    leave_behind(task)

(uvloop if sys.argv[1] == "uvloop" else asyncio).run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_process_exits_beside_a_task_that_swallows_cancellation(loop: str) -> None:
    """The interpreter closes the coroutines that it finds at its end: this one would catch that too, for ever."""
    ended = subprocess.run([sys.executable, "-c", STUBBORN, loop], timeout=60, check=False)
    assert ended.returncode == 0
