"""Folds the events of calls into facts, through the mailbox `call`: one mailbox per attempt, many in one transaction.

When a call has ended, its lead is decided in the same transaction, and its channel is released in Valkey after the
commit: released earlier, Postgres would refuse the next grant of that channel.

The fold is total: an unreadable event is parked alone with its error, a fact that an index refuses is left out, and
what comes with a call (a report, recordings, enrichment jobs) is written in savepoints of its own. A mailbox that
failed for ever would hold its channel for ever.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.control.raising import raise_alarm
from trunkline.dispatch import agent_reports, call_evidence, late_facts, missing_agents
from trunkline.dispatch.cooldowns import CarrierAnswer, CooldownWriter, failed_for_us
from trunkline.dispatch.settlement import Decide, Settlement, Settler
from trunkline.jobs.platform.enrichment import EnrichmentService, Wanted
from trunkline.leads import settle_decision
from trunkline.leads.fold import Fact, UnreadableEvent, fold, read, separate_foreign
from trunkline.leads.retries import Retries
from trunkline.mailbox.handler import AfterCommit, Batch, Done
from trunkline.mailbox.worker import WorkerLimits
from trunkline.model import CallFacts, LeadDecision
from trunkline.states import ATTEMPT_MOVES, LIVE, WRITTEN_OFF, AttemptState
from trunkline.store import attempts
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection, apart
from trunkline.store.jobs import Inserted
from trunkline.store.mailboxes import Event, Parked
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Rejected, Throttled
from trunkline.value import replace

log = get_logger(__name__)

KIND = agent_reports.KIND
# An end frees a channel that a lead may be waiting for. All other events can wait for the sweep.
URGENT = frozenset({"ended"})
# A batch gathers for 50 ms; events that are not urgent wait up to 500 ms. Measured by `bench/mailboxes.py`: together
# with the gathering of appends, a call costs 3.9 transactions instead of 9.5 at 80 calls a second.
LIMITS = WorkerLimits(batch_max=200, concurrency=2, linger_s=0.05, sweep_s=0.5, events_max=100)


class CallFold:
    """The handler of kind `call`. The key of a mailbox is the attempt id."""

    kind = KIND

    def __init__(
        self,
        bus: Bus,
        settler: Settler,
        cooldown_writer: CooldownWriter,
        enrichment: EnrichmentService | None = None,
    ):
        self._bus = bus
        self._settler = settler
        # Notes the calls that failed because of our account, number or rights.
        self._cooldowns = cooldown_writer
        # Enriches calls and recordings for tenants that have it configured.
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
        locked = await attempts.lock(tx, list(facts))
        for unknown in facts.keys() - locked.keys():
            parked += _all_parked(batch[str(unknown)], "there is no such attempt")
        if enrichments := await agent_reports.store_carried(tx, batch, locked, parked):
            locked = await attempts.lock(tx, list(locked))  # with their reports
        facts, foreign = _separate_foreign(locked, facts)
        written_off = [attempt for attempt in locked.values() if attempt.facts.state in WRITTEN_OFF]
        reappeared = [attempt for attempt in written_off if _has_reappeared(attempt, facts[attempt.id])]
        if reappeared:
            # Their leads are being called again, unless a newer attempt calls them already.
            await attempts.reattach_leads(tx, reappeared)
            locked = await attempts.lock(tx, list(locked))
        folded = {attempt.id: _facts(attempt, facts[attempt.id]) for attempt in locked.values()}
        changed = {each: known for each, known in folded.items() if known != locked[each].facts}
        applied = await _apply(tx, locked, changed)
        enrichments += await agent_reports.store_recordings(tx, batch, locked)
        enrichment_jobs = await self._request_enrichment(tx, enrichments) if enrichments else []
        late = await late_facts.follow(tx, locked, applied) if written_off else {}
        ended = [each for each, known in applied.items() if _has_ended(locked[each], known)]
        decisions: dict[UUID, Decide] = {each: partial(_decide, applied[each]) for each in ended}
        settlement = await self._settler.settle(tx, locked, decisions, applied)
        await self._settler.revise(tx, locked, applied, settlement)
        await missing_agents.follow(tx, locked, applied, settlement.ends)
        if foreign:
            await raise_alarm(tx, "foreign_call", "", {"calls": foreign})
        if late:
            await late_facts.report(tx, late)
        failures = [failure for each in ended if (failure := _failure(locked[each], applied[each]))]
        return partial(self._follow_up, settlement, enrichment_jobs, failures)

    async def _request_enrichment(self, tx: Connection, wanted: Sequence[Wanted]) -> list[Inserted]:
        if self._enrichment is None:
            return []
        jobs = await apart(tx, self._enrichment.enqueue(tx, wanted))
        if isinstance(jobs, Exception):
            log.error("call.enrichment_not_enqueued", calls=len(wanted), error=type(jobs).__name__)
            return []
        return jobs

    async def _follow_up(
        self, settlement: Settlement, enrichment_jobs: list[Inserted], failures: Sequence[CarrierAnswer]
    ) -> None:
        if self._enrichment is not None:
            self._enrichment.wake(enrichment_jobs)
        await settlement.publish(self._bus)
        if failures:
            await self._cooldowns.note(failures)


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


def _separate_foreign(
    locked: Mapping[UUID, Attempt], facts: Mapping[UUID, list[Fact]]
) -> tuple[dict[UUID, list[Fact]], dict[str, str]]:
    """The facts of the attempts' own calls and, by attempt, the ids of other calls that were reported under it."""
    own: dict[UUID, list[Fact]] = {}
    foreign: dict[str, str] = {}
    for attempt in locked.values():
        own[attempt.id], others = separate_foreign(attempt.facts.call_id, facts[attempt.id])
        for fact in others:
            foreign[str(attempt.id)] = fact.call_id or ""
            log.error(
                "call.foreign", attempt_id=str(attempt.id), call_id=fact.call_id, own=attempt.facts.call_id
            )
    return own, foreign


