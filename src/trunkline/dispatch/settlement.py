"""Settlement: what follows for leads, channels, counts and alarms from the facts of their attempts.

Two callers: `CarrierResponseWriter` with the carrier's response to our request, and `CallFold` with the events that it
sends later. Both lock the leads first, write facts and consequences in one transaction, and update Valkey afterwards.

Calls are counted in the transaction that settles them, so that a rate over 30 days misses none. Every answered call
without an agent counts as abandoned, whether overdialling caused it or not, and raises an alarm. A merchant to which it
happens again and again is not dialled for for a while: that circuit breaker is written with the end of the call that
trips it, in the same transaction, and read by intents. The first answered call since then without proof that it had no
agent releases it. Inbound calls do not count.
"""

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from trunkline.bus import channels, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.dispatch.policy_cache import Policies
from trunkline.errors import ProjectionLost
from trunkline.leads import outcomes
from trunkline.leads.calling_policy import Effective
from trunkline.leads.outcomes import verdict
from trunkline.leads.retries import Retries
from trunkline.model import Agent, CallFacts, Entry, Finish, LeadDecision, Outcome
from trunkline.states import AttemptState, LeadStatus
from trunkline.store import abandonment, attempts
from trunkline.store.abandonment import BrakeRule, EndedCall
from trunkline.store.attempts import Attempt, Cost, DueAgain
from trunkline.store.database import Connection
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

NOTHING_LEARNT: Mapping[UUID, CallFacts] = {}
NEVER_OPENS = Finish(Outcome.NO_CONFIG, "WINDOW_NEVER_OPENS")
BRAKE = BrakeRule()
# An alarm names at most this many attempts; the API lists all leads.
NAMED_MAX = 20

# Called after the commit with the attempts that are over: the agents that were reserved for them are free.
OnOver = Callable[[Sequence[UUID]], Awaitable[None]]
# Decides about a lead from its attempt, under the retry rules of its owner.
Decide = Callable[[Attempt, Retries], LeadDecision]


@dataclass(slots=True)
class Settlement:
    """The updates of Valkey after the commit: attempts that are over, which of them freed their channels, and leads
    that are due again."""

    freed: list[UUID] = field(default_factory=list)
    over: list[UUID] = field(default_factory=list)
    scheduled: list[Entry] = field(default_factory=list)
    # How leads ended, by lead. Valkey needs no update for these.
    ends: dict[UUID, Finish] = field(default_factory=dict)


class Settler:
    """Writes the decisions, under the policies of the leads' owners."""

    def __init__(self, bus: Bus, policies: Policies, on_over: OnOver | None = None):
        self._bus = bus
        self._policies = policies
        self._on_over = on_over

    async def settle(
        self,
        tx: Connection,
        locked: Mapping[UUID, Attempt],
        decisions: Mapping[UUID, Decide],
        learnt: Mapping[UUID, CallFacts] = NOTHING_LEARNT,
    ) -> Settlement:
        """Decide about the leads of these attempts, which no longer hold a channel. `learnt` are the new facts of this
        transaction; the other attempts count with the facts that were read with them."""
        settlement = Settlement(freed=list(decisions), over=list(decisions))
        if not decisions:
            return settlement
        settled = [locked[each] for each in decisions]
        policies = dict(zip(decisions, await self._policies.of(tx, settled), strict=True))
        await _count(tx, locked, learnt, policies)
        work = _Work()
        for attempt in settled:
            # Only the newest attempt decides about its lead: a late fact of an older one changes nothing.
            if not attempt.is_newest or attempt.lead_status is not LeadStatus.PROCESSING:
                continue
            policy = policies[attempt.id]
            decision = decisions[attempt.id](attempt, policy.retries)
            if attempt.is_cancelled:
                decision = outcomes.after_cancellation(
                    decision, attempt.cancel_reason, hang_up=attempt.hang_up_wanted
                )
            if finish := work.add(attempt, decision, policy):
                metrics.CALLS_FINISHED.labels(attempt.carrier, finish.outcome.value).inc()
        settlement.ends = work.ends
        await attempts.finish_leads(tx, work.ends)
        settlement.scheduled = await attempts.retry_leads(tx, work.retries)
        return settlement

    async def revise(
        self,
        tx: Connection,
        locked: Mapping[UUID, Attempt],
        learnt: Mapping[UUID, CallFacts],
        settlement: Settlement,
    ) -> None:
        """Leads that ended on earlier evidence, or wait because their call seemed to have no agent, and whose calls
        have new evidence. Adds those that end or are due again."""
        await _correct_counts(tx, locked, learnt)
        facts = {each: learnt.get(each, attempt.facts) for each, attempt in locked.items()}
        late = [each for each in locked.values() if outcomes.needs_revision(each, facts[each.id])]
        if not late:
            return
        ended, waiting, revised = _Work(), _Work(), []
        for attempt, policy in zip(late, await self._policies.of(tx, late), strict=True):
            if decision := outcomes.revision(attempt, facts[attempt.id], policy.retries):
                work = waiting if outcomes.waits_for_an_agent(attempt) else ended
                work.add(attempt, decision, policy)
                revised.append(attempt)
        # Once for each: a machine had answered, and was counted as a person who had an agent.
        machines = [
            each
            for each in revised
            if verdict(each.facts, each.report).outcome is Outcome.VOICEMAIL
            and verdict(each.facts).outcome not in (Outcome.VOICEMAIL, Outcome.NO_AGENT)
        ]
        await abandonment.correct(tx, machines, [True] * len(machines), are_served=True)
        await attempts.count_again(tx, [*waiting.ends, *waiting.retries])
        await attempts.finish_leads(tx, waiting.ends)
        await attempts.finish_leads(tx, ended.ends, revises=True)
        settlement.ends |= ended.ends
        settlement.scheduled += await attempts.retry_leads(tx, waiting.retries)
        settlement.scheduled += await attempts.retry_leads(tx, ended.retries, status=LeadStatus.FINISHED)

    async def publish(self, settlement: Settlement) -> None:
        """Agents and channels first: a waiting lead needs them. A projection that was lost meanwhile is rebuilt from
        Postgres, which has all this already."""
        if settlement.over and self._on_over is not None:
            await self._on_over(settlement.over)
        if not settlement.freed and not settlement.scheduled:
            return
        try:
            await epoch.ensure(self._bus)
            await channels.release(self._bus, settlement.freed)
            await schedule.add(self._bus, settlement.scheduled)
        except ProjectionLost:
            return


