"""Sends one committed call, once, at its time, or not at all.

A call leaves when its turn has come: not before it is due, and as its paces allow. Its lateness is measured from a
reading of the clocks that was taken *before* the intent began. A process that was stopped anywhere in between, for a
second or for ten minutes, compares the clocks, finds that it is late, and does not send: the next attempt may be
ringing already. There is no retry here, and a send that has begun is never cancelled.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.dispatch.carrier_responses import CarrierResponseWriter
from trunkline.dispatch.cooldowns import CarrierAnswer, CarrierUnreachable
from trunkline.model import Intent, idempotency_key
from trunkline.store import lead_edits
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import bind, get_logger, metrics, span
from trunkline.telephony.accounts import AccountRefresher
from trunkline.telephony.callbacks import CallbackKeys, callback_url, fallback_of
from trunkline.telephony.carrier import (
    Accepted,
    CallOrder,
    CallView,
    Carrier,
    InDoubt,
    PlaceResult,
    Rejected,
    ReservedAgent,
    Throttled,
)
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory
from trunkline.value import Value

log = get_logger(__name__)

# The sender checks this long before a call's turn whether its lead was cancelled.
RECHECK_AHEAD_S = 0.1
# From the end of ringing to the carrier's answer webhook: the carrier's queue, and its retries.
ANSWER_SLACK_S = 30
# The length of an occurrence's id. A payload is its sender's, and may contain anything.
UUID_LENGTH = 36
# The step of the event loop's timers; less than half of one is no wait at all.
TIMER_STEP_S = 0.001
# The platform's pace is below the carrier's, so no call should wait in the carrier's queue. One that does waits behind
# calls of other systems.
PATIENCE = timedelta(seconds=30)
# A queue of a day does not defer a lead for a day: the account slows down, and the lead is tried again.
RETRY_MAX_S = 300.0
_NO_REPLY: tuple[type[BaseException], ...] = (TimeoutError, *UNAVAILABLE)
_UNWANTED = Rejected("not_sent_in_time", "unwanted", retryable=False, blames="nobody")
_LABELS: Mapping[type[PlaceResult], str] = {
    Accepted: "accepted",
    Rejected: "rejected",
    Throttled: "throttled",
    InDoubt: "in_doubt",
}


@dataclass(frozen=True, slots=True)
class SenderLimits:
    # The lead of a call that waits longer than this for its turn may be cancelled meanwhile.
    recheck_after_s: float = RECHECK_AHEAD_S
    # A call that would leave later than this after its time is not sent: it would burst beside punctual ones.
    late_max_s: float = 0.5
    ring_timeout_s: int = 30
    time_limit_s: int = 3600
    detects_machines: bool = False
    records: bool = False


# Whether the lead of a committed attempt was cancelled.
IsUnwanted = Callable[[UUID], Awaitable[bool]]


async def is_cancelled(database: Database, lead_id: UUID) -> bool:
    async with database.connection() as conn:
        return await lead_edits.is_cancelled(conn, lead_id)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The addresses of the carrier's callbacks, and the keys that sign them."""

    base_url: str
    keys: CallbackKeys
    # Carriers request the answer document here when `base_url` failed. Empty: at `base_url` again.
    fallback_base_url: str = ""


class IntentClock(Value, frozen=True):
    """What both clocks showed before the intent began."""

    boottime_s: float
    wall_s: float


