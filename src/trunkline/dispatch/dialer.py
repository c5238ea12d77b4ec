"""The dialer: asks for grants, commits the intent, sends each call once.

    match ─► intent ─► send ─► results
      ▲                          │
      └── bell, next due, 1 s ───┘

Nothing is sent that is not committed, and nothing that is committed is sent twice: there is no retry here. A dialer
that dies between two steps leaves a trace that a loop finds: a holder without an attempt, or one still `dialing`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from trunkline.bus import channels, doorbell, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, Match, Return
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.dispatch.intent import intend
from trunkline.dispatch.offset import ClockOffset
from trunkline.dispatch.results import Answer, ResultWriter
from trunkline.errors import BusUnavailable
from trunkline.loops.base import Loop
from trunkline.model import Entry, Grant, Intent, new_id
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Database
from trunkline.telemetry import bind, get_logger, metrics, span
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import CallOrder, PlaceResult, Rejected
from trunkline.telephony.carriers import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DialerLimits:
    # A match costs 0.1 ms for one grant and under 1 ms for sixteen, and blocks Valkey meanwhile.
    batch_max: int = 16
    in_flight_max: int = 64
    wait_max_s: float = 1.0
    # A call that leaves later than this after its intent is not sent: the world may have moved on.
    send_within_s: float = 0.5
    ring_timeout_s: int = 30
    time_limit_s: int = 3600
    # A refused grant is looked at again after this, so that a disagreement between Valkey and Postgres never spins.
    refused_pause_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Where the carrier finds us, and with which keys its callbacks are signed."""

    base_url: str
    keys: CallbackKeys


class Dialer(Loop):
    name = "dialer"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        carriers: CarrierDirectory,
        callbacks: Callbacks,
        results: ResultWriter,
        identity: str,
        limits: DialerLimits,
    ):
        super().__init__(limits.wait_max_s)
        self._database = database
        self._bus = bus
        self._clock = clock
        self._carriers = carriers
        self._callbacks = callbacks
        self._results = results
        self._identity = identity
        self._limits = limits
        self._offset = ClockOffset(database, bus)
        self._sending: set[asyncio.Task[None]] = set()
        self._next_in_s: float | None = None

    async def run_once(self) -> int:
        """One match and what follows from it; the number of calls that were sent on their way."""
        match = await self._match()
        grants = match.grants
        if not grants:
            return 0
        crash_point("dialer.after_match")
        asked_at_s = self._clock.boottime_s()
        with span("dispatch.intent") as s:
            intents = await intend(self._database, grants, self._identity)
            s.add(granted=len(grants), committed=len(intents.committed))
        crash_point("dialer.after_intent")
        for intent in intents.committed:
            self._send_soon(intent, asked_at_s + self._limits.send_within_s)
        if intents.refused:
            await self._give_back([refusal.grant for refusal in intents.refused])
        return len(intents.committed)

    async def wait(self) -> None:
        """Until the bell rings or the match said that something happens: a lead due, a flow or a number awake."""
        timeout_s = self.interval_s if self._next_in_s is None else min(self.interval_s, self._next_in_s)
        if timeout_s <= 0:
            return
        try:
            await doorbell.wait(self._bus, timeout_s)
        except BusUnavailable:
            await self.pause(timeout_s)

    async def drain(self) -> None:
        """Let the calls that are on their way finish: a committed dial is never cancelled."""
        if self._sending:
            await asyncio.wait(self._sending)
        await self._results.flush()

    async def _match(self) -> Match:
        while len(self._sending) >= self._limits.in_flight_max:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        room = min(self._limits.batch_max, self._limits.in_flight_max - len(self._sending))
        ids = [new_id() for _ in range(room)]
        await epoch.ensure(self._bus)
        match = await schedule.match(self._bus, ids, clock_offset_ms=await self._offset.ms())
        self._next_in_s = match.next_in_s
        return match

    def _send_soon(self, intent: Intent, send_by_boottime_s: float) -> None:
        task = asyncio.create_task(self._send(intent, send_by_boottime_s), name=f"dial {intent.attempt_id}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, intent: Intent, send_by_boottime_s: float) -> None:
        with (
            bind(lead_id=str(intent.lead_id), attempt_id=str(intent.attempt_id)),
            span("dispatch.send", attempt_id=str(intent.attempt_id)),
        ):
            lateness_s = (self._clock.now() - intent.due_at).total_seconds()
            place = await self._place(intent, send_by_boottime_s)
            crash_point("dialer.after_send")
            metrics.DISPATCH_LATENESS_SECONDS.observe(lateness_s)
            metrics.CALLS_PLACED.labels(intent.carrier, _word(place)).inc()
            log.info(
                "call.placed", carrier=intent.carrier, result=_word(place), lateness_s=round(lateness_s, 3)
            )
            self._results.add(Answer(intent.attempt_id, place))

    async def _place(self, intent: Intent, send_by_boottime_s: float) -> PlaceResult:
        try:
            carrier = self._carriers.get(intent.carrier, intent.account)
        except CarrierConfigError as error:
            log.error("call.no_account", carrier=intent.carrier, error=str(error))
            return Rejected("refused", "no_account", retryable=True)
        if self._clock.boottime_s() > send_by_boottime_s:
            return Rejected("not_sent_in_time", "late", retryable=True)
        return await carrier.place(self._order(intent, send_by_boottime_s))

    def _order(self, intent: Intent, send_by_boottime_s: float) -> CallOrder:
        base_url, keys = self._callbacks.base_url, self._callbacks.keys
        return CallOrder(
            attempt_id=intent.attempt_id,
            to=intent.to_phone,
            from_=intent.from_phone,
            answer_url=callback_url(base_url, intent.carrier, "answer", intent.attempt_id, keys),
            status_url=callback_url(base_url, intent.carrier, "status", intent.attempt_id, keys),
            ring_timeout_s=self._limits.ring_timeout_s,
            time_limit_s=self._limits.time_limit_s,
            send_by_boottime_s=send_by_boottime_s,
        )

    async def _give_back(self, refused: Sequence[Grant]) -> None:
        """Return refused grants: to the schedule if Postgres still wants the lead called so, else to oblivion."""
        async with self._database.connection() as conn:
            wanted = await store_schedule.places(conn, [grant.lead_id for grant in refused])
            now_ms = round(await store_schedule.clock_s(conn) * 1000)
            holders = await store_schedule.holders(conn)
        again_ms = now_ms + round(self._limits.refused_pause_s * 1000)
        unused = [
            GiveBack(grant.attempt_id, Return.AGAIN, max(again_ms, grant.due_ms))
            if _is_current(grant, wanted)
            else GiveBack(grant.attempt_id, Return.FORGET)
            for grant in refused
        ]
        log.info("dialer.refused", count=len(refused))
        await schedule.give_back(self._bus, unused, clock_offset_ms=await self._offset.ms())
        await channels.hold(self._bus, holders)


def _is_current(grant: Grant, wanted: Mapping[UUID, Entry]) -> bool:
    entry = wanted.get(grant.lead_id)
    return entry is not None and entry.version == grant.version


def _word(place: PlaceResult) -> str:
    return {"InDoubt": "in_doubt"}.get(type(place).__name__, type(place).__name__.lower())
