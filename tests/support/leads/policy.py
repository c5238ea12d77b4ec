"""The policy, asked with what the carrier alone tells."""

from datetime import datetime

from trunkline.leads.outcomes import CarrierFacts, Facts
from trunkline.leads.retries import DEFAULT, Retries
from trunkline.leads.settle_decision import after_facts
from trunkline.model import Budget, LeadDecision


def after_call(
    answered_at: datetime | None, end_reason: str | None, budget: Budget, retries: Retries = DEFAULT
) -> LeadDecision:
    return after_facts(Facts(CarrierFacts(answered_at, end_reason)), budget, retries)
