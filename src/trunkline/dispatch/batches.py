"""From grants to calls on their way: the intent of a batch, its sends, and whatever came to nothing.

    grants ─► slots ─► intent ─► send
                │ lost: written as not sent        │ refused: given back, and what was refused is blocked
                └ to be asked about first: keeps its channel, in a task of its own, then intended again

A batch whose lead needs a pre-check does not wait for it: the others are on their way by then.
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

# A grant is good for 3 s. Whoever has not answered by then is still listened to, without the channel.
CHANNEL_KEPT_S = 2.0

# The clocks of Postgres and Valkey have drifted apart, or a dialer was stopped between match and intent.
_OF_CLOCKS = frozenset({RefusalReason.NOT_DUE, RefusalReason.STALE_GRANT})

# Asks a tenant's own system about one lead.
Ask = Callable[[UUID], Awaitable[PrecheckVerdict]]
# Told of refusals that Valkey could not be told of.
Untold = Callable[[Sequence[Refusal]], None]


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
        ask: Ask | None,
        untold: Untold,
        slots: SlotSource,
    ):
        self._database = database
        self._bus = bus
        self._clock = clock
        self._sender = sender
        self._identity = identity
        self._rules = rules
        self._offset = offset
        self._ask = ask
        self._untold = untold
        self._slots = slots
        self._asking: set[asyncio.Task[None]] = set()
        # Attempts whose COMMIT was not answered, until they are written as not sent.
        self._lost: list[NewAttempt] = []

    @property
    def in_flight(self) -> int:
        """Calls on their way. Leads that are asked about first are not: whoever answers them slowly would stop
        everybody, and how many they are is bounded for each merchant."""
        return self._sender.in_flight

    def busiest(self, calls: int) -> list[AccountName]:
        """Accounts with so many calls on their way, or more."""
        return self._sender.busiest(calls)

    async def one_is_done(self) -> None:
        await asyncio.wait(self._sender.tasks, return_when=asyncio.FIRST_COMPLETED)

    async def dial(self, grants: Sequence[Grant]) -> int:
        """Commit and send; the number of calls that are on their way."""
        intents = await self._intend(grants)
        needs_precheck = [refusal for refusal in intents.refused if self._is_to_be_asked(refusal)]
        for refusal in needs_precheck:
            self._in_the_background(self._ask_first(refusal))
        await self._give_back([refusal for refusal in intents.refused if refusal not in needs_precheck])
        return len(intents.committed)

    async def drain(self) -> None:
        """Let what was begun finish: a committed dial is never cancelled."""
        if self._asking:
            await asyncio.wait(self._asking)
        await self._sender.drain()

    async def disown_lost(self) -> None:
        """Never send what may or may not be committed: write it as not sent, and let its lead be due again."""
        lost, self._lost = self._lost, []
        if not lost:
            return
        try:
            due_again = await disown(self._database, lost, self._identity)
        except UNAVAILABLE as error:
            self._lost += lost
            log.warning("dialer.disown_failed", attempts=len(lost), error=str(error))
            return
        await self._tell(due_again, [attempt.grant.attempt_id for attempt in lost])

    async def _intend(self, grants: Sequence[Grant]) -> Intents:
        overdialling = self._rules.overdialling
        slots = await self._slots.propose([each for each in grants if not overdialling.is_unkept(each)])
        asked = IntentClock.now(self._clock)
        with span("dispatch.intent") as step:
            try:
                intents = await intend(self._database, grants, self._identity, self._rules, slots)
            except Exception:
                # Nothing was written. Kept, these channels would be held by nobody, and more with every round.
                await self._return(grants)
                await self._slots.give_back(slots.keys())
                raise
            step.add(granted=len(grants), committed=len(intents.committed))
        crash_point("dialer.after_intent")
        answered_s = self._clock.boottime_s()
        for intent in intents.committed:
            turn_s = self._offset.turn_s(intent, asked.boottime_s, answered_s)
            self._sender.send_soon(intent, asked, turn_s)
        self._lost += intents.lost
        await self._return_slots(slots, intents)
        await self._tell_ended()
        await self.disown_lost()
        return intents

    async def _return_slots(self, slots: Mapping[UUID, Slot], intents: Intents) -> None:
        """Those of calls that were not committed. What a lost COMMIT kept ends when its attempts are disowned."""
        used = {intent.attempt_id for intent in intents.committed if intent.slot is not None}
        used |= {attempt.grant.attempt_id for attempt in intents.lost}
        if unused := slots.keys() - used:
            await self._slots.give_back(unused)
        if intents.lost_slots:
            await self._slots.conflicted(intents.lost_slots)

    async def _tell_ended(self) -> None:
        """Campaigns for which agents are kept again, because too many people were abandoned."""
        for merchant_id, campaign_id in self._rules.overdialling.ended():
            subject = f"{merchant_id}/{campaign_id}" if campaign_id else merchant_id
            try:
                await raise_alarm(self._database, "overdialling_ended", subject)
            except UNAVAILABLE as error:
                log.warning("dialer.alarm_not_raised", error=str(error))

    def _is_to_be_asked(self, refusal: Refusal) -> bool:
        return self._ask is not None and refusal.reason is RefusalReason.PRECHECK

    async def _ask_first(self, refusal: Refusal) -> None:
        """The channel is kept meanwhile. After a pass the lead is intended once more, and then no more: whatever is
        said then, the grant is used up."""
        verdict = await self._verdict(refusal.grant.lead_id)
        match verdict:
            case PrecheckPassed() | Skipped(reason="not_needed"):
                await self._give_back((await self._intend([refusal.grant])).refused)
            case PrecheckEnded(finish=finish):
                await self._give_back([replace(refusal, finish=finish)])
            case Deferred(moved=moved):
                await self._give_back([replace(refusal, moved=moved)])
            case Skipped(reason=reason) if reason == NO_ROOM:
                # The others of its flow would find none either.
                await self._give_back([replace(refusal, blocks=Blocks.FLOW)])
            case _:
                await self._give_back([refusal])

    async def _verdict(self, lead_id: UUID) -> PrecheckVerdict | None:
        """None if it did not come in time, or could not be asked for; a pass that comes later is there at the lead's
        next turn."""
        assert self._ask is not None
        question = asyncio.ensure_future(self._ask(lead_id))
        await asyncio.wait({question}, timeout=CHANNEL_KEPT_S)
        if not question.done():
            self._in_the_background(_quietly(question))
            return None
        if (error := question.exception()) is not None:
            log.error("dialer.not_asked", lead_id=str(lead_id), error=str(error), exc_info=error)
            return None
        return question.result()

    def _in_the_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="ask first")
        self._asking.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._asking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The holder without an attempt is found by the reconciler.
            log.error("dialer.ask_failed", error=str(error), exc_info=error)

    async def _return(self, grants: Sequence[Grant]) -> None:
        """As if they had not been granted: the leads keep their places."""
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
        """Tell Valkey what Postgres refused and why, so that the same is not granted again at once."""
        if not refused:
            return
        if any(refusal.reason in _OF_CLOCKS for refusal in refused):
            self._offset.doubt()
        try:
            offset_ms = await self._offset_ms()
            await schedule.give_back(self._bus, grant_returns.give_backs(refused), clock_offset_ms=offset_ms)
            await channels.hold(self._bus, grant_returns.true_holders(refused))
            await schedule.add(self._bus, grant_returns.moved_entries(refused), clock_offset_ms=offset_ms)
        except BusUnavailable as error:
            log.warning("dialer.refusals_untold", count=len(refused), reason=str(error))
            self._untold(refused)

    async def _tell(self, due_again: Sequence[Entry], freed: Sequence[UUID]) -> None:
        try:
            await channels.release(self._bus, freed)
            await schedule.add(self._bus, due_again, clock_offset_ms=await self._offset_ms())
        except BusUnavailable as error:
            log.warning("dialer.disowned_untold", count=len(freed), reason=str(error))


async def _quietly(question: "asyncio.Future[PrecheckVerdict]") -> None:
    await asyncio.wait({question})
    if (error := question.exception()) is not None:
        log.warning("dialer.late_answer_failed", error=str(error))