@dataclass(slots=True)
class _Work:
    """What is decided about leads, by lead."""

    ends: dict[UUID, Finish] = field(default_factory=dict)
    retries: dict[UUID, DueAgain] = field(default_factory=dict)

    def add(self, attempt: Attempt, decision: LeadDecision, policy: Effective) -> Finish | None:
        """A retry is due at the first open time after its delay, by Postgres's clock; without one the lead ends. So it
        does by a policy that fails to compute: the end of a call is written whatever a tenant has configured."""
        assert attempt.lead_id is not None, "only a lead is decided about"
        if not isinstance(decision, Finish):
            assert attempt.read_at is not None, "read under its lock"
            due_at = attempt.read_at + timedelta(seconds=decision.delay_s)
            try:
                opening = policy.opening(attempt.phone, attempt.timezone, due_at)
            except (ArithmeticError, ValueError, LookupError) as error:
                log.error("policy.unreckonable", lead_id=str(attempt.lead_id), error=repr(error))
                opening = None
            if opening is not None:
                self.retries[attempt.lead_id] = DueAgain(decision, opening.opens_at, opening.closes_at)
                return None
            decision = NEVER_OPENS
        self.ends[attempt.lead_id] = decision
        return decision


async def _count(
    tx: Connection,
    locked: Mapping[UUID, Attempt],
    learnt: Mapping[UUID, CallFacts],
    policies: Mapping[UUID, Effective],
) -> None:
    """Costs and outcomes of calls that a carrier accepted and ended: a refused one was no call."""
    costs: list[Cost] = []
    calls: list[EndedCall] = []
    for attempt_id, policy in policies.items():
        attempt, facts = locked[attempt_id], learnt.get(attempt_id)
        if facts is None or attempt.lead_id is None:
            continue
        was_answered, micros = facts.answered_at is not None, 0
        if facts.answered_at is not None:
            talked = (facts.ended_at or facts.answered_at) - facts.answered_at
            talked_s = max(0.0, talked.total_seconds()) if facts.duration_s is None else facts.duration_s
            started_min = math.ceil(talked_s / 60)
            micros = policy.price.per_call_micros + policy.price.per_minute_micros * started_min
        if attempt.counted_at is not None and attempt.merchant_id and (micros or attempt.reserved_micros):
            day = policy.day_at(attempt.counted_at)
            costs.append(Cost(attempt_id, micros, attempt.merchant_id, day))
        outcome = verdict(facts, attempt.report).outcome
        by_person = was_answered and outcome is not Outcome.VOICEMAIL
        without_agent = outcome is Outcome.NO_AGENT
        calls.append(EndedCall(attempt, was_answered, by_person, without_agent, policy.abandon_threshold_s))
        if by_person:
            metrics.CALLS_BY_PERSON.inc()
    if costs:
        await attempts.settle_costs(tx, costs)
    for overdialled in await abandonment.count(tx, calls):
        metrics.CALLS_ABANDONED.labels("overdialled" if overdialled else "no_agent").inc()


