"""Every process notifies the operators of alarms: by the gauge `trunkline_alarm`, and at ALARM_WEBHOOK_URL.

The leader evaluates most alarms; notification must not depend on a leader, on the role `jobs` or on Postgres, for one
of these may be missing. So every process checks for alarms to notify, and one of them claims each; whether there is a
leader; and whether Postgres answers at all.

Each process reports an outage of Postgres without Postgres while it lasts, and writes it when it is over. All processes
detect it. They agree through Valkey on one id and on one process that notifies the webhook; without Valkey each
notifies by itself.

The URL is the operator's own, so private addresses are allowed. It is as sensitive as a password and appears in neither
database nor log.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID, uuid4

import msgspec

from trunkline.bus import outages
from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.control.alarms import DEFINITIONS, described
from trunkline.control.raising import raise_alarm
from trunkline.errors import BusUnavailable
from trunkline.http.outgoing import FAILURES, Outgoing
from trunkline.loops.base import Loop
from trunkline.model import new_id
from trunkline.store import alarms, presence
from trunkline.store.alarms import StoredAlarm
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# A receiver that takes longer is retried later: the next alarm must not wait for it.
WEBHOOK_TIMEOUT_S = 8.0
# More than a webhook may take, so that no other process sends the same meanwhile.
CLAIM_S = 60.0
CLAIMED_MAX = 20
# If a check timed out this much later than it should have, this process was paused, not Postgres.
OWN_DELAY_MAX_S = 1.0
OUTAGE = "postgres_unreachable"

Word: TypeAlias = Literal["alarm.raised", "alarm.ongoing", "alarm.cleared"]


@dataclass(frozen=True, slots=True)
class Announcement:
    """`id` is the same however often it is sent, so that a receiver recognises a repeat."""

    id: str
    type: Word
    alarm_id: UUID
    body: dict[str, Any]


def announcements(alarm: StoredAlarm) -> Iterator[Announcement]:
    """In order; an alarm that was raised and cleared between two runs yields both messages."""
    if alarm.raise_told_at is None:
        yield announcement("alarm.raised", alarm)
    if alarm.cleared_at is not None:
        yield announcement("alarm.cleared", alarm)
    elif alarm.raise_told_at is not None:
        yield announcement("alarm.ongoing", alarm)


def announcement(word: Word, alarm: StoredAlarm) -> Announcement:
    alarm = described(alarm)
    cleared_at = alarm.cleared_at if word == "alarm.cleared" else None
    body = {
        "type": word,
        "timestamp": (cleared_at or alarm.raised_at).isoformat(),
        "data": {
            "id": str(alarm.id),
            "name": alarm.name,
            "subject": alarm.subject,
            "severity": alarm.severity,
            "meaning": alarm.meaning,
            "action": alarm.action,
            "detail": alarm.detail,
            "raised_at": alarm.raised_at.isoformat(),
            "cleared_at": cleared_at.isoformat() if cleared_at else None,
        },
    }
    # An ongoing alarm is announced repeatedly, each time under another id.
    after = f":{alarm.notified_at.isoformat()}" if word == "alarm.ongoing" and alarm.notified_at else ""
    return Announcement(f"{word}:{alarm.id}{after}", word, alarm.id, body)


class AlarmWebhook:
    def __init__(self, url: str, outgoing: Outgoing | None = None):
        self._url = url
        self._outgoing = outgoing or Outgoing(allow_insecure=True)

    async def send(self, announcement: Announcement) -> bool:
        """Whether the receiver accepted it."""
        headers = {"Content-Type": "application/json", "webhook-id": announcement.id}
        body = msgspec.json.encode(announcement.body)
        error = ""
        try:
            async with self._outgoing.request(
                "POST", self._url, body=body, headers=headers, total_timeout_s=WEBHOOK_TIMEOUT_S
            ) as answer:
                if 200 <= answer.status < 300:
                    return True
                error = f"http_{answer.status}"
        except FAILURES as failure:
            error = type(failure).__name__
        log.warning("alarm.not_notified", announcement=announcement.id, error=error)
        return False

    async def close(self) -> None:
        await self._outgoing.close()


@dataclass(frozen=True, slots=True)
class NotifierTimes:
    """The webhook is notified within 35 s of the death of a leader or an outage of Postgres: a lease expires 15 s after
    its holder died."""

    interval_s: float = 2.0
    look_timeout_s: float = 3.0
    # An outage of Postgres is an alarm from then on.
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
        self._times = times or NotifierTimes()
        super().__init__(self._times.interval_s)
        self._database = database
        self._bus = bus
        self._clock = clock
        self._id = f"{identity}/{uuid4().hex[:8]}"
        self._leader = leader
        self._webhook = webhook
        self._unled_since_s: float | None = None
        # Of an outage: its begin, its id once it is an alarm, and when this process last told the webhook.
        self._down_since_s: float | None = None
        self._outage_id: UUID | None = None
        self._outage_told_at_s: float | None = None

    async def run_once(self) -> int:
        """Returns how many alarms the webhook was notified of."""
        began_s = self._clock.boottime_s()
        try:
            async with asyncio.timeout(self._times.look_timeout_s):
                await self._check_leader()
                async with self._database.connection() as conn:
                    current = await alarms.current(conn, self._times.again_after_s)
        except UNAVAILABLE:
            # Time without a reply does not count as time without a leader.
            self._unled_since_s = None
            if self._clock.boottime_s() - began_s <= self._times.look_timeout_s + OWN_DELAY_MAX_S:
                await self._outage_goes_on(began_s)
            raise
        show(alarm for alarm, _ in current if alarm.cleared_at is None)
        due = [alarm.id for alarm, is_due in current if is_due][:CLAIMED_MAX]
        await self._outage_ends()
        if self._webhook is None or not due:
            return 0
        async with self._database.connection() as conn:
            claimed = await alarms.claim_notifications(
                conn, due, again_after_s=self._times.again_after_s, for_s=CLAIM_S
            )
        webhook = self._webhook
        return sum(await asyncio.gather(*(self._notify_of(webhook, alarm) for alarm in claimed)))

    async def pause(self, seconds: float) -> None:
        """Without backoff after failures: an outage is reported soon after it begins."""
        await super().pause(min(seconds, self.interval_s))

    async def close(self) -> None:
        if self._webhook is not None:
            await self._webhook.close()

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

    async def _notify_of(self, webhook: AlarmWebhook, alarm: StoredAlarm) -> bool:
        """In order; a delivered announcement is not sent again when the next one fails."""
        for announcement in announcements(alarm):
            was_taken = await webhook.send(announcement)
            async with self._database.connection() as conn:
                if not was_taken:
                    await alarms.not_notified(conn, alarm.id)
                    return False
                await alarms.notified(conn, alarm.id, of_its_end=announcement.type == "alarm.cleared")
        return True

    async def _outage_goes_on(self, began_s: float) -> None:
        """Postgres did not answer a check that began at `began_s` of the boot-time clock."""
        if self._down_since_s is None:
            self._down_since_s = began_s
        lasted_s = self._clock.boottime_s() - self._down_since_s
        if lasted_s < self._times.unreachable_after_s:
            return
        metrics.ALARM.labels(OUTAGE).set(1)
        if self._outage_id is None:
            log.error("alarm.raised", alarm=OUTAGE, subject="", lasted_s=round(lasted_s, 1))
        own_id, is_mine = self._outage_id or new_id(), True
        try:
            self._outage_id = await outages.agree(self._bus, own_id)
            is_mine = self._webhook is not None and await outages.claim(self._bus, self._id)
        except BusUnavailable:
            self._outage_id = own_id
        told_at_s = self._outage_told_at_s
        is_due = told_at_s is None or self._clock.boottime_s() - told_at_s >= self._times.again_after_s
        if self._webhook is not None and is_mine and is_due:
            await self._tell_outage(self._webhook, self._outage_id, lasted_s)

    async def _tell_outage(self, webhook: AlarmWebhook, outage_id: UUID, lasted_s: float) -> None:
        now = self._clock.now()
        alarm = StoredAlarm(
            id=outage_id,
            name=OUTAGE,
            subject="",
            severity=DEFINITIONS[OUTAGE].severity.value,
            meaning="",
            action="",
            detail={"lasted_s": round(lasted_s, 1), "seen_by": self._id},
            raised_at=now - timedelta(seconds=lasted_s),
            seen_at=now,
            cleared_at=None,
            cleared_by=None,
            raise_told_at=None,
            clear_told_at=None,
            notified_at=now,
            reseller_id=None,
            merchant_id=None,
        )
        word: Word = "alarm.raised" if self._outage_told_at_s is None else "alarm.ongoing"
        if await webhook.send(announcement(word, alarm)):
            self._outage_told_at_s = self._clock.boottime_s()
            with suppress(BusUnavailable):
                await outages.mark_reported(self._bus, outage_id)

    async def _outage_ends(self) -> None:
        """Postgres answers: write the alarm now. Its end is announced as that of any other."""
        if self._outage_id is not None and self._down_since_s is not None:
            lasted_s, was_told = (
                self._clock.boottime_s() - self._down_since_s,
                self._outage_told_at_s is not None,
            )
            with suppress(BusUnavailable):
                was_told = was_told or await outages.was_reported(self._bus, self._outage_id)
            async with self._database.connection() as conn:
                await alarms.record_outage(
                    conn,
                    self._outage_id,
                    OUTAGE,
                    severity=DEFINITIONS[OUTAGE].severity,
                    detail={"lasted_s": round(lasted_s, 1), "seen_by": self._id},
                    lasted_s=lasted_s,
                    was_notified=was_told,
                )
            with suppress(BusUnavailable):  # it expires
                await outages.forget(self._bus)
            log.info("alarm.cleared", alarm=OUTAGE, subject="")
        self._down_since_s = self._outage_id = self._outage_told_at_s = None


def show(opened: Iterable[StoredAlarm]) -> None:
    """A series for every alarm: an absent one could not be distinguished from one that is not raised."""
    counts = dict.fromkeys(DEFINITIONS, 0.0)
    for alarm in opened:
        counts[alarm.name] = counts.get(alarm.name, 0.0) + 1
    metrics.set_exactly(metrics.ALARM, counts)
