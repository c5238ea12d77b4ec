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

from trunkline.control.raising import raise_alarm
from trunkline.dispatch import agent_reports, late_facts
from trunkline.dispatch.cooldowns import CarrierAnswer, CooldownWriter, failed_for_us
from trunkline.dispatch.settlement import Decide, Settlement, Settler, follow_agents
from trunkline.jobs.platform.enrichment import EnrichmentService, Wanted
from trunkline.leads import outcomes
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
from trunkline.store.mailboxes import Parked
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
        self, settler: Settler, cooldown_writer: CooldownWriter, enrichment: EnrichmentService | None = None
    ):
        self._settler = settler
        # Notes the calls that failed because of our account, number or rights.
        self._cooldowns = cooldown_writer
        # Enriches calls and recordings for tenants that have it configured.
        self._enrichment = enrichment

    async def handle(self, batch: Batch) -> Done:
        facts: dict[UUID, list[Fact]] = {}
        parked: list[Parked] = []
        for key, events in batch.items():
            try:
                attempt_id = UUID(key)
            except ValueError:
                attempt_id = None
            if attempt_id is None or str(attempt_id) != key:
                error = "the key of its mailbox is no attempt id"
                parked += [Parked(event.key, event.seq, error) for event in events]
                continue
            facts[attempt_id] = []
            for event in events:
                match read(event.payload, event.created_at, event.seq):
                    case Fact() as fact:
                        facts[attempt_id].append(fact)
                    case UnreadableEvent(why=why):
                        parked.append(Parked(event.key, event.seq, why))
        return Done(write=partial(self._write, facts, parked), parked=parked)

    async def _write(
        self, facts: Mapping[UUID, list[Fact]], parked: list[Parked], tx: Connection
    ) -> AfterCommit:
        locked = await attempts.lock(tx, list(facts))
        for unknown in facts.keys() - locked.keys():
            parked += [Parked(str(unknown), fact.seq, "there is no such attempt") for fact in facts[unknown]]
        carried = [(each, fact, fact.report) for each in locked for fact in facts[each] if fact.report]
        enrichments = await agent_reports.store_carried(tx, locked, carried, parked) if carried else []
        own, foreign = {}, {}
        for attempt in locked.values():
            own[attempt.id], others = separate_foreign(attempt.facts.call_id, facts[attempt.id])
            for fact in others:
                foreign[str(attempt.id)] = fact.call_id or ""
                ids = {"call_id": fact.call_id, "own": attempt.facts.call_id}
                log.error("call.foreign", attempt_id=str(attempt.id), **ids)
        written_off = [each for each in locked.values() if each.facts.state in WRITTEN_OFF]
        reappeared = [
            each
            for each in written_off
            if late_facts.may_be_reattached(each) and fold(each.facts, own[each.id]).state not in WRITTEN_OFF
        ]
        if reappeared:
            # Their leads are being called again, unless a newer attempt calls them already.
            await attempts.reattach_leads(tx, reappeared)
        if reappeared or enrichments:
            locked = await attempts.lock(tx, list(locked))  # with their reports
        applied = await _apply(tx, locked, own)
        recordings = [(each, ref) for each in locked for fact in facts[each] for ref in fact.recordings]
        if recordings:
            enrichments += await agent_reports.store_recordings(tx, locked, recordings)
        jobs = await self._request_enrichment(tx, enrichments) if enrichments else []
        late = await late_facts.follow(tx, locked, applied) if written_off else {}
        settlement, failures = await self._settle(tx, locked, applied)
        if foreign:
            await raise_alarm(tx, "foreign_call", "", {"calls": foreign})
        if late:
            await late_facts.report(tx, late)
        return partial(self._follow_up, settlement, jobs, failures)

    async def _settle(
        self, tx: Connection, locked: Mapping[UUID, Attempt], applied: Mapping[UUID, CallFacts]
    ) -> tuple[Settlement, list[CarrierAnswer]]:
        """And the calls that a carrier accepted and then failed because of us, as answers to their requests."""
        decisions: dict[UUID, Decide] = {}
        failures: list[CarrierAnswer] = []
        has_late_evidence = False
        for each, attempt in locked.items():
            has_late_evidence |= attempt.facts.state is AttemptState.ENDED
            facts = applied.get(each, attempt.facts)
            if facts.state is not AttemptState.ENDED or facts.state not in ATTEMPT_MOVES[attempt.facts.state]:
                continue  # it has not ended, or had before
            decisions[each] = partial(outcomes.after_facts, facts)
            # No person was reached, and the cause is our account, our number or their rights.
            place = None if facts.answered_at else failed_for_us(attempt.carrier, facts.end_reason)
            if place is not None:
                decisions[each] = partial(_after_our_failing, place)
                account, number = (attempt.carrier, attempt.account), attempt.number_id
                failures.append(
                    CarrierAnswer(
                        each, attempt.lead_id, account, number, attempt.phone, place, after_acceptance=True
                    )
                )
        settlement = await self._settler.settle(tx, locked, decisions, applied)
        if has_late_evidence:
            await self._settler.revise(tx, locked, applied, settlement)
        await follow_agents(tx, locked, applied, settlement.ends)
        return settlement, failures

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
        await self._settler.publish(settlement)
        if failures:
            await self._cooldowns.note(failures)


async def _apply(
    tx: Connection, locked: Mapping[UUID, Attempt], new_facts: Mapping[UUID, Sequence[Fact]]
) -> Mapping[UUID, CallFacts]:
    """Write what has changed, together. If an index refuses one of them (the call's id is another attempt's, or a call
    that reappeared has a newer rival), write each by itself, and that one as far as possible."""
    changed: dict[UUID, CallFacts] = {}
    for attempt in locked.values():
        facts = outcomes.with_agent(attempt, fold(attempt.facts, new_facts[attempt.id]))
        goes_live = facts.state in LIVE and attempt.facts.state not in LIVE
        if goes_live and not late_facts.may_be_reattached(attempt):
            facts = late_facts.without_going_live(attempt, facts)
        if facts != attempt.facts:
            changed[attempt.id] = facts
    if not changed or await attempts.apply_facts(tx, changed):
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
            if await attempts.apply_facts(tx, {attempt_id: possible}):
                applied[attempt_id] = possible
                break
        if applied.get(attempt_id) != facts:
            log.error(
                "call.facts_refused", attempt_id=str(attempt_id), state=facts.state, call_id=facts.call_id
            )
    return applied


def _after_our_failing(place: Rejected | Throttled, _attempt: Attempt, _retries: Retries) -> LeadDecision:
    if isinstance(place, Throttled):
        return outcomes.after_throttling(place.retry_after_s)
    return outcomes.after_our_failing()
