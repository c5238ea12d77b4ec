"""Every process notifies the operators of alarms: by the gauge `trunkline_alarm`, and at ALARM_WEBHOOK_URL.

The leader evaluates most alarms; notification must not depend on a leader, on the role `jobs` or on Postgres, for one
of these may be missing. So every process checks for alarms to notify, and one of them claims each; whether there is a
leader; and whether Postgres answers at all.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.control.alarms import DEFINITIONS
from trunkline.control.outage import PlatformOutage
from trunkline.control.raising import raise_alarm
from trunkline.control.webhook import AlarmWebhook, announcements
from trunkline.loops.base import Loop
from trunkline.store import alarms, presence
from trunkline.store.alarms import Alarm
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import metrics

# More than a webhook may take, so that no other process sends the same meanwhile.
CLAIM_S = 60.0
CLAIMED_MAX = 20
# If a check timed out this much later than it should have, this process was paused, not Postgres.
OWN_DELAY_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class NotifierTimes:
    """The webhook is notified within 35 s of the death of a leader or an outage of Postgres: a lease expires 15 s after
    its holder died."""

    interval_s: float = 2.0
    look_timeout_s: float = 3.0
    unreachable_after_s: float = 5.0
    # How long there is no leader before the alarm: after a lease expired, and after a leader stopped on purpose, since
    # a planned restart of the only one takes seconds.
    lapsed_after_s: float = 12.0
    resigned_after_s: float = 25.0
    again_after_s: float = 3600.0


class AlarmNotifier(Loop):
    name = "alarm_notifier"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        identity: str,
        leader: str,
        webhook: AlarmWebhook | None = None,
        times: NotifierTimes | None = None,
    ):
        """`leader`: the role of the election. `webhook`: None if no URL is configured."""
        times = times or NotifierTimes()
        super().__init__(times.interval_s)
        self._database = database
        self._clock = clock
        self._id = f"{identity}/{uuid4().hex[:8]}"
        self._leader = leader
        self._webhook = webhook
        self._times = times
        self._unled_since_s: float | None = None
        self._outage = PlatformOutage(
            bus,
            clock,
            self._id,
            webhook,
            after_s=times.unreachable_after_s,
            again_after_s=times.again_after_s,
        )

    async def run_once(self) -> int:
        """Returns how many alarms the webhook was notified of."""
        began_s = self._clock.boottime_s()
        try:
            async with asyncio.timeout(self._times.look_timeout_s):
                await self._check_leader()
                due = await self._read_alarms()
        except UNAVAILABLE:
            # Time without a reply does not count as time without a leader.
            self._unled_since_s = None
            if self._clock.boottime_s() - began_s <= self._times.look_timeout_s + OWN_DELAY_MAX_S:
                await self._outage.goes_on(began_s)
            raise
        await self._outage.ends(self._database)
        if self._webhook is None or not due:
            return 0
        return await self._notify(self._webhook, due)

    async def pause(self, seconds: float) -> None:
        """Without backoff after failures: an outage is reported soon after it begins."""
        await super().pause(min(seconds, self.interval_s))

    async def close(self) -> None:
        if self._webhook is not None:
            await self._webhook.close()

    async def _read_alarms(self) -> Sequence[Alarm]:
        async with self._database.connection() as conn:
            current = await alarms.current(conn, self._times.again_after_s)
        show(alarm for alarm, _ in current if alarm.cleared_at is None)
        return [alarm for alarm, is_due in current if is_due][:CLAIMED_MAX]

    async def _check_leader(self) -> None:
        async with self._database.connection() as conn:
            seen = await presence.leadership(conn, self._leader)
        if seen.is_led:
            self._unled_since_s = None
            return
        now_s = self._clock.monotonic_s()
        if self._unled_since_s is None:
            self._unled_since_s = now_s
        patience_s = self._times.resigned_after_s if seen.has_resigned else self._times.lapsed_after_s
        if now_s - self._unled_since_s >= patience_s:
            await raise_alarm(self._database, "no_leader", detail={"seen_by": self._id})

    async def _notify(self, webhook: AlarmWebhook, due: Sequence[Alarm]) -> int:
        async with self._database.connection() as conn:
            claimed = await alarms.claim_notifications(
                conn, [alarm.id for alarm in due], again_after_s=self._times.again_after_s, for_s=CLAIM_S
            )
        notified = await asyncio.gather(*(self._notify_of(webhook, alarm) for alarm in claimed))
        return sum(notified)

    async def _notify_of(self, webhook: AlarmWebhook, alarm: Alarm) -> bool:
        """In order; a delivered announcement is not sent again when the next one fails."""
        for announcement in announcements(alarm):
            was_taken = await webhook.send(announcement)
            async with self._database.connection() as conn:
                if not was_taken:
                    await alarms.not_notified(conn, alarm.id)
                    return False
                await alarms.notified(conn, alarm.id, of_its_end=announcement.type == "alarm.cleared")
        return True


def show(opened: Iterable[Alarm]) -> None:
    """A series for every alarm: an absent one could not be distinguished from one that is not raised."""
    counts = dict.fromkeys(DEFINITIONS, 0.0)
    for alarm in opened:
        counts[alarm.name] = counts.get(alarm.name, 0.0) + 1
    metrics.set_exactly(metrics.ALARM, counts)
