"""Every process reports that it is alive, and its counters.

Each process has its own counters, for Prometheus. Those that alarms need are summed in Postgres, by minute, because no
single process can see that 1 % of all leads were not scheduled.
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
    """The metric's values summed by one of its labels, of the series that match `where`."""
    sums: dict[Key, float] = {}
    for family in metric.collect():
        for sample in family.samples:
            if (where or {}).items() <= sample.labels.items():
                key = (name, sample.labels[by] if by else "")
                sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def counted() -> dict[Key, float]:
    """The counters of this process that alarms need, since its start."""
    return {
        **_sums(metrics.SCHEDULE_ADDS, "schedule_tried", None),
        **_sums(metrics.SCHEDULE_ADDS, "schedule_failed", None, {"outcome": "failed"}),
        **_sums(metrics.RECONCILER_FIXES, "reconciler_fixes", "reconciler"),
        **_sums(metrics.MAILBOX_PARKED, "set_aside", "kind"),
        **_sums(metrics.CALLS_PLACED, "placed", "carrier"),
        **_sums(metrics.ANSWERED_CALLS, "answered", "carrier"),
        **_sums(metrics.ANSWERED_CALLS, "agent_unknown", "carrier", {"agent": "unknown"}),
        **_sums(metrics.ATTEMPTS_WRITTEN_OFF, "unknown", "carrier", {"state": "unknown"}),
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
        """Called when the process begins to stop: from then on it does not count as lost."""
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
