"""Gates: every reason not to call a lead now, in the order of `docs/explanation/gates.md`. The first refusal counts.

They judge what the intent has read under its locks, so nothing changes between the judgement and the dial. `judge` has
the gates of a lead by itself. `CountedLimits` has those that count: it starts from the counts that were taken under the
locks and adds what this batch admits, so that the calls of one batch cannot exceed a limit together.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from trunkline.dispatch.cases import Case
from trunkline.dispatch.cooldowns import Cooling
from trunkline.dispatch.overdialling import Overdialled
from trunkline.dispatch.policy_cache import UNREADABLE
from trunkline.leads.calling_policy import Effective, RecentContact
from trunkline.leads.limits import Pace, advance, person_free_at, start_together
from trunkline.leads.windows import Opening
from trunkline.model import Blocks, Finish, Intent, Outcome, PersonCalls, Refusal, RefusalReason, Slot
from trunkline.store.dispatch import LockedLead, NewAttempt, NextStart, Overdial
from trunkline.store.limits import Doubts, LimitCounts, TalkQuestion, Used
from trunkline.value import Value

# reseller, merchant, campaign, number, carrier: why calls of these are stopped, or None.
Stopped = Callable[[str, str, UUID | None, UUID, str], str | None]
# carrier, account: how many calls per second it may start; None means no limit.
AccountPace = Callable[[str, str], float | None]

# A stop may be lifted at any time, so the match retries after this.
RETRY_AFTER = timedelta(seconds=1)
UNREADABLE_POLICY = timedelta(seconds=60)
# The subject of a refusal because calls of this merchant found no agent, which has a time of its own.
NO_AGENT_BRAKE = "no_agent_brake"
# A call that cannot start within this is given back: a channel is not held for waiting.
START_WITHIN_S = 1.0
# An account with too many calls in doubt starts one call per this interval until they are resolved.
PROBE_EVERY_S = 5.0
DOUBTS_MIN = 3
DOUBTS_SHARE = 0.05
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_NO_DOUBTS = Doubts()
_NOTHING_USED = Used()


class AgentRule(Value, frozen=True):
    """Which calls need an agent of ours. `are_elsewhere`: none does, as the operator has configured."""

    are_elsewhere: bool = True
    # Carriers that run the agent themselves.
    carriers_without_streams: frozenset[str] = frozenset()

    @property
    def are_ours(self) -> bool:
        return not self.are_elsewhere

    def needs_agent(self, lead: LockedLead) -> bool:
        is_elsewhere = self.are_elsewhere or lead.are_agents_elsewhere
        return not (is_elsewhere or lead.carrier in self.carriers_without_streams)


AGENTS_ELSEWHERE = AgentRule()


def judge(case: Case, stopped: Stopped) -> Iterator[Refusal]:
    """Every refusal, in the order of the gates. None of these counts; the first one decides."""
    lead, number, policy, retry_at = case.lead, case.number, case.policy, case.lead.now + RETRY_AFTER
    # Where no attempt owns the channel: the number itself is not what the match assumes.
    if subject := _number_problem(case):
        yield Refusal(RefusalReason.CHANNEL, Blocks.NUMBER, retry_at, subject)
    if policy is UNREADABLE:
        until = lead.now + UNREADABLE_POLICY
        yield Refusal(RefusalReason.PAUSED, Blocks.FLOW, until, "policy_unreadable")
    # Postgres comes first: a process's own view of the stops may be 500 ms late.
    stop = lead.halted or stopped(
        lead.reseller_id, lead.merchant_id, lead.campaign_id, number.id, number.carrier
    )
    if stop is not None:
        yield Refusal(RefusalReason.PAUSED, Blocks.LEAD, retry_at, stop)
    # Calls of this merchant were answered and found no agent, again and again: no lead is dialled for a while, then one
    # at a time until a call has its agent.
    if lead.agents_from is not None:
        yield Refusal(RefusalReason.AGENTS, Blocks.FLOW, lead.agents_from, NO_AGENT_BRAKE)
    if lead.attempt_count >= lead.max_attempts:
        finish = Finish(Outcome.CALL_LIMIT_REACHED, "ATTEMPTS_EXHAUSTED")
        yield Refusal(RefusalReason.ATTEMPTS_EXHAUSTED, finish=finish)
    # The loop `LapsedLeads` ends waiting leads; this gate catches those before its turn.
    if lead.expires_at is not None and lead.earliest_at >= lead.expires_at:
        yield Refusal(RefusalReason.EXPIRED, finish=Finish(Outcome.EXPIRED, None))
    if lead.listed_by is not None:
        finish = Finish(Outcome.BLACKLISTED, f"{lead.listed_by.upper()}_LIST")
        yield Refusal(RefusalReason.BLACKLISTED, subject=lead.listed_by, finish=finish)
    if not policy.permits(lead.phone):
        finish = Finish(Outcome.INVALID_PHONE, "DESTINATION_NOT_ALLOWED")
        yield Refusal(RefusalReason.DESTINATION, finish=finish)
    if closed := window(lead.phone, lead.timezone, policy, lead.earliest_at):
        yield closed
    if policy.prechecks and lead.passed_checks != policy.checks_hash:
        yield Refusal(RefusalReason.PRECHECK, subject="needed")


def _number_problem(case: Case) -> str | None:
    lead, number = case.lead, case.number
    if number.status != "active":
        return "number_not_active"
    # The intent has locked the account that the number had before, and its pool may be another tenant's by now.
    is_same_account = (number.carrier, number.account) == (lead.carrier, lead.account)
    if not is_same_account or number.pool_id not in (lead.pool_id, lead.overflow_pool_id):
        return "number_changed"
    return "above_maximum" if case.grant.channel_no > number.max_channels else None


def window(phone: str, zone: str | None, policy: Effective, now: datetime) -> Refusal | None:
    """A closed window gives the lead a new due time; one that never opens ends it."""
    opening = policy.opening(phone, zone, now)
    if opening is None:
        return NEVER_OPENS
    return None if opening.opens_at <= now else closed_until(opening)


def closed_until(opening: Opening) -> Refusal:
    opens_at = opening.opens_at
    return Refusal(RefusalReason.WINDOW, until=opens_at, due_at=opens_at, closes_at=opening.closes_at)


NEVER_OPENS = Refusal(
    RefusalReason.WINDOW, subject="never_opens", finish=Finish(Outcome.NO_CONFIG, "WINDOW_NEVER_OPENS")
)


class CountedLimits:
    """`overdialled`: the agents that were proposed for the calls of this batch, which calls need none, and how many
    agents the others have to leave free for them. `process`: the one that dials."""

    def __init__(
        self,
        counts: LimitCounts,
        account_pace: AccountPace,
        agents: AgentRule = AGENTS_ELSEWHERE,
        overdialled: Overdialled | None = None,
        process: str = "",
    ):
        self._counts = counts
        self._now = counts.now
        self.cooling = Cooling(counts, process)
        self._agents = agents
        self._overdialled = overdialled or Overdialled()
        self._account_pace = account_pace
        # Calls of this batch to a person: of all merchants (None), and of each.
        self._persons: Counter[tuple[str, str | None]] = Counter()
        self._dialled: dict[tuple[str, str], UUID] = {}
        self._merchants: Counter[str] = Counter()
        self._campaigns: Counter[tuple[str, UUID]] = Counter()
        self._days: dict[tuple[str, date], Used] = dict(counts.days)
        self._numbers: Counter[UUID] = Counter()
        self._paces: dict[tuple[str, str], Pace] = {}

    def earliest_at(self, case: Case) -> datetime:
        """The earliest start as far as the lead is concerned. Calls are admitted in this order: a pace continues from
        the last start, so a call that is due earlier would have to start after it."""
        return max(self._now, case.lead.due_at)

    def admit(self, case: Case) -> NewAttempt | Refusal:
        """Admit a call and count it, or return the refusal."""
        if refusal := next(self._limits(case), None):
            return refusal
        # The agent that is reserved for the call, or the terms on which it goes without. None: it needs none of ours.
        agent: Slot | Overdial | None = None
        if self._agents.needs_agent(case.lead):
            found = self._overdialled.agent(case.grant.attempt_id)
            if isinstance(found, str):
                return self._flow_waits(RefusalReason.AGENTS, found)
            agent = found
        if refusal := self.cooling.refusal(case.grant, case.lead):
            return refusal
        has_pace = case.number.starts_per_s
        paces = [self._pace(case, *name) for name in case.paces if has_pace or name[0] != "number"]
        start_at = start_together(paces, self.earliest_at(case), START_WITHIN_S)
        if isinstance(start_at, Pace):
            return _too_fast(start_at)
        opening = _open_at(case, start_at)
        if isinstance(opening, Refusal):
            return opening
        advance(paces, start_at)
        self._count(case)
        if self._overdialled.headrooms:
            self._overdialled.count(agent)
        return self._new_attempt(case, start_at, opening.closes_at, paces, agent)

    def refusals(self, case: Case) -> list[Refusal]:
        """All refusals of a case, for the route that explains why a lead waits. It asks about agents by itself."""
        refusals = list(self._limits(case))
        if refusal := self.cooling.refusal(case.grant, case.lead):
            refusals.append(refusal)
        if not refusals and isinstance(answer := self.admit(case), Refusal):
            refusals.append(answer)
        return refusals

    def _limits(self, case: Case) -> Iterator[Refusal]:
        lead, policy = case.lead, case.policy
        if owner := self._dialled.get((lead.phone, case.number.e164)):
            yield Refusal(RefusalReason.PERSON, Blocks.PERSON, owner=owner)
        if refusal := self._person_limits(case):
            yield refusal
        if policy.recent_contact and (refusal := self._recent_contact(case, policy.recent_contact)):
            yield refusal
        has_budget = policy.attempts_per_day is not None or policy.spend_per_day_micros is not None
        if has_budget and (refusal := self._day(case)):
            yield refusal
        is_bounded = lead.merchant_max_concurrent is not None or policy.campaign_max_concurrent is not None
        if is_bounded and (refusal := self._concurrency(case)):
            yield refusal
        if case.number.id in self._counts.overfull and (refusal := self._number_full(case)):
            yield refusal

    def _person_limits(self, case: Case) -> Refusal | None:
        for question, then in case.persons:
            counted = self._counts.persons[question]
            in_batch = self._persons[question.phone, question.merchant_id]
            all_own = counted.all_own and in_batch == self._persons[question.phone, question.asked_by]
            total = PersonCalls(counted.calls + in_batch, counted.oldest_at or self._now, all_own)
            if free_at := person_free_at(question, total, self.earliest_at(case)):
                subject = "calls_per_person" if question.merchant_id is None else "person_limits"
                if then != "finish":
                    return _defer(case, subject, free_at)
                finish = Finish(Outcome.CALL_LIMIT_REACHED, subject.upper())
                return Refusal(RefusalReason.LIMIT, subject=subject, until=free_at, finish=finish)
        return None

    def _recent_contact(self, case: Case, rule: RecentContact) -> Refusal | None:
        question = TalkQuestion(case.lead.phone, case.lead.merchant_id, rule.cooldown_h * 3600)
        talked_at = self._counts.talks.get(question)
        if talked_at is None:
            return None
        free_at = talked_at + timedelta(seconds=question.cooldown_s)
        if free_at <= self.earliest_at(case):
            return None
        if rule.then != "abort":
            return _defer(case, "recent_contact", free_at)
        finish = Finish(Outcome.PRECHECK_FAILED, "RECENT_CONTACT")
        return Refusal(RefusalReason.LIMIT, subject="recent_contact", until=free_at, finish=finish)

    def _day(self, case: Case) -> Refusal | None:
        policy, day = case.policy, case.day
        used = self._days.get((case.lead.merchant_id, day.name), _NOTHING_USED)
        attempts_max, micros_max = policy.attempts_per_day, policy.spend_per_day_micros
        if attempts_max is not None and used.attempts >= attempts_max:
            return Refusal(RefusalReason.LIMIT, Blocks.FLOW, day.after_at, "attempts_per_day")
        if micros_max is not None and used.micros + policy.price.reserved_micros > micros_max:
            return Refusal(RefusalReason.SPEND, Blocks.FLOW, day.after_at, "spend_per_day")
        return None

    def _concurrency(self, case: Case) -> Refusal | None:
        lead, policy = case.lead, case.policy
        if lead.merchant_max_concurrent is not None:
            live = self._counts.merchants[lead.merchant_id] + self._merchants[lead.merchant_id]
            if live >= lead.merchant_max_concurrent:
                return self._flow_waits(RefusalReason.LIMIT, "merchant_concurrency")
        if lead.campaign_id and policy.campaign_max_concurrent is not None:
            key = (lead.merchant_id, lead.campaign_id)
            if self._counts.campaigns[key] + self._campaigns[key] >= policy.campaign_max_concurrent:
                return self._flow_waits(RefusalReason.LIMIT, "campaign_concurrency")
        return None

    def _number_full(self, case: Case) -> Refusal | None:
        """A number with a call above its maximum: its calls are counted, if the lock allows it."""
        number, live = case.number, self._counts.overfull[case.number.id]
        if number.may_count and live + self._numbers[number.id] < number.max_channels:
            return None
        return Refusal(RefusalReason.CHANNEL, Blocks.NUMBER, self._now + RETRY_AFTER, "number_full")

    def _flow_waits(self, reason: RefusalReason, subject: str) -> Refusal:
        return Refusal(reason, Blocks.FLOW, self._now + RETRY_AFTER, subject)

    def _pace(self, case: Case, kind: str, subject: str) -> Pace:
        if pace := self._paces.get((kind, subject)):
            return pace
        number = case.number
        if kind == "account":
            rate = self._account_pace(number.carrier, number.account)
            doubts = self._counts.doubts.get((number.carrier, number.account), _NO_DOUBTS)
            if doubts.attempts > max(DOUBTS_MIN, DOUBTS_SHARE * doubts.channels):
                rate = 1 / PROBE_EVERY_S
        else:
            rate = number.starts_per_s if kind == "number" else case.policy.campaign_starts_per_s
        next_start_at = self._counts.paces.get((kind, subject), _LONG_AGO)
        pace = self._paces[kind, subject] = Pace(kind, subject, 1 / rate if rate else None, next_start_at)
        return pace

    def _count(self, case: Case) -> None:
        lead, number = case.lead, case.number
        self._persons.update([(lead.phone, None), (lead.phone, lead.merchant_id)])
        self._dialled[lead.phone, number.e164] = case.grant.attempt_id
        self._merchants[lead.merchant_id] += 1
        if lead.campaign_id:
            self._campaigns[lead.merchant_id, lead.campaign_id] += 1
        self._numbers[number.id] += 1
        key = (lead.merchant_id, case.day.name)
        used = self._days.get(key, _NOTHING_USED)
        self._days[key] = Used(used.attempts + 1, used.micros + case.policy.price.reserved_micros)

    def _new_attempt(
        self,
        case: Case,
        start_at: datetime,
        closes_at: datetime | None,
        paces: list[Pace],
        agent: Slot | Overdial | None,
    ) -> NewAttempt:
        grant, lead, number = case.grant, case.lead, case.number
        probes = self.cooling.admit(grant, lead, start_at)
        intent = Intent(
            attempt_id=grant.attempt_id,
            lead_id=lead.id,
            carrier=number.carrier,
            account=number.account,
            to_phone=lead.phone,
            from_phone=number.e164,
            due_at=lead.due_at,
            send_at=start_at,
            send_in_s=(start_at - self._now).total_seconds(),
            closes_at=closes_at,
            payload=lead.payload,
            attempt_no=lead.attempt_count + 1,
            slot=agent if isinstance(agent, Slot) else None,
            ring_min_s=case.policy.ring_min_s(lead.phone),
            ready_at=self._ready_at(case, start_at),
            number_id=number.id,
            is_probe=bool(probes),
        )
        return NewAttempt(
            grant,
            lead,
            intent,
            intent_at=self._now,
            reserved_micros=case.policy.price.reserved_micros,
            day=case.day.name,
            overdial=agent if isinstance(agent, Overdial) else None,
            next_starts=tuple(
                NextStart(pace.kind, pace.subject, pace.next_start_at)
                for pace in paces
                if pace.interval_s is not None
            ),
            probes=probes,
        )

    def _ready_at(self, case: Case, start_at: datetime) -> datetime:
        """When all that the call needs was available: its lateness counts from then. A pace that delays the start is
        the last of these."""
        if start_at > self.earliest_at(case):
            return start_at
        ready_ms = case.grant.ready_ms
        ready_at = datetime.fromtimestamp(ready_ms / 1000, UTC) if ready_ms is not None else case.lead.due_at
        return min(max(ready_at, case.lead.due_at), start_at)


def _defer(case: Case, subject: str, free_at: datetime) -> Refusal:
    """Over a limit: the lead moves to the first open moment after it."""
    opening = case.policy.opening(case.lead.phone, case.lead.timezone, free_at)
    if opening is None:
        return NEVER_OPENS
    opens_at = opening.opens_at
    return Refusal(
        RefusalReason.LIMIT, until=opens_at, subject=subject, due_at=opens_at, closes_at=opening.closes_at
    )


def _open_at(case: Case, start_at: datetime) -> Opening | Refusal:
    """The calling window at the time at which the paces let the call leave, or a refusal if that is too late: the gates
    judged the lead's earliest time. Of the two ends, the lead's and the policy's, the sooner counts."""
    lead = case.lead
    opening = case.policy.opening(lead.phone, lead.timezone, start_at)
    if opening is None:
        return NEVER_OPENS
    is_past = lead.closes_at is not None and lead.earliest_at < start_at >= lead.closes_at
    if opening.opens_at > start_at or is_past:
        return closed_until(opening)
    return Opening(start_at, min(filter(None, (lead.closes_at, opening.closes_at)), default=None))


def _too_fast(pace: Pace) -> Refusal:
    blocks = {"account": Blocks.ACCOUNT, "number": Blocks.NUMBER}.get(pace.kind, Blocks.FLOW)
    # Does not name the account: it may be the platform's, and the lead's tenant reads this.
    return Refusal(RefusalReason.PACE, blocks, pace.next_start_at, pace.kind)
