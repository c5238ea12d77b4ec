"""Servers that an earlier run left behind.

A pid file may name a process that has nothing to do with us. So a server of ours is known by what it cannot
fake: its program's name, and that it works inside our folder, which both servers make their current one. The
caller holds the data folder's lock, so whatever is found belongs to nobody.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import structlog

from trunkline.embedded.errors import EmbeddedError
from trunkline.embedded.process import Step

log = structlog.get_logger(__name__)

POLL_S = 0.02


async def end_leftovers(folder: Path, program: str, steps: Sequence[Step]) -> None:
    """End every process of `program` in `folder`, properly first. Most have ended by themselves."""
    found = processes_in(folder, program)
    if found:
        log.warning("embedded.leftover_found", program=program, pids=[process.pid for process in found])
    for step in steps:
        if not found:
            return
        for process in _heads(found):
            _signal(process, step)
        found = await _wait_gone(folder, program, step.wait_s)
    if found:
        raise EmbeddedError(
            f"{program} of an earlier run still works in {folder} and cannot be ended: "
            f"end process {found[0].pid} by hand"
        )


def processes_in(folder: Path, program: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name"])
        if process.info["name"] == program and _works_in(process, folder)
    ]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    """False for a zombie, which works nowhere, and for other users' processes, which are not ours."""
    try:
        return os.path.samefile(process.cwd(), folder)
    except (psutil.Error, OSError):
        return False


def _heads(found: list[psutil.Process]) -> list[psutil.Process]:
    """Those without a parent among them: a postmaster ends its own, orphans are on their own."""
    pids = {process.pid for process in found}
    return [process for process in found if _parent(process) not in pids]


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _signal(process: psutil.Process, step: Step) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(step.signal)


async def _wait_gone(folder: Path, program: str, wait_s: float) -> list[psutil.Process]:
    deadline = asyncio.get_running_loop().time() + wait_s
    while found := processes_in(folder, program):
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(POLL_S)
    return found
