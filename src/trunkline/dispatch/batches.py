"""From grants to calls in flight: the intent of a batch, its sends, and its refusals.

    grants ─► slots ─► intent ─► send
                │ lost: written as not sent        │ refused: given back, and the cause is blocked
                └ needs a pre-check: keeps its channel, in a task of its own, then the intent again

A batch does not wait for the pre-check of one of its leads: the other calls are in flight by then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from uuid import UUID

from trunkline.bus import channels, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.clock import Clock
from trunkline.control.raising import raise_alarm
from trunkline.crashpoint import crash_point
from trunkline.dispatch import grant_returns
from trunkline.dispatch.agents import SlotSource
from trunkline.dispatch.intent import Intents, disown, intend
from trunkline.dispatch.intent_batch import Rules
from trunkline.dispatch.offset import ClockOffset
from trunkline.dispatch.prechecks import (
    NO_ROOM,
    Deferred,
    PrecheckEnded,
    PrecheckPassed,
    PrecheckVerdict,
    Skipped,
)
from trunkline.dispatch.refusals import Blocks, Refusal, RefusalReason
from trunkline.dispatch.sender import IntentClock, Sender
from trunkline.errors import BusUnavailable
from trunkline.model import Entry, Grant, Slot
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.dispatch import NewAttempt
from trunkline.telemetry import get_logger, span
from trunkline.value import replace

log = get_logger(__name__)

# A grant is valid for 3 s. A pre-check that takes longer goes on, without the channel.
PRECHECK_WAIT_MAX_S = 2.0

# The clocks of Postgres and Valkey have drifted apart, or a dialer was stopped between match and intent.
_CLOCK_REASONS = frozenset({RefusalReason.NOT_DUE, RefusalReason.STALE_GRANT})

# Queries a tenant's own system about one lead.
RunPrecheck = Callable[[UUID], Awaitable[PrecheckVerdict]]
# Takes the refusals that did not reach Valkey.
OnUndelivered = Callable[[Sequence[Refusal]], None]


class Batches:
    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        sender: Sender,
        identity: str,
        rules: Rules,
        offset: ClockOffset,
        precheck: RunPrecheck | None,
        on_undelivered: OnUndelivered,
        slots: SlotSource,
    ):
        self._database = database
        self._bus = bus
        self._clock = clock
        self._sender = sender
        self._identity = identity
        self._rules = rules
        self._offset = offset
        self._precheck = precheck
        self._on_undelivered = on_undelivered
        self._slots = slots
        self._background_tasks: set[asyncio.Task[None]] = set()
        # Attempts whose COMMIT got no reply, until they are written as not sent.
        self._lost: list[NewAttempt] = []

    @property
    def in_flight(self) -> int:
        """Calls in flight. Leads in their pre-check do not count: one slow tenant's system would stop every flow, and
        their number is bounded per merchant."""
        return self._sender.in_flight

    def busiest(self, calls: int) -> list[AccountName]:
        """Accounts with at least this many calls in flight."""
        return self._sender.busiest(calls)

    async def wait_for_one_send(self) -> None:
        await asyncio.wait(self._sender.tasks, return_when=asyncio.FIRST_COMPLETED)

    async def dial(self, grants: Sequence[Grant]) -> int:
        """Commit and send. Returns the number of calls in flight because of it."""
        intents = await self._intend(grants)
        to_precheck = [refusal for refusal in intents.refused if self._needs_precheck(refusal)]
        for refusal in to_precheck:
            self._run_in_background(self._precheck_then_intend(refusal))
        await self._give_back([refusal for refusal in intents.refused if refusal not in to_precheck])
        return len(intents.committed)

    async def drain(self) -> None:
        """Let running work finish: a committed dial is never cancelled."""
        if self._background_tasks:
            await asyncio.wait(self._background_tasks)
        await self._sender.drain()

    async def disown_lost(self) -> None:
        """Never send what may or may not be committed: write it as not sent, and make its lead due again."""
        lost, self._lost = self._lost, []
        if not lost:
            return
        try:
            due_again = await disown(self._database, lost, self._identity)
        except UNAVAILABLE as error:
            self._lost += lost
            log.warning("dialer.disown_failed", attempts=len(lost), error=str(error))
            return
        await self._publish_disowned(due_again, [attempt.grant.attempt_id for attempt in lost])

    async def _intend(self, grants: Sequence[Grant]) -> Intents:
        overdialling = self._rules.overdialling
        slots = await self._slots.propose([each for each in grants if not overdialling.is_unreserved(each)])
        clock_reading = IntentClock.now(self._clock)
        with span("dispatch.intent") as step:
            try:
                intents = await intend(self._database, grants, self._identity, self._rules, slots)
            except Exception:
                # Nothing was written. Without this, every failed round would leave more channels held for no attempt.
                await self._return_grants(grants)
                await self._slots.give_back(slots.keys())
                raise
            step.add(granted=len(grants), committed=len(intents.committed))
        crash_point("dialer.after_intent")
        returned_s = self._clock.boottime_s()
        for intent in intents.committed:
            turn_s = self._offset.turn_s(intent, clock_reading.boottime_s, returned_s)
            self._sender.send_soon(intent, clock_reading, turn_s)
        self._lost += intents.lost
        await self._return_slots(slots, intents)
        await self._raise_overdialling_alarms()
        await self.disown_lost()
        return intents

    async def _return_slots(self, slots: Mapping[UUID, Slot], intents: Intents) -> None:
        """Those of calls that were not committed. Slots of a lost COMMIT are freed when its attempts are disowned."""
        used = {intent.attempt_id for intent in intents.committed if intent.slot is not None}
        used |= {attempt.grant.attempt_id for attempt in intents.lost}
        if unused := slots.keys() - used:
            await self._slots.give_back(unused)
        if intents.lost_slots:
            await self._slots.conflicted(intents.lost_slots)

    async def _raise_overdialling_alarms(self) -> None:
        """Campaigns whose calls need a reserved agent again, because too many calls were abandoned."""
        for merchant_id, campaign_id in self._rules.overdialling.ended():
            subject = f"{merchant_id}/{campaign_id}" if campaign_id else merchant_id
            try:
                await raise_alarm(self._database, "overdialling_ended", subject)
            except UNAVAILABLE as error:
                log.warning("dialer.alarm_not_raised", error=str(error))

    def _needs_precheck(self, refusal: Refusal) -> bool:
        return self._precheck is not None and refusal.reason is RefusalReason.PRECHECK

    async def _precheck_then_intend(self, refusal: Refusal) -> None:
        """The grant keeps its channel meanwhile. After a pass the lead's intent is tried once more, and only once: any
        further refusal gives the grant back."""
        verdict = await self._verdict(refusal.grant.lead_id)
        match verdict:
            case PrecheckPassed() | Skipped(reason="not_needed"):
                await self._give_back((await self._intend([refusal.grant])).refused)
            case PrecheckEnded(finish=finish):
                await self._give_back([replace(refusal, finish=finish)])
            case Deferred(moved=moved):
                await self._give_back([replace(refusal, moved=moved)])
            case Skipped(reason=reason) if reason == NO_ROOM:
                # Other leads of the flow would find no free check either.
                await self._give_back([replace(refusal, blocks=Blocks.FLOW)])
            case _:
                await self._give_back([refusal])

    async def _verdict(self, lead_id: UUID) -> PrecheckVerdict | None:
        """None if the verdict did not come in time, or the check failed; a pass that comes later is used at the lead's
        next turn."""
        assert self._precheck is not None
        check = asyncio.ensure_future(self._precheck(lead_id))
        await asyncio.wait({check}, timeout=PRECHECK_WAIT_MAX_S)
        if not check.done():
            self._run_in_background(_log_late_failure(check))
            return None
        if (error := check.exception()) is not None:
            log.error("dialer.precheck_not_run", lead_id=str(lead_id), error=str(error), exc_info=error)
            return None
        return check.result()

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="ask first")
        self._background_tasks.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: "asyncio.Task[None]") -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The reconciler finds the holder without an attempt.
            log.error("dialer.ask_failed", error=str(error), exc_info=error)

    async def _return_grants(self, grants: Sequence[Grant]) -> None:
        """As if they had not been granted: the leads keep their positions."""
        unused = [GiveBack(grant.attempt_id, GrantReturn.AGAIN) for grant in grants]
        try:
            await schedule.give_back(self._bus, unused, clock_offset_ms=self._offset.last_ms)
        except BusUnavailable as error:
            log.warning("dialer.grants_not_returned", count=len(grants), reason=str(error))

    async def _offset_ms(self) -> int:
        try:
            return await self._offset.ms()
        except UNAVAILABLE:
            return self._offset.last_ms

    async def _give_back(self, refused: Sequence[Refusal]) -> None:
        """Report to Valkey what Postgres refused and why, so that the match does not grant it again at once."""
        if not refused:
            return
        if any(refusal.reason in _CLOCK_REASONS for refusal in refused):
            self._offset.invalidate()
        try:
            offset_ms = await self._offset_ms()
            await schedule.give_back(self._bus, grant_returns.give_backs(refused), clock_offset_ms=offset_ms)
            await channels.hold(self._bus, grant_returns.true_holders(refused))
            await schedule.add(self._bus, grant_returns.moved_entries(refused), clock_offset_ms=offset_ms)
        except BusUnavailable as error:
            log.warning("dialer.refusals_not_returned", count=len(refused), reason=str(error))
            self._on_undelivered(refused)

    async def _publish_disowned(self, due_again: Sequence[Entry], freed: Sequence[UUID]) -> None:
        try:
            await channels.release(self._bus, freed)
            await schedule.add(self._bus, due_again, clock_offset_ms=await self._offset_ms())
        except BusUnavailable as error:
            log.warning("dialer.disowned_not_returned", count=len(freed), reason=str(error))


async def _log_late_failure(check: "asyncio.Future[PrecheckVerdict]") -> None:
    await asyncio.wait({check})
    if (error := check.exception()) is not None:
        log.warning("dialer.late_answer_failed", error=str(error))
