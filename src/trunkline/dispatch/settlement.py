"""Settlement: what follows for leads and channels from the facts of their attempts.

Two callers: `CarrierResponseWriter` with the carrier's response to our request, and `CallFold` with the events that it
sends later. Both lock the leads first, write facts and consequences in one transaction, and update Valkey afterwards.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from trunkline.bus import channels, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.dispatch import call_evidence, missing_agents
from trunkline.dispatch.policy_cache import Policies
from trunkline.errors import ProjectionLost
from trunkline.leads.calling_policy import Effective
from trunkline.leads.limits import day_of
from trunkline.leads.retries import Retries
from trunkline.leads.settle_decision import after_cancellation
from trunkline.leads.windows import Opening
from trunkline.model import CallFacts, Entry, Finish, LeadDecision, Outcome
from trunkline.states import AttemptState, LeadStatus
from trunkline.store import attempts
from trunkline.store.attempts import Attempt, Cost, DueAgain
from trunkline.store.database import Connection
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

T = TypeVar("T")

NOTHING_LEARNT: Mapping[UUID, CallFacts] = {}
NEVER_OPENS = Finish(Outcome.NO_CONFIG, "WINDOW_NEVER_OPENS")


# Called after the commit with the attempts that are over: the agents that were reserved for them are free.
OnOver = Callable[[Sequence[UUID]], Awaitable[None]]


@dataclass(slots=True)
class Settlement:
    """The updates of Valkey after the commit: attempts that are over, which of them freed their channels, and leads
    that are due again."""

    freed: list[UUID] = field(default_factory=list)
    scheduled: list[Entry] = field(default_factory=list)
    # Leads that ended, by the attempts that ended them. Valkey needs no update for these.
    ends: list[tuple[Attempt, Finish]] = field(default_factory=list)
    over: list[UUID] = field(default_factory=list)
    on_over: OnOver | None = None

    async def publish(self, bus: Bus) -> None:
        """Agents and channels first: a waiting lead needs them. A projection that was lost meanwhile is rebuilt from
        Postgres, which has all this already."""
        if self.over and self.on_over is not None:
            await self.on_over(self.over)
        if not self.freed and not self.scheduled:
            return
        try:
            await epoch.ensure(bus)
            await channels.release(bus, self.freed)
            await schedule.add(bus, self.scheduled)
        except ProjectionLost:
            return


# Decides about a lead from its attempt, under the retry rules of its owner.
Decide = Callable[[Attempt, Retries], LeadDecision]


class Settler:
    """Writes the decisions, under the policies of the leads' owners."""

    def __init__(self, policies: Policies, on_over: OnOver | None = None):
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
        settlement = Settlement(freed=list(decisions), over=list(decisions), on_over=self._on_over)
        if not decisions:
            return settlement
        policies = await self._policies_by_attempt(tx, [locked[each] for each in decisions])
        await attempts.settle_costs(tx, list(_costs(locked, learnt, policies)))
        await missing_agents.count(tx, decisions, locked, learnt, policies)
        work = _Work()
        for attempt_id, decide in decisions.items():
            attempt, policy = locked[attempt_id], policies[attempt_id]
            # Only the newest attempt decides about its lead: a late fact of an older one changes nothing.
            if attempt.is_newest and attempt.lead_status is LeadStatus.PROCESSING:
                decision = decide(attempt, policy.retries)
                if attempt.is_cancelled:
                    decision = after_cancellation(
                        decision, attempt.cancel_reason, hang_up=attempt.hang_up_wanted
                    )
                work.add(attempt, decision, policy)
        finished = Counter((attempt.carrier, finish.outcome.value) for attempt, finish in work.ends)
        for (carrier, outcome), count in finished.items():
            metrics.CALLS_FINISHED.labels(carrier, outcome).inc(count)
        settlement.ends = work.ends
        await attempts.finish_leads(tx, work.by_lead(work.ends))
        settlement.scheduled = await attempts.retry_leads(tx, work.by_lead(work.retries))
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
        if all(attempt.facts.state is not AttemptState.ENDED for attempt in locked.values()):
            return  # none had ended before
        await missing_agents.correct(tx, locked.values())
        await missing_agents.count_late(tx, locked, learnt)
        facts = {each: learnt.get(each, attempt.facts) for each, attempt in locked.items()}
        late = [
            attempt for attempt in locked.values() if call_evidence.needs_revision(attempt, facts[attempt.id])
        ]
        if not late:
            return
        policies, ended, waiting = await self._policies_by_attempt(tx, late), _Work(), _Work()
        for attempt in late:
            policy = policies[attempt.id]
            if decision := call_evidence.revision(attempt, facts[attempt.id], policy.retries):
                work = waiting if call_evidence.waits_for_an_agent(attempt) else ended
                work.add(attempt, decision, policy)
        await missing_agents.correct_revised(tx, [*ended.attempts(), *waiting.attempts()])
        await attempts.count_again(tx, [*waiting.by_lead(waiting.ends), *waiting.by_lead(waiting.retries)])
        await attempts.finish_leads(tx, waiting.by_lead(waiting.ends))
        await attempts.revise_leads(tx, ended.by_lead(ended.ends))
        settlement.ends += ended.ends
        settlement.scheduled += await attempts.retry_leads(tx, waiting.by_lead(waiting.retries))
        settlement.scheduled += await attempts.retry_leads(
            tx, ended.by_lead(ended.retries), status=LeadStatus.FINISHED
        )

    async def _policies_by_attempt(self, tx: Connection, settled: Sequence[Attempt]) -> dict[UUID, Effective]:
        policies = await self._policies.of(tx, settled)
        return {attempt.id: policy for attempt, policy in zip(settled, policies, strict=True)}


