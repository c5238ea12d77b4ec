"""Processes that may be killed, stopped and started again, and that never outlive the benchmark."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from trunkline.embedded.process import LAUNCHER

# Twelve of them start at once, on a machine that may have other things to do.
READY_LIMIT_S = 240.0
STOP_LIMIT_S = 20.0


@dataclass
class Process:
    """One program with its place: started again, it has the same port and the same log."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    # Asked until it answers 200; none where nobody can be asked.
    ready_url: str = ""
    # Not started again by itself.
    is_kept_down: bool = False
    killed_s: float | None = None
    _popen: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        assert self._popen is not None, "started"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """The kernel ends it if we die first."""
        words = [os.geteuid(), os.getegid(), os.getpid(), int(signal.SIGKILL), *self.command]
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER), *map(str, words)],
                env=dict(self.environ),
                stdout=log,
                stderr=log,
            )
        self.killed_s = None

    async def ready(self) -> None:
        async with asyncio.timeout(READY_LIMIT_S), aiohttp.ClientSession() as session:
            while not await _answers(session, self.ready_url):
                if not self.is_running:
                    raise RuntimeError(f"{self.name} ended before it was ready: see {self.log}")
                await asyncio.sleep(0.05)

    def signal(self, what: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.pid, what)

    def kill(self) -> None:
        if self.is_running:
            self.killed_s = time.time()
            self.signal(signal.SIGKILL)

    async def ended(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Asked to stop before, killed at the limit."""
        deadline_s = time.monotonic() + limit_s
        while self.is_running:
            if time.monotonic() > deadline_s:
                self.kill()
            await asyncio.sleep(0.05)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
