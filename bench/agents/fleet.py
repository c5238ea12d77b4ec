"""The pods, in processes that can be killed: ten in one, and some alone. Killed ones come back, as in a cluster."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.agents.processes import Process
from bench.platform import ADMIN_KEY
from tests.support.agent.pod_records import PodLife
from tests.support.waiting import eventually

TOGETHER, ALONE = 10, 10
BACK_AFTER_S = 5.0
REGISTERED_LIMIT_S = 60.0


@dataclass
class PodGroup:
    process: Process
    names: Sequence[str]
    version: str
    is_leaving: bool = False

    def is_registered(self) -> bool:
        return self.log.exists() and self.log.read_text().count('"registered"') >= len(self.names)

    @property
    def live_calls(self) -> int:
        """By its own log."""
        text = self.log.read_text() if self.log.exists() else ""
        return text.count('"began"') - text.count('"ended"')

    @property
    def log(self) -> Path:
        return Path(self.process.command[6])


class Fleet:
    def __init__(self, router_url: str, folder: Path, environ: Mapping[str, str]):
        self._router_url = router_url
        self._folder = folder
        self._environ = environ
        self._made = 0
        # Everyone that ever was, in the order in which they were made.
        self.groups: list[PodGroup] = []

    @property
    def live(self) -> list[PodGroup]:
        return [group for group in self.groups if group.process.is_running and not group.is_leaving]

    async def start(self, count: int, version: str = "1") -> list[PodGroup]:
        started = [self._start(names, version) for names in _groups(count, version)]
        await self._registered(started)
        return started

    async def replace(self, group: PodGroup, version: str) -> PodGroup:
        """As a rollout does: another pod first, under another name, then this one is asked to leave."""
        made = self._start([f"{name.rpartition('-v')[0]}-v{version}" for name in group.names], version)
        await self._registered([made])
        group.is_leaving = True
        group.process.signal(signal.SIGTERM)
        return made

    async def bring_back(self, groups: Sequence[PodGroup]) -> None:
        """What was killed, under the same names."""
        await asyncio.sleep(BACK_AFTER_S)
        await self._registered([self._start(group.names, group.version) for group in groups])

    def lives(self) -> list[PodLife]:
        return [PodLife(group.log, group.process.killed_s) for group in self.groups]

    async def stop(self) -> None:
        """No drain: what counts was written down."""
        for group in self.groups:
            group.process.signal(signal.SIGKILL)
        for group in self.groups:
            await group.process.ended()

    def _start(self, names: Sequence[str], version: str) -> PodGroup:
        self._made += 1
        place = f"pods-{self._made}"
        command = [
            sys.executable,
            "-m",
            "tests.support.agent.pod_process",
            self._router_url,
            ADMIN_KEY,
            version,
            # Read again by `PodGroup.log`.
            str(self._folder / f"{place}.jsonl"),
            *names,
        ]
        process = Process(place, command, self._environ, self._folder / f"{place}.log", is_kept_down=True)
        process.start()
        group = PodGroup(process, list(names), version)
        self.groups.append(group)
        return group

    async def _registered(self, groups: Sequence[PodGroup]) -> None:
        await eventually(
            lambda: all(group.is_registered() for group in groups),
            timeout_s=REGISTERED_LIMIT_S,
            what="every pod is registered",
        )


def _groups(count: int, version: str) -> Iterator[list[str]]:
    names = [f"pod-{n}-v{version}" for n in range(count)]
    alone = min(ALONE, count // 2)
    together = names[: count - alone]
    for first in range(0, len(together), TOGETHER):
        yield together[first : first + TOGETHER]
    for name in names[count - alone :]:
        yield [name]