@dataclass(slots=True)
class _Work:
    ends: list[tuple[Attempt, Finish]] = field(default_factory=list)
    retries: list[tuple[Attempt, DueAgain]] = field(default_factory=list)

    def add(self, attempt: Attempt, decision: LeadDecision, policy: Effective) -> None:
        """A retry is due at the first open time after its delay, by Postgres's clock."""
        if isinstance(decision, Finish):
            self.ends.append((attempt, decision))
            return
        assert attempt.read_at is not None, "read under its lock"
        due_at = attempt.read_at + timedelta(seconds=decision.delay_s)
        opening = _first_opening(policy, attempt, due_at)
        if opening is None:
            self.ends.append((attempt, NEVER_OPENS))
        else:
            self.retries.append((attempt, DueAgain(decision, opening.opens_at, opening.closes_at)))

    def attempts(self) -> list[Attempt]:
        return [attempt for attempt, _ in (*self.ends, *self.retries)]

    @staticmethod
    def by_lead(work: Sequence[tuple[Attempt, T]]) -> dict[UUID, T]:
        return {attempt.lead_id: each for attempt, each in work if attempt.lead_id is not None}


def _first_opening(policy: Effective, attempt: Attempt, due_at: datetime) -> Opening | None:
    """A policy that fails to compute never opens: the end of a call is written whatever a tenant has configured."""
    try:
        return policy.opening(attempt.phone, attempt.timezone, due_at)
    except (ArithmeticError, ValueError, LookupError) as error:
        log.error("policy.unreckonable", lead_id=str(attempt.lead_id), error=repr(error))
        return None


def _costs(
    locked: Mapping[UUID, Attempt], learnt: Mapping[UUID, CallFacts], policies: Mapping[UUID, Effective]
) -> Iterator[Cost]:
    """Of calls that have ended, where there is a price or money was reserved."""
    for attempt_id, policy in policies.items():
        attempt, facts = locked[attempt_id], learnt.get(attempt_id)
        if facts is None or attempt.lead_id is None or attempt.counted_at is None:
            continue
        micros = policy.price.cost_micros(_talked_s(facts))
        if (micros or attempt.reserved_micros) and attempt.tenant.merchant_id:
            day = day_of(attempt.counted_at, policy.timezone).name
            yield Cost(attempt_id, micros, attempt.tenant.merchant_id, day)


def _talked_s(facts: CallFacts) -> float | None:
    """None: the call was not answered."""
    if facts.answered_at is None:
        return None
    if facts.duration_s is not None:
        return facts.duration_s
    return max(0.0, (facts.ended_at - facts.answered_at).total_seconds()) if facts.ended_at else 0.0
