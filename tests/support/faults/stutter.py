"""Runs a command while its processes, one after the other and by chance, stand still: a machine at its worst.

python -m tests.support.faults.stutter python -m pytest -n 2 tests/integration

Whatever fails only here depends on how fast it is run. A process that somebody else has stopped is left alone; a test
that stops one itself while it stands still is unlucky, and seldom.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Pattern:
    """How long one stands still, and how long none does on average."""

    still_s: tuple[float, float] = (0.3, 1.5)
    between_s: float = 1.0


class Stutter(threading.Thread):
    """Stops descendants of a process until it is told to end. `count` is how often it did."""

    def __init__(self, root: int, chance: random.Random, pattern: Pattern):
        super().__init__(daemon=True)
        self.count = 0
        self._root = root
        self._chance = chance
        self._pattern = pattern
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._chance.expovariate(1 / self._pattern.between_s)):
            victim = self._victim()
            if victim is not None:
                self._hold(victim)

    def end(self) -> None:
        self._over.set()
        self.join()

    def _victim(self) -> psutil.Process | None:
        """By name first: of Postgres there are dozens, of Valkey one."""
        by_name: dict[str, list[psutil.Process]] = defaultdict(list)
        try:
            for process in psutil.Process(self._root).children(recursive=True):
                by_name[process.name()].append(process)
        except psutil.Error:
            return None  # one of them ended meanwhile
        return self._chance.choice(by_name[self._chance.choice(sorted(by_name))]) if by_name else None

    def _hold(self, victim: psutil.Process) -> None:
        try:
            if victim.status() == psutil.STATUS_STOPPED:
                return
            victim.send_signal(signal.SIGSTOP)
            self.count += 1
            self._over.wait(self._chance.uniform(*self._pattern.still_s))
            victim.send_signal(signal.SIGCONT)
        except psutil.Error:
            return  # it is gone


def run(
    command: list[str], *, at_once: int = 3, seed: int = 1, pattern: Pattern | None = None
) -> tuple[int, int]:
    """The command's exit code, and how often one of its processes stood still."""
    with subprocess.Popen(command) as process:
        stutters = [
            Stutter(process.pid, random.Random(f"{seed}/{n}"), pattern or Pattern()) for n in range(at_once)
        ]
        for stutter in stutters:
            stutter.start()
        try:
            code = process.wait()
        finally:
            for stutter in stutters:
                stutter.end()
    return code, sum(stutter.count for stutter in stutters)


if __name__ == "__main__":
    code, count = run(sys.argv[1:], seed=int(os.environ.get("STUTTER_SEED", "1")))
    sys.stderr.write(f"a process stood still {count} times\n")
    sys.exit(code)
