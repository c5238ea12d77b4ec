"""What a dialer does with the grants of a match: their intent, the sends, and what was refused.

    grants ─► slots ─► intent ─► send
                │ lost: written as not sent        │ refused: given back, and the cause is blocked
                └ needs a pre-check: keeps its channel, in a task of its own, then the intent again

A batch does not wait for the pre-check of one of its leads: the other calls are in flight by then.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from trunkline.bus import channels, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import ANY_RELEASE, COOLDOWN, GiveBack, GrantReturn, to_ms
from trunkline.clock import Clock
from trunkline.control.raising import raise_alarm
from trunkline.crashpoint import crash_point
from trunkline.dispatch.fallback import PostgresFallback
from trunkline.dispatch.gates import NEVER_OPENS, UNREADABLE_POLICY, closed_until
from trunkline.dispatch.intent import Rules, disown, intend
from trunkline.dispatch.policy_cache import UNREADABLE, Policies
from trunkline.dispatch.prechecks import NO_ROOM, PrecheckPassed, PrecheckVerdict, Skipped
from trunkline.dispatch.sender import IntentClock, Sender
from trunkline.errors import BusUnavailable
from trunkline.leads.calling_policy import Effective
from trunkline.leads.windows import Opening
from trunkline.model import Blocks, Entry, FreeSlots, Grant, Holder, Intent, Refusal, RefusalReason, Slot
from trunkline.store import dispatch
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.dispatch import ClosedLead, NewAttempt
from trunkline.store.schedule import clock_s
from trunkline.telemetry import get_logger, span
from trunkline.value import replace

log = get_logger(__name__)

# A grant is valid for 3 s. A pre-check that takes longer goes on, without the channel.
PRECHECK_WAIT_MAX_S = 2.0
# The match retries a refusal without a time of its own after this: Valkey and Postgres disagree, and a reconciler will
# correct one of them.
PAUSE_MS = 1000
# The match retries a flow whose merchant has used up its day once a minute: the limit may have been raised.
PARK_MAX_MS = 60_000
# Clocks of servers drift by milliseconds an hour; a step by an operator is noticed within this time.
MEASURE_EVERY_S = 10.0
MEASUREMENTS = 3

# The clocks of Postgres and Valkey have drifted apart, or a dialer was stopped between match and intent.
_CLOCK_REASONS = frozenset({RefusalReason.NOT_DUE, RefusalReason.STALE_GRANT})
_RETURNS = {
    Blocks.LEAD: GrantReturn.AGAIN,
    Blocks.PERSON: GrantReturn.BEHIND,
    Blocks.FLOW: GrantReturn.PARK,
    Blocks.NUMBER: GrantReturn.REST,
    Blocks.ACCOUNT: GrantReturn.REST_ALL,
}

# Queries a tenant's own system about one lead.
RunPrecheck = Callable[[UUID], Awaitable[PrecheckVerdict]]


class ClockOffset:
    """How far Postgres's clock is ahead of Valkey's, and of this process's. Postgres decides what is due and when a
    call leaves; the others only have to agree with it."""

    def __init__(self, database: Database, bus: Bus, clock: Clock):
        self._database = database
        self._bus = bus
        self._clock = clock
        self._measured_at_s = float("-inf")
        self._offset_ms = 0
        self._ahead_of_us_s = float("-inf")

    async def ms(self) -> int:
        """The offset, measured again when the last measurement is old."""
        if time.monotonic() - self._measured_at_s > MEASURE_EVERY_S:
            self._offset_ms = await self._measure()
            self._measured_at_s = time.monotonic()
        return self._offset_ms

    @property
    def last_ms(self) -> int:
        """The last measurement, for callers that cannot measure now."""
        return self._offset_ms

    def invalidate(self) -> None:
        """Postgres disagreed: a clock was set, and the next use measures again."""
        self._measured_at_s = float("-inf")

    def turn_s(self, intent: Intent, began_s: float, returned_s: float) -> float:
        """What our boot-time clock shows when Postgres's shows `send_at`, or a little later: never before it. The
        intent began and returned at these times, so its own reading of Postgres's clock lies between them. If the
        measured offset contradicts that, a clock was set, and the intent's reading counts."""
        intent_at_s = intent.send_at.timestamp() - intent.send_in_s
        least_s, most_s = intent_at_s - returned_s, intent_at_s - began_s
        ahead_s = self._ahead_of_us_s
        if not least_s <= ahead_s <= most_s:
            self.invalidate()
            ahead_s = least_s
        return intent.send_at.timestamp() - ahead_s

    async def _measure(self) -> int:
        """The least that each can be. Postgres's clock is read before the other one, so every difference is too small
        by the time in between, and the largest is the nearest. If it were too large by a fraction of a millisecond,
        calls would leave before they are due."""
        valkey_offsets_s, own_offsets_s = [], []
        async with self._database.connection() as conn:
            for _ in range(MEASUREMENTS):
                postgres_s = await clock_s(conn)
                own_offsets_s.append(postgres_s - self._clock.boottime_s())
                valkey_offsets_s.append(postgres_s - await self._bus.server_time_s())
        self._ahead_of_us_s = max(own_offsets_s)
        return math.floor(max(valkey_offsets_s) * 1000)


