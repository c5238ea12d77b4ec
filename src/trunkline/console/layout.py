"""The layout of every page: health of the engines, kill switch, open alarms. Shown whatever else fails."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trunkline.api.deps import ApiDeps
from trunkline.api.routes.probes import ask
from trunkline.console.api_client import ApiRefused
from trunkline.console.page_request import PageRequest

# Beyond it the badge shows "20+".
ALARMS_MAX = 20
FRESH_S = 2.0
PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    is_well: bool
    error: str | None


class EngineHealth:
    """Checked at most every two seconds, within one second."""

    def __init__(self, deps: ApiDeps):
        self._probes = deps.probes
        self._clock = deps.clock
        self._seen: Sequence[Engine] = ()
        self._seen_at_s = float("-inf")
        self._lock = asyncio.Lock()

    async def check(self) -> Sequence[Engine]:
        async with self._lock:
            if self._clock.monotonic_s() - self._seen_at_s >= FRESH_S:
                probes = self._probes
                answers = await asyncio.gather(
                    *(ask(name, probe, PATIENCE_S) for name, probe in probes.items())
                )
                self._seen = [
                    Engine(name, each.ok, each.error) for name, each in zip(probes, answers, strict=True)
                ]
                self._seen_at_s = self._clock.monotonic_s()
        return self._seen

    async def is_well(self, name: str) -> bool:
        return all(engine.is_well for engine in await self.check() if engine.name == name)


@dataclass(frozen=True, slots=True)
class Layout:
    now: datetime
    engines: Sequence[Engine]
    # None: it could not be read.
    kill_switch: dict[str, Any] | None
    alarms: Sequence[dict[str, Any]]

    @property
    def away(self) -> Sequence[Engine]:
        return [engine for engine in self.engines if not engine.is_well]

    @property
    def is_well(self) -> bool:
        """Whether there is no banner and no open alarm, and both could be read."""
        return self.kill_switch is not None and not (self.is_killed or self.away or self.alarms)

    @property
    def is_killed(self) -> bool:
        return self.kill_switch is not None and self.kill_switch["state"] == "stopped"


async def read_layout(visit: PageRequest, health: EngineHealth, now: datetime) -> Layout:
    engines = await health.check()
    if not await health.is_well("postgres"):
        return Layout(now, engines, None, ())
    try:
        kill_switch = await visit.api.get("/controls/kill-switch")
        alarms = await visit.api.get("/alarms", {"limit": ALARMS_MAX})
    except ApiRefused:
        return Layout(now, engines, None, ())
    return Layout(now, engines, kill_switch, alarms["items"])
