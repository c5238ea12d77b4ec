"""Servers that an earlier run left behind.

A pid file may name an unrelated process. So each server has a mark of its folder in its process title, which every user
may read: reading a process' working folder takes rights that root lacks in most containers. The caller holds the data
folder's lock, so a process with its mark is a leftover.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import structlog

from trunkline.embedded.process import Step
from trunkline.errors import EmbeddedError

log = structlog.get_logger(__name__)

POLL_S = 0.02


async def end_leftovers(folder: Path, program: str, steps: Sequence[Step]) -> None:
    """End every process of `program` in `folder`, beginning with a clean stop. Most have ended by themselves."""
    found = processes_in(folder, program)
    if found:
        log.warning("embedded.leftover_found", program=program, pids=[process.pid for process in found])
    for step in steps:
        # A postmaster ends its own children; orphans have to be ended one by one.
        pids = {process.pid for process in found}
        for process in found:
            with suppress(psutil.NoSuchProcess):
                if process.ppid() not in pids:
                    process.send_signal(step.signal)
        deadline = asyncio.get_running_loop().time() + step.wait_s
        while found and asyncio.get_running_loop().time() <= deadline:
            await asyncio.sleep(POLL_S)
            found = processes_in(folder, program)
    if found:
        raise EmbeddedError(
            f"{program} of an earlier run still works in {folder} and cannot be ended: "
            f"end process {found[0].pid} by hand"
        )


def processes_in(folder: Path, program: str) -> list[psutil.Process]:
    if not folder.exists():
        return []
    mark = folder_mark(folder)
    return [
        process
        for process in psutil.process_iter(["name"])
        if process.info["name"] == program and _bears(process, mark)
    ]


def folder_mark(folder: Path) -> str:
    """Identifies the folder itself and not its path, which may be long or change."""
    stat = folder.stat()
    return f"trunkline-{stat.st_dev:x}-{stat.st_ino:x}"


def _bears(process: psutil.Process, mark: str) -> bool:
    """Never true of a zombie, whose title is empty."""
    try:
        return re.search(rf"\b{mark}\b", " ".join(process.cmdline())) is not None
    except psutil.Error:
        return False
