"""One child process: it writes to a log file, ignores the terminal's Ctrl-C and ends with its parent."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from trunkline.embedded.account import SystemUser

LAUNCHER = Path(__file__).with_name("launch.py")
# Servers get nothing else of the environment: no PG… variable may affect them, no secret may show in /proc.
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# The poll interval for an expected end; it grows to 0.25 s for a server that runs for hours.
POLL_MIN_S = 0.01
POLL_MAX_S = 0.25
POLL_GROWTH = 1.3
LOG_BYTES_MAX = 10_000_000


@dataclass(frozen=True)
class Step:
    """A signal, and how long to wait before the next one."""

    signal: Signals
    wait_s: float


class Child:
    """A running program in its own session, so that this process can drain before it stops."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path, log_start: int) -> None:
        self._popen = popen
        self._log = log
        self._log_start = log_start

    @classmethod
    def spawn(
        cls,
        command: Sequence[str | Path],
        *,
        cwd: Path,
        account: SystemUser,
        log: Path,
        stdin: bytes = b"",
        death_signal: Signals = Signals.SIGTERM,
    ) -> "Child":
        """Start `command` in `cwd` as `account`; the kernel sends `death_signal` if this process dies first."""
        words = [account.uid, account.gid, os.getpid(), int(death_signal), *command]
        argv = [sys.executable, "-I", "-S", str(LAUNCHER), *map(str, words)]
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        with log.open("ab") as output, tempfile.TemporaryFile() as text:
            text.write(stdin)
            text.seek(0)
            # The child may open /dev/stdin by name, which is checked against its own account.
            account.own(text.fileno())
            log_start = output.seek(0, os.SEEK_END)
            popen = subprocess.Popen(  # noqa: S603 - our own programs
                argv,
                cwd=cwd,
                stdin=text,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": os.defpath, "LC_ALL": "C", **kept},
                start_new_session=True,
            )
        return cls(popen, log, log_start)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    @property
    def output(self) -> str:
        """Its output since its start."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    async def exited(self) -> int:
        pause_s = POLL_MIN_S
        while (status := self.exit_status) is None:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * POLL_GROWTH, POLL_MAX_S)
        return status

    async def stop(self, steps: Sequence[Step]) -> None:
        """Send the signals in order, each only if the one before did not end it in time."""
        for step in steps:
            if self.exit_status is not None:
                return
            self._popen.send_signal(step.signal)
            try:
                await asyncio.wait_for(self.exited(), step.wait_s)
            except TimeoutError:
                continue


def rotate(log: Path) -> None:
    """Keep one older log. Servers write through an open file, so this is done between two runs."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