def _facts(attempt: Attempt, new_facts: Sequence[Fact]) -> CallFacts:
    facts = call_evidence.with_agent(attempt, fold(attempt.facts, new_facts))
    if facts.state in LIVE and attempt.facts.state not in LIVE and not late_facts.may_be_reattached(attempt):
        return late_facts.without_going_live(attempt, facts)
    return facts


async def _apply(
    tx: Connection, locked: Mapping[UUID, Attempt], changed: Mapping[UUID, CallFacts]
) -> Mapping[UUID, CallFacts]:
    """Write the facts together. If an index refuses one of them (the call's id is another attempt's, or a call that
    reappeared has a newer rival), write each by itself, and that one as far as possible."""
    if await _is_applied(tx, changed):
        return changed
    applied: dict[UUID, CallFacts] = {}
    for attempt_id, facts in changed.items():
        attempt = locked[attempt_id]
        as_far_as_possible = (
            facts,
            replace(facts, call_id=attempt.facts.call_id),
            late_facts.without_going_live(attempt, facts),
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


def _has_reappeared(attempt: Attempt, facts: Sequence[Fact]) -> bool:
    """A call that was written off, and may be its lead's again."""
    return late_facts.may_be_reattached(attempt) and fold(attempt.facts, facts).state not in WRITTEN_OFF


def _has_ended(attempt: Attempt, facts: CallFacts) -> bool:
    """By these facts, and not before."""
    is_new = AttemptState.ENDED in ATTEMPT_MOVES[attempt.facts.state]
    return facts.state is AttemptState.ENDED and is_new


def _decide(facts: CallFacts, attempt: Attempt, retries: Retries) -> LeadDecision:
    match _failed_for_us(attempt, facts):
        case None:
            return call_evidence.decide(attempt, facts, retries)
        case Throttled(retry_after_s=retry_after_s):
            return settle_decision.after_throttling(retry_after_s)
        case _:
            return settle_decision.after_our_failing()


def _failed_for_us(attempt: Attempt, facts: CallFacts) -> Rejected | Throttled | None:
    """No person was reached, and the cause is our account, our number or their rights."""
    return None if facts.answered_at is not None else failed_for_us(attempt.carrier, facts.end_reason)


def _failure(attempt: Attempt, facts: CallFacts) -> CarrierAnswer | None:
    """A call that the carrier accepted and then failed because of us, as an answer to its request."""
    place = _failed_for_us(attempt, facts)
    if place is None:
        return None
    return CarrierAnswer(
        attempt.id,
        attempt.lead_id,
        (attempt.carrier, attempt.account),
        attempt.number_id,
        attempt.phone,
        place,
        after_acceptance=True,
    )
