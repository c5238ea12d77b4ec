"""What follows from all that is known of a call: the carrier's facts, and the agent's report if there is one. Pure.

An agent often reports after the carrier: it writes its summary when the person has hung up. The lead has ended by then,
as the carrier told it. The same rules are asked again with the report, and what they say now is what holds.
"""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from trunkline.leads import policy
from trunkline.leads.outcomes import AgentFacts, CarrierFacts, Facts
from trunkline.model import CallFacts, Decision, Finish
from trunkline.states import AttemptState, LeadStatus
from trunkline.store.attempts import Attempt


def decide(attempt: Attempt, facts: CallFacts) -> Decision:
    """A call has ended: what becomes of its lead."""
    return policy.after_facts(_facts(attempt, facts), attempt.budget, now=attempt.read_at)


def revisions(locked: Iterable[Attempt]) -> list[tuple[UUID, Decision]]:
    """Of calls that had ended before their agents spoke: what becomes of their leads now, where that differs."""
    revised = []
    for attempt in locked:
        if attempt.report is None or not _ended_by_this_call(attempt):
            continue
        decision = decide(attempt, attempt.facts)
        if decision != _without_report(attempt):
            revised.append((attempt.id, decision))
    return revised


def _ended_by_this_call(attempt: Attempt) -> bool:
    """Not by somebody's wish, a list or a limit, and not as the report says already."""
    if attempt.facts.state is not AttemptState.ENDED or attempt.lead_status is not LeadStatus.FINISHED:
        return False
    told = _without_report(attempt)
    is_told = isinstance(told, Finish) and attempt.lead_outcome == told.outcome.value
    return attempt.is_newest and not attempt.is_cancelled and is_told


def _without_report(attempt: Attempt) -> Decision:
    return decide(replace(attempt, report=None), attempt.facts)


def _facts(attempt: Attempt, facts: CallFacts) -> Facts:
    carrier = CarrierFacts(facts.answered_at, facts.end_reason, facts.duration_s)
    if attempt.report is None:
        return Facts(carrier)
    told = attempt.report
    return Facts(carrier, agent=AgentFacts(told.disposition, told.opt_out, told.callback_at))