async def _correct_counts(
    tx: Connection, locked: Mapping[UUID, Attempt], learnt: Mapping[UUID, CallFacts]
) -> None:
    """Of calls that had ended before. Safe to repeat: an agent reported after the carrier, so there was one. Or no
    agent is proven now where it was unknown."""
    served: dict[UUID, bool] = {}
    for attempt in locked.values():
        if attempt.report is None or attempt.facts.state is not AttemptState.ENDED:
            continue
        now = verdict(outcomes.with_agent(attempt, attempt.facts), attempt.report).outcome
        if verdict(attempt.facts).outcome is Outcome.NO_AGENT and now is not Outcome.NO_AGENT:
            served[attempt.id] = now is Outcome.VOICEMAIL
    await abandonment.correct(tx, [locked[each] for each in served], list(served.values()))
    missed = [
        attempt_id
        for attempt_id, facts in learnt.items()
        if locked[attempt_id].facts.agent is Agent.UNKNOWN
        and verdict(facts, locked[attempt_id].report).outcome is Outcome.NO_AGENT
    ]
    for overdialled in await abandonment.count_late(tx, missed):
        metrics.CALLS_ABANDONED.labels("overdialled" if overdialled else "no_agent").inc()


async def follow_agents(
    tx: Connection,
    locked: Mapping[UUID, Attempt],
    applied: Mapping[UUID, CallFacts],
    ends: Mapping[UUID, Finish],
) -> None:
    """Of the calls whose agent is known now, or known to be missing. Last in its transaction: breakers and alarms are
    rows that many transactions share."""
    missed: list[Attempt] = []
    proven: set[str] = set()
    for each, facts in applied.items():
        attempt, agent = locked[each], facts.agent
        if agent is None or agent is attempt.facts.agent:
            continue
        if attempt.facts.agent is None:  # else it was counted before, by the earlier evidence
            metrics.ANSWERED_CALLS.labels(attempt.carrier, agent.value).inc()
        if agent is Agent.NONE:
            missed.append(attempt)
            metrics.ANSWERED_WITHOUT_AGENT.labels(attempt.carrier).inc()
            log.error("call.answered_without_agent", attempt_id=str(each), lead_id=str(attempt.lead_id))
        elif attempt.is_probe:
            # An unknown agent counts too: where agents never prove themselves, nothing else would ever release the
            # breaker.
            proven.add(attempt.merchant_id)
    for merchant_id in await abandonment.release_brakes(tx, proven) if proven else ():
        log.info("no_agent_brake.released", merchant_id=merchant_id)
        await clear_alarm(tx, "no_agent_brake", merchant_id)
    if not missed:
        return
    without_agent = {each for each, finish in ends.items() if finish.outcome is Outcome.NO_AGENT}
    ended = [each for each in locked.values() if each.is_newest and each.lead_id in without_agent]
    tripped = await abandonment.trip_brakes(tx, {attempt.merchant_id for attempt in missed}, BRAKE)
    for merchant_id, calls in _by_merchant(missed):
        detail = {"attempts": [str(attempt.id) for attempt in calls[:NAMED_MAX]]}
        await raise_alarm(tx, "answered_without_agent", merchant_id, detail, calls[0].tenant)
    for merchant_id, calls in _by_merchant(ended):
        detail = {"leads": [str(attempt.lead_id) for attempt in calls[:NAMED_MAX]]}
        await raise_alarm(tx, "lead_ended_no_agent", merchant_id, detail, calls[0].tenant)
    owners = {attempt.merchant_id: attempt.tenant for attempt in missed}
    for brake in sorted(tripped, key=lambda each: each.merchant_id):
        log.error("no_agent_brake.tripped", merchant_id=brake.merchant_id, without=brake.without)
        counted = {"answered": brake.answered, "without_agent": brake.without}
        brake_detail = {**counted, "stops_until": brake.stops_until.isoformat()}
        await raise_alarm(tx, "no_agent_brake", brake.merchant_id, brake_detail, owners[brake.merchant_id])


def _by_merchant(calls: Iterable[Attempt]) -> list[tuple[str, list[Attempt]]]:
    groups: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in calls:
        groups[attempt.merchant_id].append(attempt)
    return sorted(groups.items())
