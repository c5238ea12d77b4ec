"""Folds the events of calls into facts, through the mailbox `call`: one mailbox per attempt, many in one transaction.

When a call has ended, what becomes of its lead is decided in the same transaction, and its channel is released in
Valkey after the commit: released earlier, the next grant of that channel would be refused by Postgres.

The fold is total: an event that nobody can read is set aside alone with its error, what an index refuses is left out,
and what comes with a call (a report, recordings, further work) is written in savepoints of its own. A mailbox that
failed for ever would keep its channel for ever.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.control.raising import raise_alarm
from trunkline.dispatch import agent_reports, call_evidence, late_facts, missing_agents, recordings
from trunkline.dispatch.cooldowns import CarrierAnswer, CooldownBook, failed_for_us
from trunkline.dispatch.settlement import Decide, Settlement, Settler
from trunkline.jobs.platform.enrichment import EnrichmentService, Wanted
from trunkline.leads import settle_decision
from trunkline.leads.fold import Fact, UnreadableEvent, fold, read, told_apart
from trunkline.leads.retries import Retries
from trunkline.mailbox.handler import AfterCommit, Batch, Done
from trunkline.mailbox.worker import WorkerLimits
from trunkline.model import CallFacts, LeadDecision
from trunkline.states import ATTEMPT_MOVES, GIVEN_UP, LIVE, AttemptState
from trunkline.store import attempts, call_reports
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection, apart
from trunkline.store.jobs import Inserted
from trunkline.store.mailboxes import Event, Parked
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Rejected, Throttled
from trunkline.value import replace

log = get_logger(__name__)

KIND = agent_reports.KIND
# An end frees a channel, and somebody waits for it. Everything else can wait for the sweep.
URGENT = frozenset({"ended"})
# 50 ms for others, and half a second for what is not urgent. Measured by `bench/mailboxes.py`: together with the
# lingering of appends, a call costs 3.9 transactions instead of 9.5 at 80 calls a second.
LIMITS = WorkerLimits(batch_max=200, concurrency=2, linger_s=0.05, sweep_s=0.5, events_max=100)


class CallFold:
    """The handler of kind `call`. The key of a mailbox is the attempt id."""

    kind = KIND

    def __init__(
        self,
        bus: Bus,
        settler: Settler,
        cooldown_book: CooldownBook,
        enrichment: EnrichmentService | None = None,
    ):
        self._bus = bus
        self._settler = settler
        # Told of calls that failed for our sake.
        self._cooldowns = cooldown_book
        # Who makes more of calls and their recordings, where somebody wants that.
        self._enrichment = enrichment

    async def handle(self, batch: Batch) -> Done:
        facts: dict[UUID, list[Fact]] = {}
        parked: list[Parked] = []
        for key, events in batch.items():
            attempt_id = _attempt_id(key)
            if attempt_id is None:
                parked += _all_parked(events, "the key of its mailbox is no attempt id")
            else:
                facts[attempt_id] = _readable(events, parked)
        return Done(write=partial(self._write, batch, facts, parked), parked=parked)

    async def _write(
        self, batch: Batch, facts: Mapping[UUID, list[Fact]], parked: list[Parked], tx: Connection
    ) -> AfterCommit:
        locked: Mapping[UUID, Attempt] = await attempts.lock(tx, list(facts))
        for unknown in facts.keys() - locked.keys():
            parked += _all_parked(batch[str(unknown)], "there is no such attempt")
        if wanted := await agent_reports.keep_carried(tx, batch, locked, parked):
            locked = await attempts.lock(tx, list(locked))  # with their reports
        facts, foreign = _told_apart(locked, facts)
        locked = await self._adopt(tx, locked, facts)
        folded = {attempt.id: _facts(attempt, facts[attempt.id]) for attempt in locked.values()}
        changed = {each: known for each, known in folded.items() if known != locked[each].facts}
        applied = await _apply(tx, locked, changed)
        wanted += await _keep_recordings(tx, batch, locked)
        asked = await self._ask_enrichment(tx, wanted)
        late = await late_facts.follow(tx, locked, applied)
        decisions = _decisions(locked, applied)
        settlement = await self._settler.settle(tx, locked, decisions, applied)
        await self._settler.revise(tx, locked, applied, settlement)
        await missing_agents.follow(tx, locked, applied, settlement.ends)
        if foreign:
            await raise_alarm(tx, "foreign_call", "", {"calls": foreign})
        await late_facts.report(tx, late)
        return partial(self._follow_up, settlement, asked, _failures(locked, applied, decisions))

    async def _adopt(
        self, tx: Connection, locked: Mapping[UUID, Attempt], facts: Mapping[UUID, list[Fact]]
    ) -> Mapping[UUID, Attempt]:
        """Leads of calls that surfaced are being called again, unless a newer attempt does that already."""
        surfaced = [
            attempt
            for attempt in locked.values()
            # Nothing else can have surfaced, and need not be folded twice.
            if attempt.facts.state in GIVEN_UP
            and late_facts.may_be_adopted(attempt)
            and late_facts.has_surfaced(attempt, fold(attempt.facts, facts[attempt.id]))
        ]
        if not surfaced:
            return locked
        await late_facts.take_up(tx, surfaced)
        return await attempts.lock(tx, list(locked))

    async def _ask_enrichment(self, tx: Connection, wanted: Sequence[Wanted]) -> list[Inserted]:
        if self._enrichment is None or not wanted:
            return []
        asked = await apart(tx, self._enrichment.ask(tx, wanted))
        if isinstance(asked, Exception):
            log.error("call.enrichment_not_asked", calls=len(wanted), error=type(asked).__name__)
            return []
        return asked

    async def _follow_up(
        self, settlement: Settlement, asked: list[Inserted], failures: Sequence[CarrierAnswer]
    ) -> None:
        if self._enrichment is not None:
            self._enrichment.wake(asked)
        await settlement.tell(self._bus)
        if failures:
            await self._cooldowns.note(failures)


async def _keep_recordings(tx: Connection, batch: Batch, locked: Mapping[UUID, Attempt]) -> list[Wanted]:
    """A recording that cannot be kept holds up no call."""
    found = recordings.found_in(batch, list(locked))
    if not found:
        return []
    kept = await apart(tx, call_reports.keep_recordings(tx, found))
    if isinstance(kept, Exception):
        log.error("call.recordings_not_kept", calls=len(found), error=type(kept).__name__)
        return []
    return recordings.to_fetch(found, locked)


def _attempt_id(key: str) -> UUID | None:
    try:
        attempt_id = UUID(key)
    except ValueError:
        return None
    return attempt_id if str(attempt_id) == key else None


def _all_parked(events: Sequence[Event], error: str) -> list[Parked]:
    return [Parked(event.key, event.seq, error) for event in events]


def _readable(events: Sequence[Event], parked: list[Parked]) -> list[Fact]:
    facts = []
    for event in events:
        match read(event.payload, event.created_at):
            case Fact() as fact:
                facts.append(fact)
            case UnreadableEvent(why=why):
                parked.append(Parked(event.key, event.seq, why))
    return facts


def _told_apart(
    locked: Mapping[UUID, Attempt], facts: Mapping[UUID, list[Fact]]
) -> tuple[dict[UUID, list[Fact]], dict[str, str]]:
    """The facts of the attempts' own calls; and, by attempt, the other calls that speak under it."""
    own: dict[UUID, list[Fact]] = {}
    foreign: dict[str, str] = {}
    for attempt in locked.values():
        own[attempt.id], others = told_apart(attempt.facts.call_id, facts[attempt.id])
        for fact in others:
            foreign[str(attempt.id)] = fact.call_id or ""
            log.error(
                "call.foreign", attempt_id=str(attempt.id), call_id=fact.call_id, own=attempt.facts.call_id
            )
    return own, foreign


