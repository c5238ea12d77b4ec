"""The health of the engines, for the top of every page. Checked at most every two seconds, within one second."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.api.deps import ApiDeps
from trunkline.api.routes.probes import ask
from trunkline.clock import Clock

FRESH_S = 2.0
PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    is_well: bool
    error: str | None


class EngineHealth:
    def __init__(self, deps: ApiDeps):
        self._probes = deps.probes
        self._clock: Clock = deps.clock
        self._seen: Sequence[Engine] = ()
        self._seen_at_s = float("-inf")
        self._lock = asyncio.Lock()

    async def check(self) -> Sequence[Engine]:
        async with self._lock:
            if self._clock.monotonic_s() - self._seen_at_s >= FRESH_S:
                self._seen = await self._ask()
                self._seen_at_s = self._clock.monotonic_s()
        return self._seen

    async def is_well(self, name: str) -> bool:
        return all(engine.is_well for engine in await self.check() if engine.name == name)

    async def _ask(self) -> Sequence[Engine]:
        answers = await asyncio.gather(
            *(ask(name, probe, PATIENCE_S) for name, probe in self._probes.items())
        )
        return [
            Engine(name, answer.ok, answer.error) for name, answer in zip(self._probes, answers, strict=True)
        ]
