"""Gates that count: persons, merchants' days and money, concurrent calls, numbers, agents, and at last the pace.

A `CountedLimits` starts from the counts that were taken under the locks and adds what this batch admits, so that the
calls of one batch cannot exceed a limit together.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from trunkline.dispatch.agents import AgentRule
from trunkline.dispatch.cooldowns import Cooling
from trunkline.dispatch.gates import RETRY_AFTER, Case, never_opens
from trunkline.dispatch.overdialling import Overdialled
from trunkline.dispatch.refusals import Blocks, GateRefusal, RefusalReason
from trunkline.leads.limits import Day, Pace, advance, day_of, person_free_at, start_together
from trunkline.leads.windows import Opening
from trunkline.model import Finish, Outcome, PersonCalls, PersonQuestion, Slot
from trunkline.store.cooldowns import NewProbe
from trunkline.store.dispatch import LockedNumber, NewAttempt, NextStart, Overdial
from trunkline.store.limits import DayQuestion, Doubts, LimitCounts, Questions, TalkQuestion, Used
from trunkline.value import Value

# A call that cannot start within this is given back: a channel is not held for waiting.
START_WITHIN_S = 1.0
# An account with too many calls in doubt starts one call per this interval until they are resolved.
PROBE_EVERY_S = 5.0
DOUBTS_MIN = 3
DOUBTS_SHARE = 0.05
NO_SLOTS: Mapping[UUID, Slot] = {}
_NEVER = 2**62
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T", bound=Hashable)
# carrier, account: how many calls per second it may start; None means no limit.
AccountPace = Callable[[str, str], float | None]


def no_account_pace(carrier: str, account: str) -> float | None:
    return None


class Admitted(Value, frozen=True):
    attempt: NewAttempt
    next_starts: tuple[NextStart, ...]
    # The cooldowns that this call probes.
    probes: tuple[NewProbe, ...] = ()


def questions(cases: Iterable[Case]) -> Questions:
    """The counts that every case needs, each question once. They are taken before the gates judge, and for the account
    whose lock is held: a number that has moved to another account is refused."""
    cases = list(cases)
    accounts = [(case.lead.carrier, case.lead.account) for case in cases]
    return Questions(
        persons=_unique(q for case in cases if case.policy for q, _ in _person_questions(case)),
        paces=_unique(name for case in cases for name in _pace_names(case)),
        accounts=_unique((carrier, account) for carrier, account in accounts if carrier and account),
        numbers=_unique(case.grant.number_id for case in cases),
    )


def conditional_questions(cases: Iterable[Case]) -> Questions:
    """The counts that only some cases need, and only if no gate has refused them."""
    cases = list(cases)
    conditional = Questions()
    conditional.talks = _unique(talk for case in cases if (talk := _talk_question(case)))
    conditional.merchants = _unique(
        case.lead.merchant_id for case in cases if case.lead.merchant_max_concurrent is not None
    )
    conditional.campaigns = _unique(
        (case.lead.merchant_id, case.lead.campaign_id)
        for case in cases
        if case.lead.campaign_id and case.policy and case.policy.campaign_max_concurrent is not None
    )
    conditional.days = _unique(day for case in cases if (day := _day_question(case, len(cases))))
    return conditional


class CountedLimits:
    """`slots`: the agents that were proposed for the calls of this batch, by attempt. `overdialled`: which of the calls
    need no reserved agent, and how many agents the others have to leave free for them."""

    def __init__(
        self,
        counts: LimitCounts,
        account_pace: AccountPace,
        agents: AgentRule = AgentRule(),  # noqa: B008  frozen
        slots: Mapping[UUID, Slot] = NO_SLOTS,
        overdialled: Overdialled | None = None,
        process: str = "",
    ):
        self._counts = counts
        self.cooling = Cooling(counts, process)
        self._agents = agents
        self._slots = slots
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

    @property
    def now(self) -> datetime:
        return self._counts.now

    def earliest_at(self, case: Case) -> datetime:
        """The earliest start as far as the lead is concerned. Calls are admitted in this order: a pace continues from
        the last start, so a call that is due earlier would have to start after it."""
        return max(self.now, case.lead.due_at)

    def admit(self, case: Case) -> Admitted | GateRefusal:
        """Admit a call and count it, or return the refusal."""
        refused = next(self._limits(case), None)
        if refused:
            return refused
        paces = [self._pace(case, kind, subject) for kind, subject in _pace_names(case)]
        start_at = start_together(paces, self.earliest_at(case), START_WITHIN_S)
        if isinstance(start_at, Pace):
            return _too_fast(start_at)
        opening = _open_at(case, start_at)
        if isinstance(opening, GateRefusal):
            return opening
        advance(paces, start_at)
        agent = self._agent(case)
        assert not isinstance(agent, GateRefusal), "it was asked before"
        self._count(case)
        self._overdialled.count(agent)
        return self._admitted(case, start_at, opening.closes_at, paces, agent)

    def refusals(self, case: Case) -> list[GateRefusal]:
        """All refusals of a case, for the route that explains why a lead waits."""
        refusals = list(self._limits(case))
        if not refusals and isinstance(answer := self.admit(case), GateRefusal):
            refusals.append(answer)
        return refusals

    def _limits(self, case: Case) -> Iterator[GateRefusal]:
        for limit in (
            self._same_person,
            self._person_limits,
            self._recent_contact,
            self._day,
            self._concurrency,
            self._number_full,
            self._agent_missing,
            self.cooling.refusal,
        ):
            if answer := limit(case):
                yield answer

    def _same_person(self, case: Case) -> GateRefusal | None:
        owner = self._dialled.get((case.lead.phone, _number(case).e164))
        return GateRefusal(RefusalReason.PERSON, Blocks.PERSON, owner=owner) if owner is not None else None

    def _person_limits(self, case: Case) -> GateRefusal | None:
        for question, then in _person_questions(case):
            counted = self._counts.persons[question]
            in_batch = self._persons[question.phone, question.merchant_id]
            all_own = counted.all_own and in_batch == self._persons[question.phone, question.asked_by]
            total = PersonCalls(counted.calls + in_batch, counted.oldest_at or self.now, all_own)
            if free_at := person_free_at(question, total, self.earliest_at(case)):
                subject = "calls_per_person" if question.merchant_id is None else "person_limits"
                return self._defer(case, RefusalReason.LIMIT, subject, free_at, ends=then == "finish")
        return None

    def _recent_contact(self, case: Case) -> GateRefusal | None:
        question = _talk_question(case)
        talked_at = self._counts.talks.get(question) if question else None
        if question is None or talked_at is None or not case.policy or not case.policy.recent_contact:
            return None
        free_at = talked_at + timedelta(seconds=question.cooldown_s)
        if free_at <= self.earliest_at(case):
            return None
        if case.policy.recent_contact.then == "abort":
            finish = Finish(Outcome.PRECHECK_FAILED, "RECENT_CONTACT")
            return GateRefusal(RefusalReason.LIMIT, subject="recent_contact", until=free_at, finish=finish)
        return self._defer(case, RefusalReason.LIMIT, "recent_contact", free_at)

    def _day(self, case: Case) -> GateRefusal | None:
        assert case.policy is not None
        day = _day_of(case)
        used = self._days.get((case.lead.merchant_id, day.name), Used())
        attempts_max, micros_max = case.policy.attempts_per_day, case.policy.spend_per_day_micros
        if attempts_max is not None and used.attempts >= attempts_max:
            return GateRefusal(RefusalReason.LIMIT, Blocks.FLOW, day.after_at, "attempts_per_day")
        if micros_max is not None and used.micros + case.policy.price.reserved_micros > micros_max:
            return GateRefusal(RefusalReason.SPEND, Blocks.FLOW, day.after_at, "spend_per_day")
        return None

    def _concurrency(self, case: Case) -> GateRefusal | None:
        lead, policy = case.lead, case.policy
        if lead.merchant_max_concurrent is not None:
            live = self._counts.merchants[lead.merchant_id] + self._merchants[lead.merchant_id]
            if live >= lead.merchant_max_concurrent:
                return self._full("merchant_concurrency")
        if lead.campaign_id and policy and policy.campaign_max_concurrent is not None:
            key = (lead.merchant_id, lead.campaign_id)
            if self._counts.campaigns[key] + self._campaigns[key] >= policy.campaign_max_concurrent:
                return self._full("campaign_concurrency")
        return None

    def _full(self, subject: str) -> GateRefusal:
        return GateRefusal(RefusalReason.LIMIT, Blocks.FLOW, self.now + RETRY_AFTER, subject)

    def _number_full(self, case: Case) -> GateRefusal | None:
        """A number with a call above its maximum: its calls are counted, if the lock allows it."""
        number = _number(case)
        live = self._counts.overfull.get(number.id)
        if live is None or (number.may_count and live + self._numbers[number.id] < number.max_channels):
            return None
        return GateRefusal(RefusalReason.CHANNEL, Blocks.NUMBER, self.now + RETRY_AFTER, "number_full")

    def _agent_missing(self, case: Case) -> GateRefusal | None:
        agent = self._agent(case)
        return agent if isinstance(agent, GateRefusal) else None

    def _agent(self, case: Case) -> Slot | Overdial | GateRefusal | None:
        """The agent that is reserved for the call, or the terms on which it goes without. None: it needs none of
        ours."""
        if not self._needs_agent(case):
            return None
        attempt_id, overdialled = case.grant.attempt_id, self._overdialled
        if not overdialled.is_reserved(attempt_id):
            return overdialled.dial(attempt_id) or self._without_agent("abandon_max")
        slot = self._slots.get(attempt_id)
        if slot is None:
            return self._without_agent("no_agent_free")
        return slot if overdialled.may_reserve(slot) else self._without_agent("agents_for_ringing_calls")

    def _without_agent(self, subject: str) -> GateRefusal:
        return GateRefusal(RefusalReason.AGENTS, Blocks.FLOW, self.now + RETRY_AFTER, subject)

    def _needs_agent(self, case: Case) -> bool:
        return self._agents.needs_agent(_number(case).carrier, are_elsewhere=case.lead.are_agents_elsewhere)

    def _pace(self, case: Case, kind: str, subject: str) -> Pace:
        if (kind, subject) not in self._paces:
            next_start_at = self._counts.paces.get((kind, subject), _LONG_AGO)
            self._paces[kind, subject] = Pace(kind, subject, self._interval_s(case, kind), next_start_at)
        return self._paces[kind, subject]

    def _interval_s(self, case: Case, kind: str) -> float | None:
        number = _number(case)
        if kind == "account":
            if _in_doubt(self._counts.doubts.get((number.carrier, number.account), Doubts())):
                return PROBE_EVERY_S
            rate = self._account_pace(number.carrier, number.account)
        elif kind == "number":
            rate = number.starts_per_s
        else:
            rate = case.policy.campaign_starts_per_s if case.policy else None
        return 1 / rate if rate else None

    def _count(self, case: Case) -> None:
        assert case.policy is not None
        lead, number = case.lead, _number(case)
        self._persons.update([(lead.phone, None), (lead.phone, lead.merchant_id)])
        self._dialled[lead.phone, number.e164] = case.grant.attempt_id
        self._merchants[lead.merchant_id] += 1
        if lead.campaign_id:
            self._campaigns[lead.merchant_id, lead.campaign_id] += 1
        self._numbers[number.id] += 1
        key = (lead.merchant_id, _day_of(case).name)
        used = self._days.get(key, Used())
        self._days[key] = Used(used.attempts + 1, used.micros + case.policy.price.reserved_micros)

    def _admitted(
        self,
        case: Case,
        start_at: datetime,
        closes_at: datetime | None,
        paces: list[Pace],
        agent: Slot | Overdial | None,
    ) -> Admitted:
        assert case.policy is not None
        attempt = NewAttempt(
            case.grant,
            case.lead,
            _number(case),
            intent_at=self.now,
            send_at=start_at,
            closes_at=closes_at,
            reserved_micros=case.policy.price.reserved_micros,
            day=_day_of(case).name,
            slot=agent if isinstance(agent, Slot) else None,
            overdial=agent if isinstance(agent, Overdial) else None,
            ring_min_s=case.policy.ring_min_s(case.lead.phone),
            ready_at=self._ready_at(case, start_at),
        )
        return Admitted(
            attempt,
            tuple(
                NextStart(case.grant.attempt_id, pace.kind, pace.subject, pace.next_start_at)
                for pace in paces
                if pace.interval_s is not None
            ),
            self.cooling.admit(case, start_at),
        )

    def _ready_at(self, case: Case, start_at: datetime) -> datetime:
        """When all that the call needs was available: its lateness counts from then. A pace that delays the start is
        the last of these."""
        if start_at > self.earliest_at(case):
            return start_at
        ready_ms = case.grant.ready_ms
        ready_at = datetime.fromtimestamp(ready_ms / 1000, UTC) if ready_ms is not None else case.lead.due_at
        return min(max(ready_at, case.lead.due_at), start_at)

    def _defer(
        self,
        case: Case,
        reason: RefusalReason,
        subject: str,
        free_at: datetime,
        *,
        ends: bool = False,
    ) -> GateRefusal:
        """Over a limit: the lead moves to the first open moment after it, or ends."""
        assert case.policy is not None
        if ends:
            finish = Finish(Outcome.CALL_LIMIT_REACHED, subject.upper())
            return GateRefusal(reason, subject=subject, until=free_at, finish=finish)
        opening = case.policy.opening(case.lead.phone, case.lead.timezone, free_at)
        if opening is None:
            return never_opens()
        opens_at = opening.opens_at
        return GateRefusal(
            reason, Blocks.LEAD, opens_at, subject, due_at=opens_at, closes_at=opening.closes_at
        )


def _open_at(case: Case, start_at: datetime) -> Opening | GateRefusal:
    """The calling window at the time at which the paces let the call leave, or a refusal if that is too late: the gates
    judged the lead's earliest time. Of the two ends, the lead's and the policy's, the sooner counts."""
    assert case.policy is not None
    lead = case.lead
    opening = case.policy.opening(lead.phone, lead.timezone, start_at)
    if opening is None:
        return never_opens()
    is_past = lead.closes_at is not None and lead.earliest_at < start_at >= lead.closes_at
    if opening.opens_at > start_at or is_past:
        opens_at = opening.opens_at
        return GateRefusal(RefusalReason.WINDOW, until=opens_at, due_at=opens_at, closes_at=opening.closes_at)
    return Opening(start_at, min(filter(None, (lead.closes_at, opening.closes_at)), default=None))


