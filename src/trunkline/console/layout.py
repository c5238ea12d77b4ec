"""The layout of every page: health of the engines, kill switch, open alarms. Shown whatever else fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trunkline.console.api_client import ApiRefused
from trunkline.console.health import Engine, EngineHealth
from trunkline.console.page_request import PageRequest

# Beyond it the badge shows "20+".
ALARMS_MAX = 20


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
