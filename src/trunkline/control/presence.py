"""Every process says that it is here, and what it has counted.

Counters live in each process, for Prometheus. Those that alarms need are added up in Postgres, by minute, because no
single process can tell that one lead in a hundred was not scheduled.
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from prometheus_client import Counter, Gauge

from trunkline.loops.base import Loop
from trunkline.store import presence
from trunkline.store.database import Database
from trunkline.store.presence import Key
from trunkline.telemetry import metrics


def _sums(
    metric: Counter | Gauge, name: str, by: str | None, where: Mapping[str, str] | None = None
) -> dict[Key, float]:
    """The metric's values, added up by one of its labels, of the series that have these others."""
    found: dict[Key, float] = {}
    for family in metric.collect():
        for sample in family.samples:
            if (where or {}).items() <= sample.labels.items():
                key = (name, sample.labels[by] if by else "")
                found[key] = found.get(key, 0.0) + sample.value
    return found


def counted() -> dict[Key, float]:
    """What this process has counted since it began, of what alarms need."""
    return {
        **_sums(metrics.SCHEDULE_ADDS, "schedule_tried", None),
        **_sums(metrics.SCHEDULE_ADDS, "schedule_failed", None, {"outcome": "failed"}),
        **_sums(metrics.RECONCILER_FIXES, "reconciler_fixes", "reconciler"),
        **_sums(metrics.MAILBOX_PARKED, "set_aside", "kind"),
        **_sums(metrics.CALLS_PLACED, "placed", "carrier"),
        **_sums(metrics.ANSWERED_CALLS, "answered", "carrier"),
        **_sums(metrics.ANSWERED_CALLS, "agent_unknown", "carrier", {"agent": "unknown"}),
        **_sums(metrics.ATTEMPTS_GIVEN_UP, "unknown", "carrier", {"state": "unknown"}),
    }


def gauged() -> dict[Key, float]:
    return {key: value for key, value in _sums(metrics.CHANNEL_DRIFT, "channel_drift", None).items() if value}


class Presence(Loop):
    name = "presence"

    def __init__(
        self,
        database: Database,
        identity: str,
        roles: Sequence[str],
        interval_s: float = 5.0,
        counted: Callable[[], Mapping[Key, float]] = counted,
        gauged: Callable[[], Mapping[Key, float]] = gauged,
    ):
        super().__init__(interval_s)
        self._database = database
        self._id = f"{identity}/{uuid4().hex[:8]}"
        self._roles = roles
        self._counted = counted
        self._gauged = gauged
        self._reported: Mapping[Key, float] = counted()
        self._has_left = False

    async def run_once(self) -> int:
        if not self._has_left:
            await self._report()
        return 0

    async def leave(self) -> None:
        """A process that stops on purpose is not missed, from the moment in which it is told to."""
        self._has_left = True
        async with self._database.connection() as conn:
            await presence.leave(conn, self._id)

    async def _report(self) -> None:
        now = self._counted()
        new = {key: value - self._reported.get(key, 0.0) for key, value in now.items()}
        async with self._database.transaction() as tx:
            await presence.report(tx, self._id, self._roles)
            if counts := {key: value for key, value in new.items() if value > 0}:
                await presence.count(tx, counts)
            if gauges := self._gauged():
                await presence.gauge(tx, gauges)
        self._reported = now