def _too_fast(pace: Pace) -> GateRefusal:
    blocks = {"account": Blocks.ACCOUNT, "number": Blocks.NUMBER}.get(pace.kind, Blocks.FLOW)
    # Does not name the account: it may be the platform's, and the lead's tenant reads this.
    return GateRefusal(RefusalReason.PACE, blocks, pace.next_start_at, pace.kind)


def _in_doubt(doubts: Doubts) -> bool:
    return doubts.attempts > max(DOUBTS_MIN, DOUBTS_SHARE * doubts.channels)


def _number(case: Case) -> LockedNumber:
    assert case.number is not None, "judged before anything is counted"
    return case.number


def _day_of(case: Case) -> Day:
    return day_of(case.lead.earliest_at, case.policy.timezone if case.policy else None)


def _person_questions(case: Case) -> list[tuple[PersonQuestion, str]]:
    """Each with what happens to a lead over the limit: all tenants together first, then the merchant's own limits."""
    assert case.policy is not None
    phone, merchant_id = case.lead.phone, case.lead.merchant_id
    overall = case.policy.calls_per_person
    return [
        (PersonQuestion(phone, None, overall.max_calls, overall.window_s, merchant_id), "defer"),
        *(
            (
                PersonQuestion(phone, merchant_id, limit.max_calls, limit.window_h * 3600, merchant_id),
                limit.then,
            )
            for limit in case.policy.limits_of(phone)
        ),
    ]


