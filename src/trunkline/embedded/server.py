"""The base of both servers: folder, log, port, start and stop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from trunkline.embedded.account import SystemUser
from trunkline.embedded.binaries import Binaries
from trunkline.embedded.leftovers import end_leftovers
from trunkline.embedded.ports import free_port
from trunkline.embedded.process import Child, Step, rotate
from trunkline.errors import EmbeddedError

READY_POLL_S = 0.01
# Recovery after a crash replays at most some minutes of writes; far beyond what an embedded server collects.
START_LIMIT_S = 120
PORT_TRIES_MAX = 5


class Server(ABC):
    title: ClassVar[str]
    program: ClassVar[str]
    """Its name in the process table."""
    stop_steps: ClassVar[Sequence[Step]]

    def __init__(
        self,
        folder: Path,
        log_file: Path,
        account: SystemUser,
        binaries: Binaries,
        *,
        password: str,
        port: int | None = None,
        durable: bool = True,
    ) -> None:
        self.folder = folder
        self.log_file = log_file
        self.account = account
        self._binaries = binaries
        self._password = password
        self._durable = durable
        self._port = port
        self._child: Child | None = None

    @property
    def port(self) -> int:
        assert self._port is not None, "started"
        return self._port

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_status is None

    @property
    def output(self) -> str:
        """Its log since its start."""
        return self._running().output

    async def start(self) -> None:
        """Serve on a free port, the last one if possible. Ends leftovers of an earlier run first."""
        await end_leftovers(self.folder, self.program, self.stop_steps)
        await self.prepare()
        rotate(self.log_file)
        for _ in range(PORT_TRIES_MAX):
            self._port = free_port(self._port)
            self._child = self.spawn(self._port)
            if await self._came_up(self._child):
                return
            self._port = None
        raise EmbeddedError(f"{self.title} found no free port in {PORT_TRIES_MAX} tries: see {self.log_file}")

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop(self.stop_steps)
            self._child = None

    async def exited(self) -> int:
        """Wait until it ends by itself, which it should not. Returns the exit status."""
        return await self._running().exited()

    @abstractmethod
    async def prepare(self) -> None:
        """Create the folder, or check that it can be used."""

    @abstractmethod
    def spawn(self, port: int) -> Child:
        """Start the program on `port`."""

    @abstractmethod
    async def answers(self) -> bool:
        """Does it serve by now?"""

    @abstractmethod
    def complaint(self, output: str) -> str | None:
        """The line of its log that says why it ended."""

    async def _came_up(self, child: Child) -> bool:
        """False if another process took the port in between. Every other failure is an error."""
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while child.exit_status is None:
            if await self.answers():
                return True
            if asyncio.get_running_loop().time() > deadline:
                raise EmbeddedError(
                    f"{self.title} does not serve after {START_LIMIT_S} s: see {self.log_file}"
                )
            await asyncio.sleep(READY_POLL_S)
        output = child.output
        if "Address already in use" in output:
            return False
        reason = self.complaint(output) or f"exit status {child.exit_status}"
        raise EmbeddedError(
            f"{self.title} cannot start on {self.folder}: {reason}. Nothing was changed; if the folder is "
            f"damaged, restore it from a backup or move it away to begin anew (log: {self.log_file})"
        )

    def _running(self) -> Child:
        assert self._child is not None, f"{self.title} was started"
        return self._child