class Sender:
    def __init__(
        self,
        clock: Clock,
        carriers: CarrierDirectory,
        callbacks: Callbacks,
        results: CarrierResponseWriter,
        limits: SenderLimits,
        killed: Callable[[], object],
        unwanted: IsUnwanted,
        refresher: AccountRefresher | None = None,
        unreachable: CarrierUnreachable | None = None,
    ):
        """`refresher` reads the accounts anew for a call whose account this process does not have yet."""
        self._refresher = refresher
        self._unreachable = unreachable or CarrierUnreachable()
        self._clock = clock
        self._carriers = carriers
        self._callbacks = callbacks
        self._results = results
        self._limits = limits
        self._killed = killed
        self._unwanted = unwanted
        # By account: a request to a slow carrier is in flight for seconds.
        self._sending: dict[asyncio.Task[None], AccountName] = {}

    @property
    def in_flight(self) -> int:
        return len(self._sending)

    def busiest(self, calls: int) -> list[AccountName]:
        """Accounts with at least this many calls in flight."""
        return [account for account, count in Counter(self._sending.values()).items() if count >= calls]

    def send_soon(self, intent: Intent, clock_reading: IntentClock, turn_s: float) -> None:
        """`turn_s`: what the boot-time clock shows when the call's turn has come."""
        task = asyncio.create_task(
            self._send(intent, clock_reading, turn_s), name=f"dial {intent.attempt_id}"
        )
        self._sending[task] = (intent.carrier, intent.account)
        task.add_done_callback(self._sending.pop)

    @property
    def tasks(self) -> "frozenset[asyncio.Task[None]]":
        return frozenset(self._sending)

    async def drain(self) -> None:
        """Let the calls in flight finish: a committed dial is never cancelled."""
        if self._sending:
            await asyncio.wait(self._sending)
        await self._results.flush()

    async def _send(self, intent: Intent, clock_reading: IntentClock, turn_s: float) -> None:
        with bind(lead_id=intent.lead_id, attempt_id=intent.attempt_id), span("dispatch.send"):
            waits = intent.send_in_s > self._limits.recheck_after_s
            is_unwanted = waits and await self._is_unwanted(intent, turn_s - RECHECK_AHEAD_S)
            await self._until(turn_s)
            lateness_s = (self._clock.now() - (intent.ready_at or intent.due_at)).total_seconds()
            place = _UNWANTED if is_unwanted else await self._place(intent, clock_reading)
            crash_point("dialer.after_send")
            metrics.DISPATCH_LATENESS_SECONDS.observe(max(0.0, lateness_s))
            result = _LABELS[type(place)]
            metrics.CALLS_PLACED.labels(intent.carrier, result).inc()
            log.info("call.placed", carrier=intent.carrier, result=result, lateness_s=round(lateness_s, 3))
            self._results.add(
                CarrierAnswer(
                    intent.attempt_id,
                    intent.lead_id,
                    (intent.carrier, intent.account),
                    intent.number_id,
                    intent.to_phone,
                    place,
                    is_probe=intent.is_probe,
                )
            )

    async def _is_unwanted(self, intent: Intent, at_s: float) -> bool:
        """Whether the lead is cancelled by then. If Postgres does not answer, the call is sent: it is committed."""
        await self._until(at_s)
        try:
            async with asyncio.timeout(RECHECK_AHEAD_S):
                return await self._unwanted(intent.lead_id)
        except _NO_REPLY:
            return False

    async def _until(self, boottime_s: float) -> None:
        """Never less: a timer may fire up to a millisecond early."""
        while (wait_s := boottime_s - self._clock.boottime_s()) > 0:  # noqa: ASYNC110  a clock sends no signal
            await asyncio.sleep(max(wait_s, TIMER_STEP_S))

    async def _place(self, intent: Intent, clock_reading: IntentClock) -> PlaceResult:
        try:
            carrier: Carrier | Rejected = self._carriers.get(intent.carrier, intent.account)
        except CarrierConfigError as error:
            carrier = await self._read_again(intent, error)
        if isinstance(carrier, Rejected):
            return carrier
        if self._killed():
            return Rejected("not_sent_in_time", "killed", retryable=True, blames="nobody")
        if not intent.is_probe and self._unreachable.has((intent.carrier, intent.account)):
            # Up to a second of calls was committed to before this process found the carrier out of reach.
            return Rejected("not_sent_in_time", "unreachable", retryable=True, blames="nobody")
        try:
            order = self._order(intent, clock_reading)
            within_s = order.send_by_boottime_s - clock_reading.boottime_s
            # By either clock: one of them may have been stopped or set back.
            since_s = self._clock.boottime_s() - clock_reading.boottime_s
            if max(since_s, self._clock.now().timestamp() - clock_reading.wall_s) > within_s:
                log.warning("call.not_sent", reason="late")
                return Rejected("not_sent_in_time", "late", retryable=True, blames="nobody")
            crash_point("dialer.before_send")
            return await place_in_time(carrier, order, self._clock)
        except Exception as error:  # a bug of ours, and the call may have been placed all the same
            log.error("call.broke", carrier=intent.carrier, exc_info=error)
            return InDoubt(type(error).__name__)

    async def _read_again(self, intent: Intent, error: CarrierConfigError) -> Carrier | Rejected:
        """An account that was added a second ago is read from Postgres. One that is not found counts as a carrier that
        cannot be reached."""
        if self._refresher is not None:
            await self._refresher.again()
            with suppress(CarrierConfigError):
                return self._carriers.get(intent.carrier, intent.account)
        log.error("call.no_account", carrier=intent.carrier, error=str(error))
        return Rejected("not_connected", "no_account", retryable=True, blames="network")

    def _order(self, intent: Intent, clock_reading: IntentClock) -> CallOrder:
        callbacks, limits, agent = self._callbacks, self._limits, None
        late_max_s = limits.late_max_s
        if intent.closes_at is not None:
            # No call leaves after its window has closed. Both ends are times of Postgres's clock.
            late_max_s = min(late_max_s, (intent.closes_at - intent.send_at).total_seconds())
        ring_timeout_s = max(limits.ring_timeout_s, intent.ring_min_s)
        if intent.slot is not None:
            # If Postgres is down, the reservation counts for as long as the call can ring: later the slot may have
            # another call.
            rings_until_s = self._clock.now().timestamp() + ring_timeout_s + ANSWER_SLACK_S
            agent = ReservedAgent(intent.slot.incarnation, int(rings_until_s))
        callback = partial(
            callback_url,
            callbacks.base_url,
            intent.carrier,
            attempt_id=intent.attempt_id,
            keys=callbacks.keys,
            account=intent.account,
        )
        answer_url = callback("answer", agent=agent)
        metadata = _metadata(intent.payload) if intent.payload else {}
        return CallOrder(
            attempt_id=intent.attempt_id,
            to=intent.to_phone,
            from_=intent.from_phone,
            answer_url=answer_url,
            fallback_url=fallback_of(answer_url, callbacks.fallback_base_url or callbacks.base_url),
            status_url=callback("status"),
            ring_timeout_s=ring_timeout_s,
            time_limit_s=limits.time_limit_s,
            send_by_boottime_s=clock_reading.boottime_s + intent.send_in_s + late_max_s,
            not_after=intent.closes_at,
            metadata=metadata,
            idempotency_key=_idempotency_key(intent, metadata) if metadata else "",
            machine_url=callback("machine") if limits.detects_machines else "",
            recording_url=callback("recording") if limits.records else "",
            agent=agent,
        )