def _talk_question(case: Case) -> TalkQuestion | None:
    assert case.policy is not None
    rule = case.policy.recent_contact
    if rule is None:
        return None
    return TalkQuestion(case.lead.phone, case.lead.merchant_id, rule.cooldown_h * 3600)


def _day_question(case: Case, batch: int) -> DayQuestion | None:
    """From one batch below the limit on, attempts that were not placed are looked up too."""
    assert case.policy is not None
    attempts_max, micros_max = case.policy.attempts_per_day, case.policy.spend_per_day_micros
    if attempts_max is None and micros_max is None:
        return None
    day = _day_of(case)
    return DayQuestion(
        case.lead.merchant_id,
        day.name,
        day.first_at,
        attempts_from=_NEVER if attempts_max is None else attempts_max - batch,
        micros_from=_NEVER if micros_max is None else micros_max - batch * case.policy.price.reserved_micros,
    )


def _pace_names(case: Case) -> list[tuple[str, str]]:
    """The paces that a start counts for. An account may have been slowed by a 429 even if it has no pace. Whether a
    number has a pace is read with its lock."""
    number, lead = case.number, case.lead
    names = [("account", f"{lead.carrier}/{lead.account}")]
    if number is None or number.starts_per_s:
        names.append(("number", str(case.grant.number_id)))
    if lead.campaign_id and case.policy and case.policy.campaign_starts_per_s:
        names.append(("campaign", f"{lead.merchant_id}/{lead.campaign_id}"))
    return names


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
