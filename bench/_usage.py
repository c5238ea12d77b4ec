"""What something cost: CPU time by group of processes, and transactions of one database."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import psutil


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at a moment; `since` makes of two of them what lies between."""

    at_s: float
    cpu_s: Mapping[str, float]
    transactions: int


@dataclass(frozen=True, slots=True)
class Cost:
    began_s: float
    ended_s: float
    cpu_s: Mapping[str, float]
    transactions: int

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s

    def cpu_ms_per(self, count: int) -> dict[str, float]:
        return {group: round(1000 * used_s / max(count, 1), 2) for group, used_s in self.cpu_s.items()}

    def core_percent(self, group: str) -> float:
        return round(100 * self.cpu_s[group] / self.took_s, 1)


class Meter:
    """Reads from another database than the one it counts: its own statements are not among the counted."""

    def __init__(
        self,
        groups: Mapping[str, Sequence[psutil.Process]],
        monitor: "asyncpg.Connection[Any]",
        database: str,
    ):
        self._groups = groups
        self._monitor = monitor
        self._database = database

    async def read(self) -> Reading:
        transactions = await self._monitor.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1", self._database
        )
        cpu_s = {name: sum(map(_tree_cpu_s, processes)) for name, processes in self._groups.items()}
        return Reading(time.time(), cpu_s, int(transactions))

    async def since(self, before: Reading) -> Cost:
        now = await self.read()
        return Cost(
            before.at_s,
            now.at_s,
            {group: now.cpu_s[group] - before.cpu_s[group] for group in now.cpu_s},
            now.transactions - before.transactions,
        )


def _tree_cpu_s(root: psutil.Process) -> float:
    """Of a process, its living descendants, and those that ended and were waited for."""
    return sum(map(_cpu_s, [root, *root.children(recursive=True)]))


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
