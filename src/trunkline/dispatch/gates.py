"""Gates: every reason not to call a lead now, in the order of `docs/explanation/gates.md`. The first refusal counts.

They judge a case: one grant with what the intent has read for it under its locks, so nothing changes between the
judgement and the dial. `judge` has the gates of a lead by itself. `CountedLimits` has those that count: it starts from
the counts that were taken under the locks and adds what this batch admits, so that the calls of one batch cannot exceed
a limit together.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from trunkline.dispatch.cooldowns import Cooling
from trunkline.dispatch.policy_cache import UNREADABLE
from trunkline.leads.calling_policy import Effective, RecentContact
from trunkline.leads.limits import day_bounds, person_free_at
from trunkline.leads.windows import Opening
from trunkline.model import (
    Blocks,
    Finish,
    Grant,
    Intent,
    Outcome,
    PersonCalls,
    PersonQuestion,
    Refusal,
    RefusalReason,
    Slot,
)
from trunkline.store.dispatch import (
    DayQuestion,
    Doubts,
    LimitCounts,
    LockedLead,
    LockedNumber,
    NewAttempt,
    NextStart,
    Overdial,
    Questions,
    TalkQuestion,
    Used,
)
from trunkline.value import Value

if TYPE_CHECKING:
    from trunkline.dispatch.overdialling import Overdialled

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
# Until the number is locked, and for one that is gone.
NO_NUMBER = LockedNumber(UUID(int=0), "", "", "", 0, None, "gone", "", may_count=False)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_NO_DOUBTS = Doubts()
_NOTHING_USED = Used()
_UNLIMITED = 2**62


class Case(Value, frozen=True):
    grant: Grant
    lead: LockedLead
    policy: Effective
    # When its call may leave, as far as the lead is concerned: calls are prepared ahead of their due time.
    earliest_at: datetime
    # How often the person may be called, each limit with what happens to a lead over it.
    persons: tuple[tuple[PersonQuestion, str], ...]
    # The paces that a start counts for, by kind and subject. An account may have been slowed by a 429 even if it has no
    # pace; whether a number has one is read with its lock.
    paces: tuple[tuple[str, str], ...]
    # The merchant's day on which the call is counted.
    day: date
    number: LockedNumber = NO_NUMBER


def case_of(grant: Grant, lead: LockedLead, policy: Effective) -> Case:
    phone, merchant_id, overall = lead.phone, lead.merchant_id, policy.calls_per_person
    # All tenants together first, then the merchant's own limits.
    persons = [(PersonQuestion(phone, None, overall.max_calls, overall.window_s, merchant_id), "defer")]
    for limit in policy.limits_of(phone):
        own = PersonQuestion(phone, merchant_id, limit.max_calls, limit.window_h * 3600, merchant_id)
        persons.append((own, limit.then))
    paces = [("account", f"{lead.carrier}/{lead.account}"), ("number", str(grant.number_id))]
    if lead.campaign_id and policy.campaign_starts_per_s:
        paces.append(("campaign", f"{merchant_id}/{lead.campaign_id}"))
    earliest_at = max(lead.now, lead.due_at)
    return Case(grant, lead, policy, earliest_at, tuple(persons), tuple(paces), policy.day_at(earliest_at))


def questions(cases: Sequence[Case]) -> Questions:
    """The counts that every case needs, each question once. They are taken before the gates judge, and for the account
    whose lock is held: a number that has moved to another account is refused."""
    persons: dict[PersonQuestion, None] = {}
    paces: dict[tuple[str, str], None] = {}
    accounts: dict[tuple[str, str], None] = {}
    numbers: dict[UUID, None] = {}
    for case in cases:
        for question, _ in case.persons:
            persons[question] = None
        paces |= dict.fromkeys(case.paces)
        if case.lead.carrier and case.lead.account:
            accounts[case.lead.carrier, case.lead.account] = None
        numbers[case.grant.number_id] = None
    return Questions(list(persons), paces=list(paces), accounts=list(accounts), numbers=list(numbers))


def conditional_questions(cases: Sequence[Case]) -> Questions | None:
    """The counts that only some cases need, and only if no gate has refused them. None: none needs any."""
    talks: dict[TalkQuestion, None] = {}
    merchants: dict[str, None] = {}
    campaigns: dict[tuple[str, UUID], None] = {}
    days: dict[DayQuestion, None] = {}
    for case in cases:
        lead, policy = case.lead, case.policy
        if rule := policy.recent_contact:
            talks[TalkQuestion(lead.phone, lead.merchant_id, rule.cooldown_h * 3600)] = None
        if lead.merchant_max_concurrent is not None:
            merchants[lead.merchant_id] = None
        if lead.campaign_id and policy.campaign_max_concurrent is not None:
            campaigns[lead.merchant_id, lead.campaign_id] = None
        attempts_max, micros_max = policy.attempts_per_day, policy.spend_per_day_micros
        if attempts_max is not None or micros_max is not None:
            # From one batch below the limit on, attempts that were not placed are looked up too.
            attempts_from = _UNLIMITED if attempts_max is None else attempts_max - len(cases)
            micros_from = (
                _UNLIMITED if micros_max is None else micros_max - len(cases) * policy.reserved_micros
            )
            first_at, _ = day_bounds(case.day, policy.timezone)
            days[DayQuestion(lead.merchant_id, case.day, first_at, attempts_from, micros_from)] = None
    if not (talks or merchants or campaigns or days):
        return None
    return Questions(talks=list(talks), merchants=list(merchants), campaigns=list(campaigns), days=list(days))


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
    if number.status != "active":
        yield Refusal(RefusalReason.CHANNEL, Blocks.NUMBER, retry_at, "number_not_active")
    # The intent has locked the account that the number had before, and its pool may be another tenant's by now.
    is_same_account = (number.carrier, number.account) == (lead.carrier, lead.account)
    if not is_same_account or number.pool_id not in (lead.pool_id, lead.overflow_pool_id):
        yield Refusal(RefusalReason.CHANNEL, Blocks.NUMBER, retry_at, "number_changed")
    if case.grant.channel_no > number.max_channels:
        yield Refusal(RefusalReason.CHANNEL, Blocks.NUMBER, retry_at, "above_maximum")
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
    if lead.expires_at is not None and case.earliest_at >= lead.expires_at:
        yield Refusal(RefusalReason.EXPIRED, finish=Finish(Outcome.EXPIRED, None))
    if lead.listed_by is not None:
        finish = Finish(Outcome.BLACKLISTED, f"{lead.listed_by.upper()}_LIST")
        yield Refusal(RefusalReason.BLACKLISTED, subject=lead.listed_by, finish=finish)
    if not policy.permits(lead.phone):
        finish = Finish(Outcome.INVALID_PHONE, "DESTINATION_NOT_ALLOWED")
        yield Refusal(RefusalReason.DESTINATION, finish=finish)
    # A closed window gives the lead a new due time; one that never opens ends it.
    opening = policy.opening(lead.phone, lead.timezone, case.earliest_at)
    if opening is None:
        yield NEVER_OPENS
    elif opening.opens_at > case.earliest_at:
        yield closed_until(opening)
    if policy.prechecks and lead.passed_checks != policy.checks_hash:
        yield Refusal(RefusalReason.PRECHECK, subject="needed")


NEVER_OPENS = Refusal(
    RefusalReason.WINDOW, subject="never_opens", finish=Finish(Outcome.NO_CONFIG, "WINDOW_NEVER_OPENS")
)


def closed_until(opening: Opening) -> Refusal:
    opens_at = opening.opens_at
    return Refusal(RefusalReason.WINDOW, until=opens_at, due_at=opens_at, closes_at=opening.closes_at)


@dataclass(slots=True)
class Pace:
    """Starts are spaced evenly: one every `interval_s`. Without an interval only a throttling by the carrier counts."""

    kind: str
    subject: str
    interval_s: float | None
    next_start_at: datetime


def start_together(paces: Sequence[Pace], earliest_at: datetime, within_s: float) -> datetime | Pace:
    """The time at which all of these paces let a call start. If it cannot start soon after its earliest, the pace that
    delays it most."""
    start_at = earliest_at
    for pace in paces:
        start_at = max(start_at, pace.next_start_at)
    if start_at > earliest_at + timedelta(seconds=within_s):
        return max(paces, key=lambda pace: pace.next_start_at)
    return start_at


def advance(paces: Iterable[Pace], attempt_id: UUID, start_at: datetime) -> tuple[NextStart, ...]:
    """A call starts then: each of its paces continues from there, and is written with the attempt."""
    next_starts = []
    for pace in paces:
        if pace.interval_s is not None:
            pace.next_start_at = start_at + timedelta(seconds=pace.interval_s)
            next_starts.append(NextStart(attempt_id, pace.kind, pace.subject, pace.next_start_at))
    return tuple(next_starts)


@dataclass(slots=True, eq=False)
class CountedLimits:
    """`_overdialled`: the agents that were proposed for the calls of this batch, which calls need none, and how many
    agents the others have to leave free for them."""

    _counts: LimitCounts
    _account_pace: AccountPace
    _cooling: Cooling
    _agents: AgentRule
    _overdialled: "Overdialled"
    # Calls of this batch to a person: of all merchants (None), and of each.
    _persons: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    _dialled: dict[tuple[str, str], UUID] = field(default_factory=dict)
    _merchants: Counter[str] = field(default_factory=Counter)
    _campaigns: Counter[tuple[str, UUID]] = field(default_factory=Counter)
    _numbers: Counter[UUID] = field(default_factory=Counter)
    _paces: dict[tuple[str, str], Pace] = field(default_factory=dict)

    def earliest_at(self, case: Case) -> datetime:
        """The earliest start as far as the lead is concerned. Calls are admitted in this order: a pace continues from
        the last start, so a call that is due earlier would have to start after it."""
        return max(self._counts.now, case.lead.due_at)

    def admit(self, case: Case) -> NewAttempt | Refusal:
        """Admit a call and count it, or return the refusal."""
        lead, earliest_at = case.lead, self.earliest_at(case)
        if refusal := next(self._limits(case, earliest_at), None):
            return refusal
        # The agent that is reserved for the call, or the terms on which it goes without. None: it needs none of ours.
        needs_agent = self._agents.needs_agent(lead)
        agent = self._overdialled.agent(case.grant.attempt_id) if needs_agent else None
        if isinstance(agent, str):
            return self._flow_waits(RefusalReason.AGENTS, agent)
        if refusal := self._cooling.refusal(case.grant, lead):
            return refusal
        paces = self._paces_of(case)
        start_at = start_together(paces, earliest_at, START_WITHIN_S)
        if isinstance(start_at, Pace):
            blocks = {"account": Blocks.ACCOUNT, "number": Blocks.NUMBER}.get(start_at.kind, Blocks.FLOW)
            # Does not name the account: it may be the platform's, and the lead's tenant reads this.
            return Refusal(RefusalReason.PACE, blocks, start_at.next_start_at, start_at.kind)
        # The gates judged the lead's earliest time; the paces may let the call leave too late.
        opening = case.policy.opening(lead.phone, lead.timezone, start_at)
        if opening is None:
            return NEVER_OPENS
        is_past = lead.closes_at is not None and case.earliest_at < start_at >= lead.closes_at
        if opening.opens_at > start_at or is_past:
            return closed_until(opening)
        # Of the two ends, the lead's and the policy's, the sooner counts.
        closes_at = min(filter(None, (lead.closes_at, opening.closes_at)), default=None)
        self._count(case, agent)
        return self._new_attempt(case, start_at, closes_at, paces, agent)

    def refusals(self, case: Case) -> list[Refusal]:
        """All refusals of a case, for the route that explains why a lead waits. It asks about agents by itself."""
        refusals = list(self._limits(case, self.earliest_at(case)))
        if refusal := self._cooling.refusal(case.grant, case.lead):
            refusals.append(refusal)
        if not refusals and isinstance(answer := self.admit(case), Refusal):
            refusals.append(answer)
        return refusals

    def _limits(self, case: Case, at: datetime) -> Iterator[Refusal]:
        lead, policy = case.lead, case.policy
        if owner := self._dialled.get((lead.phone, case.number.e164)):
            yield Refusal(RefusalReason.PERSON, Blocks.PERSON, owner=owner)
        for question, then in case.persons:
            counted, in_batch = (
                self._counts.persons[question],
                self._persons[lead.phone, question.merchant_id],
            )
            if counted.calls + in_batch < question.max_calls:
                continue
            all_own = counted.all_own and in_batch == self._persons[lead.phone, question.asked_by]
            total = PersonCalls(counted.calls + in_batch, counted.oldest_at or self._counts.now, all_own)
            if free_at := person_free_at(question, total, at):
                subject = "calls_per_person" if question.merchant_id is None else "person_limits"
                finish = Finish(Outcome.CALL_LIMIT_REACHED, subject.upper()) if then == "finish" else None
                yield _over_limit(case, subject, free_at, finish)
                break
        if policy.recent_contact and (refusal := self._recent_contact(case, policy.recent_contact, at)):
            yield refusal
        has_budget = policy.attempts_per_day is not None or policy.spend_per_day_micros is not None
        if has_budget and (refusal := self._day(case)):
            yield refusal
        is_bounded = lead.merchant_max_concurrent is not None or policy.campaign_max_concurrent is not None
        if is_bounded and (refusal := self._concurrency(case)):
            yield refusal
        if case.number.id in self._counts.overfull and (refusal := self._number_full(case)):
            yield refusal

    def _recent_contact(self, case: Case, rule: RecentContact, at: datetime) -> Refusal | None:
        question = TalkQuestion(case.lead.phone, case.lead.merchant_id, rule.cooldown_h * 3600)
        talked_at = self._counts.talks.get(question)
        if talked_at is None:
            return None
        free_at = talked_at + timedelta(seconds=question.cooldown_s)
        if free_at <= at:
            return None
        finish = Finish(Outcome.PRECHECK_FAILED, "RECENT_CONTACT") if rule.then == "abort" else None
        return _over_limit(case, "recent_contact", free_at, finish)

    def _day(self, case: Case) -> Refusal | None:
        policy, used = case.policy, self._counts.days.get((case.lead.merchant_id, case.day), _NOTHING_USED)
        attempts_max, micros_max = policy.attempts_per_day, policy.spend_per_day_micros
        _, after_at = day_bounds(case.day, policy.timezone)
        if attempts_max is not None and used.attempts >= attempts_max:
            return Refusal(RefusalReason.LIMIT, Blocks.FLOW, after_at, "attempts_per_day")
        if micros_max is not None and used.micros + policy.reserved_micros > micros_max:
            return Refusal(RefusalReason.SPEND, Blocks.FLOW, after_at, "spend_per_day")
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
        return Refusal(RefusalReason.CHANNEL, Blocks.NUMBER, self._counts.now + RETRY_AFTER, "number_full")

    def _flow_waits(self, reason: RefusalReason, subject: str) -> Refusal:
        return Refusal(reason, Blocks.FLOW, self._counts.now + RETRY_AFTER, subject)

    def _paces_of(self, case: Case) -> list[Pace]:
        number, paces = case.number, []
        for kind, subject in case.paces:
            pace = self._paces.get((kind, subject))
            if pace is None:
                if kind == "account":
                    rate = self._account_pace(number.carrier, number.account)
                    doubts = self._counts.doubts.get((number.carrier, number.account), _NO_DOUBTS)
                    if doubts.attempts > max(DOUBTS_MIN, DOUBTS_SHARE * doubts.channels):
                        rate = 1 / PROBE_EVERY_S
                elif kind == "campaign":
                    rate = case.policy.campaign_starts_per_s
                elif not (rate := number.starts_per_s):
                    continue
                next_start_at = self._counts.paces.get((kind, subject), _LONG_AGO)
                pace = Pace(kind, subject, 1 / rate if rate else None, next_start_at)
                self._paces[kind, subject] = pace
            paces.append(pace)
        return paces

    def _count(self, case: Case, agent: Slot | Overdial | None) -> None:
        lead, number = case.lead, case.number
        self._persons.update([(lead.phone, None), (lead.phone, lead.merchant_id)])
        self._dialled[lead.phone, number.e164] = case.grant.attempt_id
        self._merchants[lead.merchant_id] += 1
        if lead.campaign_id:
            self._campaigns[lead.merchant_id, lead.campaign_id] += 1
        self._numbers[number.id] += 1
        days, today = self._counts.days, (lead.merchant_id, case.day)
        used = days.get(today, _NOTHING_USED)
        days[today] = Used(used.attempts + 1, used.micros + case.policy.reserved_micros)
        if self._overdialled.headrooms:
            self._overdialled.count(agent)

    def _new_attempt(
        self,
        case: Case,
        start_at: datetime,
        closes_at: datetime | None,
        paces: list[Pace],
        agent: Slot | Overdial | None,
    ) -> NewAttempt:
        grant, lead, number = case.grant, case.lead, case.number
        # When all that the call needs was available: its lateness counts from then. A pace that delays the start is the
        # last of these.
        ready_at = start_at
        if start_at <= self.earliest_at(case):
            granted_at = datetime.fromtimestamp((grant.ready_ms or 0) / 1000, UTC)
            ready_at = min(max(granted_at, lead.due_at), start_at)
        probes = self._cooling.admit(grant, lead, start_at)
        intent = Intent(
            attempt_id=grant.attempt_id,
            lead_id=lead.id,
            carrier=number.carrier,
            account=number.account,
            to_phone=lead.phone,
            from_phone=number.e164,
            due_at=lead.due_at,
            send_at=start_at,
            send_in_s=(start_at - self._counts.now).total_seconds(),
            closes_at=closes_at,
            payload=lead.payload,
            attempt_no=lead.attempt_count + 1,
            slot=agent if isinstance(agent, Slot) else None,
            ring_min_s=case.policy.ring_min_s(lead.phone) if case.policy.packs else 0,
            ready_at=ready_at,
            number_id=number.id,
            is_probe=bool(probes),
        )
        return NewAttempt(
            grant,
            lead,
            intent,
            intent_at=self._counts.now,
            reserved_micros=case.policy.reserved_micros,
            day=case.day,
            overdial=agent if isinstance(agent, Overdial) else None,
            next_starts=advance(paces, grant.attempt_id, start_at),
            probes=probes,
        )


def _over_limit(case: Case, subject: str, free_at: datetime, finish: Finish | None) -> Refusal:
    """Ends the lead, or moves it to the first open moment after the limit."""
    if finish is not None:
        return Refusal(RefusalReason.LIMIT, subject=subject, until=free_at, finish=finish)
    opening = case.policy.opening(case.lead.phone, case.lead.timezone, free_at)
    if opening is None:
        return NEVER_OPENS
    opens_at, closes_at = opening.opens_at, opening.closes_at
    return Refusal(RefusalReason.LIMIT, until=opens_at, subject=subject, due_at=opens_at, closes_at=closes_at)
