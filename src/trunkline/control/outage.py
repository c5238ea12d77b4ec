"""An outage of Postgres: each process reports it without Postgres while it lasts, and writes it when it is over.

All processes detect it. They agree through Valkey on one id and on one process that notifies the webhook; without
Valkey each notifies by itself.
"""

from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from trunkline.bus import outages
from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.control.alarms import DEFINITIONS
from trunkline.control.webhook import AlarmWebhook, Word, announcement
from trunkline.errors import BusUnavailable
from trunkline.model import new_id
from trunkline.store import alarms
from trunkline.store.alarms import Alarm
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

NAME = "postgres_unreachable"


class PlatformOutage:
    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        process: str,
        webhook: AlarmWebhook | None,
        *,
        after_s: float,
        again_after_s: float,
    ):
        """It counts as an outage after `after_s`, and is announced again every `again_after_s` while it lasts."""
        self._bus = bus
        self._clock = clock
        self._process = process
        self._webhook = webhook
        self._after_s = after_s
        self._again_after_s = again_after_s
        self._since_s: float | None = None
        self._id: UUID | None = None
        self._notified_at_s: float | None = None

    @property
    def lasted_s(self) -> float:
        return 0.0 if self._since_s is None else self._clock.boottime_s() - self._since_s

    async def goes_on(self, began_s: float) -> None:
        """Postgres did not answer a check that began at `began_s` of the boot-time clock."""
        if self._since_s is None:
            self._since_s = began_s
        if self.lasted_s < self._after_s:
            return
        metrics.ALARM.labels(NAME).set(1)
        if self._id is None:
            log.error("alarm.raised", alarm=NAME, subject="", lasted_s=round(self.lasted_s, 1))
        is_mine, last_s = await self._agree(), self._notified_at_s
        is_due = last_s is None or self._clock.boottime_s() - last_s >= self._again_after_s
        if self._webhook is not None and is_mine and is_due:
            await self._notify(self._webhook)

    async def ends(self, database: Database) -> None:
        """Postgres answers: write the alarm now. The notifier announces its end as that of any other."""
        if self._id is not None:
            definition = DEFINITIONS[NAME]
            async with database.connection() as conn:
                await alarms.record_outage(
                    conn,
                    self._id,
                    NAME,
                    severity=definition.severity,
                    detail={"lasted_s": round(self.lasted_s, 1), "seen_by": self._process},
                    lasted_s=self.lasted_s,
                    was_notified=await self._was_notified(self._id),
                )
            with suppress(BusUnavailable):  # it expires
                await outages.forget(self._bus)
            log.info("alarm.cleared", alarm=NAME, subject="")
        self._since_s = self._id = self._notified_at_s = None

    async def _agree(self) -> bool:
        """Whether this process is the one that notifies."""
        own = self._id or new_id()
        try:
            self._id = await outages.agree(self._bus, own)
            return self._webhook is not None and await outages.claim(self._bus, self._process)
        except BusUnavailable:
            self._id = own
            return True

    async def _notify(self, webhook: AlarmWebhook) -> None:
        assert self._id is not None, "agreed on before"
        now = self._clock.now()
        alarm = Alarm(
            id=self._id,
            name=NAME,
            subject="",
            severity=DEFINITIONS[NAME].severity,
            detail={"lasted_s": round(self.lasted_s, 1), "seen_by": self._process},
            raised_at=now - timedelta(seconds=self.lasted_s),
            seen_at=now,
            cleared_at=None,
            cleared_by=None,
            raise_told_at=None,
            clear_told_at=None,
            notified_at=now,
            reseller_id=None,
            merchant_id=None,
        )
        word: Word = "alarm.raised" if self._notified_at_s is None else "alarm.ongoing"
        if not await webhook.send(announcement(word, alarm)):
            return
        self._notified_at_s = self._clock.boottime_s()
        with suppress(BusUnavailable):
            await outages.mark_reported(self._bus, self._id)

    async def _was_notified(self, outage: UUID) -> bool:
        if self._notified_at_s is not None:
            return True
        try:
            return await outages.was_reported(self._bus, outage)
        except BusUnavailable:
            return False