def _facts(attempt: Attempt, told: Sequence[Fact]) -> CallFacts:
    facts = call_evidence.with_agent(attempt, fold(attempt.facts, told))
    if facts.state in LIVE and attempt.facts.state not in LIVE and not late_facts.may_be_adopted(attempt):
        return late_facts.beside(attempt, facts)
    return facts


async def _apply(
    tx: Connection, locked: Mapping[UUID, Attempt], changed: Mapping[UUID, CallFacts]
) -> Mapping[UUID, CallFacts]:
    """Write the facts together. If an index refuses one of them (the call's id is another attempt's, or a call that
    surfaced has a newer rival), each is written by itself, and that one as far as it can be."""
    if await _is_applied(tx, changed):
        return changed
    applied: dict[UUID, CallFacts] = {}
    for attempt_id, facts in changed.items():
        attempt = locked[attempt_id]
        as_far_as_possible = (
            facts,
            replace(facts, call_id=attempt.facts.call_id),
            late_facts.beside(attempt, facts),
        )
        for possible in as_far_as_possible:
            if await _is_applied(tx, {attempt_id: possible}):
                applied[attempt_id] = possible
                break
        if applied.get(attempt_id) != facts:
            log.error(
                "call.facts_refused", attempt_id=str(attempt_id), state=facts.state, call_id=facts.call_id
            )
    return applied


async def _is_applied(tx: Connection, facts: Mapping[UUID, CallFacts]) -> bool:
    try:
        async with tx.transaction():
            await attempts.apply_facts(tx, facts)
    except attempts.TAKEN:
        return False
    return True


def _decisions(locked: Mapping[UUID, Attempt], changed: Mapping[UUID, CallFacts]) -> dict[UUID, Decide]:
    return {
        attempt_id: partial(_decide, facts)
        for attempt_id, facts in changed.items()
        if facts.state is AttemptState.ENDED
        and AttemptState.ENDED in ATTEMPT_MOVES[locked[attempt_id].facts.state]
    }


def _decide(facts: CallFacts, attempt: Attempt, retries: Retries) -> LeadDecision:
    match _failed_for_us(attempt, facts):
        case None:
            return call_evidence.decide(attempt, facts, retries)
        case Throttled(retry_after_s=retry_after_s):
            return settle_decision.after_throttling(retry_after_s)
        case _:
            return settle_decision.after_our_failing()


def _failed_for_us(attempt: Attempt, facts: CallFacts) -> Rejected | Throttled | None:
    """Nobody was reached, and that is the account's doing, our number's, or that of its rights."""
    return None if facts.answered_at is not None else failed_for_us(attempt.carrier, facts.end_reason)


def _failures(
    locked: Mapping[UUID, Attempt], applied: Mapping[UUID, CallFacts], decided: Collection[UUID]
) -> list[CarrierAnswer]:
    """Calls that the carrier had taken and failed for our sake, as answers to their requests."""
    found = []
    for attempt_id in decided:
        attempt, facts = locked[attempt_id], applied[attempt_id]
        if place := _failed_for_us(attempt, facts):
            account = (attempt.carrier, attempt.account)
            found.append(
                CarrierAnswer(
                    attempt_id,
                    attempt.lead_id,
                    account,
                    attempt.number_id,
                    attempt.phone,
                    place,
                    after_taken=True,
                )
            )
    return found
