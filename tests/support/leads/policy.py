"""The policy, asked with what the carrier alone tells, or with an agent's report."""

from datetime import datetime
from typing import Any
from uuid import uuid4

from trunkline.leads import outcomes
from trunkline.leads.retries import DEFAULT, Retries
from trunkline.model import Budget, CallFacts, LeadDecision
from trunkline.states import AttemptState, LeadStatus
from trunkline.store.attempts import Attempt, ReportedOutcome


def after_call(
    answered_at: datetime | None, end_reason: str | None, budget: Budget, retries: Retries = DEFAULT
) -> LeadDecision:
    facts = CallFacts(AttemptState.ENDED, answered_at=answered_at, end_reason=end_reason)
    return after_facts(facts, None, budget, retries)


def after_facts(
    facts: CallFacts,
    report: ReportedOutcome | None,
    budget: Budget,
    retries: Retries = DEFAULT,
    now: datetime | None = None,
) -> LeadDecision:
    return outcomes.after_facts(facts, attempt_of(budget, report=report, read_at=now), retries)


def attempt_of(budget: Budget, carrier: str = "twilio", **known: Any) -> Attempt:
    return Attempt(
        id=uuid4(),
        lead_id=uuid4(),
        attempt_no=1,
        carrier=carrier,
        account="a",
        holds_channel=True,
        facts=CallFacts(AttemptState.ANSWERED),
        lead_status=LeadStatus.PROCESSING,
        budget=budget,
        is_newest=True,
        **known,
    )
