"""A case: one grant with what the intent reads for it, and the questions that have to be counted under the locks."""

from collections.abc import Sequence
from uuid import UUID

from trunkline.leads.calling_policy import Effective
from trunkline.leads.limits import Day, day_of
from trunkline.model import Grant, PersonQuestion
from trunkline.store.dispatch import LockedLead, LockedNumber
from trunkline.store.limits import DayQuestion, Questions, TalkQuestion
from trunkline.value import Value

# Until the number is locked, and for one that is gone.
NO_NUMBER = LockedNumber(UUID(int=0), "", "", "", 0, None, "gone", "", may_count=False)
_NEVER = 2**62


class Case(Value, frozen=True):
    grant: Grant
    lead: LockedLead
    policy: Effective
    # How often the person may be called, each limit with what happens to a lead over it.
    persons: tuple[tuple[PersonQuestion, str], ...]
    # The paces that a start counts for, by kind and subject. An account may have been slowed by a 429 even if it has no
    # pace; whether a number has one is read with its lock.
    paces: tuple[tuple[str, str], ...]
    # The merchant's day on which the call is counted.
    day: Day
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
    day = day_of(lead.earliest_at, policy.timezone)
    return Case(grant, lead, policy, tuple(persons), tuple(paces), day)


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


def conditional_questions(cases: Sequence[Case]) -> Questions:
    """The counts that only some cases need, and only if no gate has refused them."""
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
        if policy.attempts_per_day is not None or policy.spend_per_day_micros is not None:
            days[_day_question(case, len(cases))] = None
    return Questions(talks=list(talks), merchants=list(merchants), campaigns=list(campaigns), days=list(days))


def _day_question(case: Case, batch: int) -> DayQuestion:
    """From one batch below the limit on, attempts that were not placed are looked up too."""
    policy, day = case.policy, case.day
    attempts_max, micros_max = policy.attempts_per_day, policy.spend_per_day_micros
    return DayQuestion(
        case.lead.merchant_id,
        day.name,
        day.first_at,
        attempts_from=_NEVER if attempts_max is None else attempts_max - batch,
        micros_from=_NEVER if micros_max is None else micros_max - batch * policy.price.reserved_micros,
    )