class SlotSource(Protocol):
    """Proposes the agents of calls, and may be wrong: the intent reserves a slot under a unique index, and a call whose
    reservation was not inserted is not dialled."""

    async def free_slots(self) -> FreeSlots | None:
        """None: match without a bound on agents; the intent decides."""
        ...

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        """Slots for these grants, by attempt, as far as there are any."""
        ...

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        """Proposals that no committed call uses."""
        ...

    async def conflicted(self, slots: Collection[Slot]) -> None:
        """Postgres has given these slots to other calls, or their pods are gone: the projection lags behind."""
        ...


class NoAgentsNeeded:
    """For an installation whose agents are all external."""

    async def free_slots(self) -> FreeSlots | None:
        return None

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        return {}

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        return

    async def conflicted(self, slots: Collection[Slot]) -> None:
        return


@dataclass(slots=True, eq=False)
class Batches:
    _database: Database
    _bus: Bus
    _clock: Clock
    _sender: Sender
    _identity: str
    _rules: Rules
    _offset: ClockOffset
    _precheck: RunPrecheck | None
    _fallback: PostgresFallback
    _slots: SlotSource
    _background_tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    # Attempts whose COMMIT got no reply, until they are written as not sent.
    _lost: list[NewAttempt] = field(default_factory=list)

    async def dial(self, grants: Sequence[Grant], *, may_precheck: bool = True) -> int:
        """Commit and send. Returns the number of calls in flight because of it."""
        slots = await self._slots.propose(self._rules.overdialling.reserved(grants))
        clock_reading = IntentClock(self._clock.boottime_s(), self._clock.now().timestamp())
        with span("dispatch.intent") as step:
            try:
                intents = await intend(self._database, grants, self._identity, self._rules, slots)
            except Exception:
                # Nothing was written. Without this, every failed round would leave more channels held for no attempt.
                await self._return_unused(grants)
                await self._slots.give_back(slots.keys())
                raise
            step.add(granted=len(grants), committed=len(intents.committed))
        crash_point("dialer.after_intent")
        returned_s = self._clock.boottime_s()
        unused = dict(slots)
        for intent in intents.committed:
            turn_s = self._offset.turn_s(intent, clock_reading.boottime_s, returned_s)
            self._sender.send_soon(intent, clock_reading, turn_s)
            if intent.slot is not None:
                unused.pop(intent.attempt_id, None)
        # Slots of a lost COMMIT are freed when its attempts are disowned.
        for attempt in intents.lost:
            unused.pop(attempt.grant.attempt_id, None)
        self._lost += intents.lost
        if unused:
            await self._slots.give_back(unused.keys())
        if intents.lost_slots:
            await self._slots.conflicted(intents.lost_slots)
        if self._rules.overdialling.ended:
            await self._raise_overdialling_alarms()
        if self._lost:
            await self.disown_lost()
        refused = dict(intents.refused)
        for grant, refusal in intents.refused.items():
            if may_precheck and self._precheck and refusal.reason is RefusalReason.PRECHECK:
                del refused[grant]
                self._run_in_background(self._precheck_and_retry(grant, refusal, self._precheck))
        if refused:
            await self._give_back(refused)
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
        try:
            await channels.release(self._bus, [attempt.grant.attempt_id for attempt in lost])
            await schedule.add(self._bus, due_again, clock_offset_ms=await self._offset_ms())
        except BusUnavailable as error:
            log.warning("dialer.disowned_not_returned", count=len(lost), reason=str(error))

    async def reopen(self, closed: Sequence[tuple[UUID, int]]) -> None:
        """Leads (id and version) that the match parked, because their window closed before their turn. If this fails,
        the loader loads them again. It must not cost the grants of the same match."""
        try:
            entries = await reopen(self._database, self._rules.policies, closed)
            await schedule.add(self._bus, entries, clock_offset_ms=self._offset.last_ms)
        except Exception as error:
            log.warning("dialer.reopen_failed", leads=len(closed), error=str(error))

    async def _raise_overdialling_alarms(self) -> None:
        """Campaigns whose calls need a reserved agent again, because too many calls were abandoned."""
        overdialling = self._rules.overdialling
        ended, overdialling.ended = overdialling.ended, []
        for merchant_id, campaign_id in ended:
            subject = f"{merchant_id}/{campaign_id}" if campaign_id else merchant_id
            try:
                await raise_alarm(self._database, "overdialling_ended", subject)
            except UNAVAILABLE as error:
                log.warning("dialer.alarm_not_raised", error=str(error))

    async def _precheck_and_retry(self, grant: Grant, refusal: Refusal, precheck: RunPrecheck) -> None:
        """The grant keeps its channel meanwhile. After a pass the lead's intent is tried once more, and only once: any
        further refusal gives the grant back."""
        match await self._verdict(precheck, grant.lead_id):
            case PrecheckPassed() | Skipped(reason="not_needed"):
                await self.dial([grant], may_precheck=False)
            case Refusal() as failed:
                await self._give_back({grant: failed})
            case Skipped(reason=reason) if reason == NO_ROOM:
                # Other leads of the flow would find no free check either.
                await self._give_back({grant: replace(refusal, blocks=Blocks.FLOW)})
            case _:
                await self._give_back({grant: refusal})

    async def _verdict(self, precheck: RunPrecheck, lead_id: UUID) -> PrecheckVerdict | None:
        """None if the verdict did not come in time, or the check failed; a pass that comes later is used at the lead's
        next turn."""
        check = asyncio.ensure_future(precheck(lead_id))
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

    async def _return_unused(self, grants: Sequence[Grant]) -> None:
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

    async def _give_back(self, refused: Mapping[Grant, Refusal]) -> None:
        """Report to Valkey what Postgres refused and why, so that the match does not grant it again at once."""
        if any(refusal.reason in _CLOCK_REASONS for refusal in refused.values()):
            self._offset.invalidate()
        try:
            offset_ms = await self._offset_ms()
            returned = [given_back(grant, refusal) for grant, refusal in refused.items()]
            await schedule.give_back(self._bus, returned, clock_offset_ms=offset_ms)
            await channels.hold(self._bus, true_holders(refused))
            await schedule.add(self._bus, moved_entries(refused), clock_offset_ms=offset_ms)
        except BusUnavailable as error:
            log.warning("dialer.refusals_not_returned", count=len(refused), reason=str(error))
            self._fallback.defer(refused)


