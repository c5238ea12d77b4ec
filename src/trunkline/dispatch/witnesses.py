"""What follows from all that is known of a call: the carrier's facts, and the agent's report if there is one. Pure.

An agent often reports after the carrier: it writes its summary when the person has hung up. The lead has ended by then,
as the carrier told it. The same rules are asked again with the report, and what they say now is what holds.
"""

from trunkline.leads import policy
from trunkline.leads.outcomes import AgentFacts, CarrierFacts, Facts, SessionFacts, Verdict, verdict
from trunkline.leads.retries import Retries
from trunkline.model import CallFacts, Decision, Finish
from trunkline.states import AttemptState, LeadStatus
from trunkline.store.attempts import Attempt
from trunkline.value import replace


def decide(attempt: Attempt, facts: CallFacts, retries: Retries) -> Decision:
    """A call has ended: what becomes of its lead."""
    return policy.after_facts(_facts(attempt, facts), attempt.budget, retries, now=attempt.read_at)


def verdict_of(attempt: Attempt, facts: CallFacts) -> Verdict:
    return verdict(_facts(attempt, facts))


def told_by_carrier(attempt: Attempt) -> Verdict:
    """What was made of the call before its agent spoke."""
    return verdict_of(replace(attempt, report=None), attempt.facts)


def spoke_late(attempt: Attempt) -> bool:
    """Its agent has reported, and its lead had ended: perhaps as the carrier told it."""
    is_over = attempt.facts.state is AttemptState.ENDED and attempt.lead_status is LeadStatus.FINISHED
    return is_over and attempt.report is not None and attempt.is_newest and not attempt.is_cancelled


def revision(attempt: Attempt, retries: Retries) -> Decision | None:
    """What becomes of such a lead now. None if nothing differs, or if it did not end by what the carrier told: by
    somebody's wish, a list or a limit, or as the report says already."""
    told = decide(replace(attempt, report=None), attempt.facts, retries)
    if not isinstance(told, Finish) or attempt.lead_outcome != told.outcome.value:
        return None
    decision = decide(attempt, attempt.facts, retries)
    return decision if decision != told else None


def _facts(attempt: Attempt, facts: CallFacts) -> Facts:
    carrier = CarrierFacts(facts.answered_at, facts.end_reason, facts.duration_s)
    told = attempt.report
    if told is None:
        return Facts(carrier, SessionFacts(facts.agent_joined, facts.is_machine))
    agent = AgentFacts(told.disposition, told.opt_out, told.callback_at)
    return Facts(carrier, SessionFacts(True, facts.is_machine), agent)
