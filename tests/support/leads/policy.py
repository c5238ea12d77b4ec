"""The policy, asked with what the carrier alone tells."""

from datetime import datetime

from trunkline.leads.retries import DEFAULT, Retries
from trunkline.leads.settle_decision import after_facts
from trunkline.model import Budget, CallFacts, LeadDecision
from trunkline.states import AttemptState


def after_call(
    answered_at: datetime | None, end_reason: str | None, budget: Budget, retries: Retries = DEFAULT
) -> LeadDecision:
    facts = CallFacts(AttemptState.ENDED, answered_at=answered_at, end_reason=end_reason)
    return after_facts(facts, None, budget, retries)