async def _log_late_failure(check: "asyncio.Future[PrecheckVerdict]") -> None:
    await asyncio.wait({check})
    if (error := check.exception()) is not None:
        log.warning("dialer.late_answer_failed", error=str(error))


def given_back(grant: Grant, refusal: Refusal) -> GiveBack:
    """What Valkey does with a grant that Postgres refused. Each reason blocks its cause, so that no grant loops."""
    attempt_id, blocks, subject = grant.attempt_id, refusal.blocks, ""
    if refusal.is_gone:
        return GiveBack(attempt_id, GrantReturn.FORGET)
    if blocks is Blocks.CHANNEL:
        # The channel gets its true owner; the lead may be granted another one at once.
        return GiveBack(attempt_id, GrantReturn.AGAIN)
    until_ms = to_ms(refusal.until) if refusal.until else -PAUSE_MS
    if blocks is Blocks.PERSON:
        subject = str(refusal.owner or "")
    elif blocks is Blocks.FLOW:
        subject = ANY_RELEASE if refusal.reason is RefusalReason.AGENTS else ""
        until_ms = min(until_ms, grant.granted_ms + PARK_MAX_MS) if grant.granted_ms else until_ms
    elif blocks is not Blocks.LEAD and refusal.reason is RefusalReason.COOLDOWN:
        subject = COOLDOWN
    return GiveBack(attempt_id, _RETURNS[blocks], until_ms, subject, refusal.is_wait)


def true_holders(refused: Mapping[Grant, Refusal]) -> list[Holder]:
    """The owners, according to Postgres, of the channels that were refused."""
    return [
        Holder(refusal.owner, grant.number_id, grant.channel_no)
        for grant, refusal in refused.items()
        if refusal.blocks is Blocks.CHANNEL and refusal.owner is not None
    ]


def moved_entries(refused: Mapping[Grant, Refusal]) -> list[Entry]:
    """Leads that Postgres has given another due time."""
    return [refusal.moved for refusal in refused.values() if refusal.moved is not None]


async def reopen(database: Database, policies: Policies, closed: Sequence[tuple[UUID, int]]) -> list[Entry]:
    """Leads (id and version) at their next opening, in Postgres first. One that never opens again ends."""
    async with database.transaction() as tx:
        leads = await dispatch.lock_closed(tx, closed)
        effective = await policies.of(tx, leads)
        refused = [(lead, _until_open(lead, policy)) for lead, policy in zip(leads, effective, strict=True)]
        return list((await dispatch.write_refusals(tx, refused)).values())


def _until_open(lead: ClosedLead, policy: Effective) -> Refusal:
    """Under an unreadable policy the lead is judged again later; the intent would refuse it as well."""
    if policy is UNREADABLE:
        return closed_until(Opening(lead.now + UNREADABLE_POLICY, None))
    opening = policy.opening(lead.phone, lead.timezone, max(lead.due_at, lead.now))
    if opening is None:
        return Refusal(RefusalReason.WINDOW, finish=NEVER_OPENS.finish)
    return closed_until(opening)
