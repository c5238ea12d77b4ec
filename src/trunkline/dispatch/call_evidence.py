"""Concludes from all evidence of a call: the carrier's facts, the agent's traces, its report if there is one. Pure.

An agent often reports after the carrier: it writes its summary when the person has hung up. And allocations that were
made while an engine was down are written after the call's end. By then the lead has ended on the earlier evidence, or
waits because the call seemed to have no agent. The same rules are applied again, and the new result counts.
"""

from datetime import timedelta

from trunkline.leads import settle_decision
from trunkline.leads.outcomes import AgentEvidence, agent_of, was_answered
from trunkline.leads.retries import Retries
from trunkline.model import Agent, CallFacts, Finish, LeadDecision
from trunkline.states import AttemptState, LeadStatus
from trunkline.store.attempts import Attempt, CallAllocation
from trunkline.telephony.carrier_registry import STREAMLESS
from trunkline.value import replace

# Counted from the call's assignment to a pod: its stream has to be opened, and a heartbeat that was sent before that
# may still arrive.
HEARTBEAT_GRACE = timedelta(seconds=10)
# Once an agent is proven it stays so: allocations and heartbeats are deleted later.
_CERTAIN = frozenset({Agent.JOINED, Agent.EXTERNAL})


def decide(attempt: Attempt, facts: CallFacts, retries: Retries) -> LeadDecision:
    """The decision about the lead of an ended call. The facts name who took the call, see `with_agent`."""
    return settle_decision.after_facts(facts, attempt.report, attempt.budget, retries, attempt.read_at)


def with_agent(attempt: Attempt, facts: CallFacts) -> CallFacts:
    """The facts of an ended call that we placed, with who took it. Later evidence may still prove an agent, or prove
    that there was none where it was unknown; it revokes nothing."""
    is_over = facts.state is AttemptState.ENDED and was_answered(facts)
    if attempt.lead_id is None or not is_over or facts.agent in _CERTAIN:
        return facts
    agent = _agent(attempt, facts)
    return (
        replace(facts, agent=facts.agent or agent) if agent is Agent.UNKNOWN else replace(facts, agent=agent)
    )


def needs_revision(attempt: Attempt, facts: CallFacts) -> bool:
    """The call had ended, and then its agent reported, or who took it became clear. Its lead had ended on the earlier
    evidence, or waits for want of an agent."""
    is_late = attempt.facts.state is AttemptState.ENDED and attempt.is_newest and not attempt.is_cancelled
    is_settled = attempt.lead_status is LeadStatus.FINISHED or waits_for_an_agent(attempt)
    return is_late and is_settled and (attempt.report is not None or facts.agent is not attempt.facts.agent)


def waits_for_an_agent(attempt: Attempt) -> bool:
    """Its lead is to be called again, because this call seemed to have no agent."""
    is_waiting = attempt.lead_status is LeadStatus.BACKLOG and attempt.budget.no_agent_count > 0
    return is_waiting and attempt.facts.agent is Agent.NONE and not attempt.facts.is_machine


def revision(attempt: Attempt, facts: CallFacts, retries: Retries) -> LeadDecision | None:
    """The new decision about such a lead. None if nothing differs, or if the lead did not end by the earlier evidence:
    a cancellation, a list or a limit ended it, or the report says the same."""
    if waits_for_an_agent(attempt):
        return decide(_counted_again(attempt), facts, retries) if facts.agent is not Agent.NONE else None
    earlier = decide(replace(attempt, report=None), attempt.facts, retries)
    if not isinstance(earlier, Finish) or attempt.lead_outcome != earlier.outcome.value:
        return None
    decision = decide(attempt, facts, retries)
    return decision if decision != earlier else None


def _counted_again(attempt: Attempt) -> Attempt:
    budget = attempt.budget
    return replace(
        attempt,
        budget=replace(
            budget, attempt_count=budget.attempt_count + 1, no_agent_count=budget.no_agent_count - 1
        ),
    )


def _agent(attempt: Attempt, facts: CallFacts) -> Agent:
    allocation, stream_began = attempt.allocation, facts.stream_began
    if stream_began is None and allocation is not None and allocation.was_refused:
        stream_began = False  # the carrier requested the document again, after a refused stream
    return agent_of(
        AgentEvidence(
            is_external=attempt.carrier in STREAMLESS or facts.agent_joined is True,
            has_joined=attempt.report is not None or (allocation is not None and allocation.has_joined),
            given=facts.agent_joined,
            stream_began=stream_began,
            is_unnamed=allocation is not None and _is_unnamed(allocation, facts),
        )
    )


def _is_unnamed(allocation: CallAllocation, facts: CallFacts) -> bool:
    """The pod sent a heartbeat during the call that did not name it. If its last heartbeat came after the end, the
    earlier ones are not known."""
    if allocation.begun_at is None or allocation.unnamed_at is None or facts.ended_at is None:
        return False
    answered_at = facts.answered_at or allocation.begun_at
    return max(allocation.begun_at, answered_at) + HEARTBEAT_GRACE <= allocation.unnamed_at < facts.ended_at