def _metadata(payload: str) -> dict[str, str]:
    """The fields of the payload as text, for the prompts of the carrier's own assistant. Our agents fetch their
    context."""
    fields: dict[str, Any] = msgspec.json.decode(payload)
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in fields.items()
        if value not in (None, "")
    }


def _idempotency_key(intent: Intent, metadata: Mapping[str, str]) -> str:
    """For an occurrence of a reminder: its key as the API shows it."""
    occurrence_id = metadata.get("occurrence_id", "")
    if len(occurrence_id) != UUID_LENGTH:
        return ""
    return idempotency_key(occurrence_id, intent.attempt_no, intent.attempt_id)


def rings_too_late(placed: Accepted, order: CallOrder, now: datetime) -> bool:
    """By the carrier's own estimate of the wait in its queue: Twilio queues calls over its pace for up to a day, and
    then they ring. Without an estimate: False."""
    if not placed.queued_ms:
        return False
    rings_at = now + timedelta(milliseconds=placed.queued_ms)
    return rings_at > now + PATIENCE or (order.not_after is not None and rings_at > order.not_after)


async def place_in_time(carrier: Carrier, order: CallOrder, clock: Clock) -> PlaceResult:
    """As `Carrier.place`; a call that would wait too long in the carrier's queue is cancelled, if that is certain, and
    slows its account. One that rings or was answered goes on."""
    placed = await carrier.place(order)
    if not isinstance(placed, Accepted) or not rings_too_late(placed, order, clock.now()):
        return placed
    await carrier.hang_up(placed.call_id, only_unanswered=True)
    match await carrier.look_up(placed.call_id):
        case CallView(state="ended", reason="canceled", started_at=None):
            log.warning("call.taken_from_queue", carrier=carrier.name, queued_ms=placed.queued_ms)
            return Throttled(min((placed.queued_ms or 0) / 1000, RETRY_MAX_S))
        case _:
            return placed  # it may ring after all, so it is a call like every other
