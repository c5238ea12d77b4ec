"""What follows from all that is known of a call: the carrier's facts, the agent's traces, its report if there is one.
Pure.

An agent often reports after the carrier: it writes its summary when the person has hung up. And what we did with a call
while an engine was away is written down later than its end. The lead has ended by then, as it was known, or waits
because the call seemed to have no agent. The same rules are asked again, and what they say now is what holds.
"""

from datetime import timedelta

from trunkline.leads import settle_decision
from trunkline.leads.outcomes import (
    AgentFacts,
    CallVerdict,
    CarrierFacts,
    Facts,
    SessionFacts,
    Witnesses,
    agent_of,
    verdict,
)
from trunkline.leads.retries import Retries
from trunkline.model import Agent, CallFacts, Finish, LeadDecision
from trunkline.states import AttemptState, LeadStatus
from trunkline.store.attempts import Attempt, CallAllocation
from trunkline.telephony.carrier_registry import STREAMLESS
from trunkline.value import replace

# From the moment at which a call was given to a pod: its stream has to be opened, and a heartbeat that was sent before
# that is on its way for a while.
NAMED_WITHIN = timedelta(seconds=10)
# An agent that was there stays known: allocations and heartbeats are forgotten.
_CERTAIN = frozenset({Agent.JOINED, Agent.EXTERNAL})


def decide(attempt: Attempt, facts: CallFacts, retries: Retries) -> LeadDecision:
    """A call has ended: what becomes of its lead. The facts say who took it, see `with_agent`."""
    return settle_decision.after_facts(_facts(attempt, facts), attempt.budget, retries, now=attempt.read_at)


def verdict_of(attempt: Attempt, facts: CallFacts) -> CallVerdict:
    return verdict(_facts(attempt, facts))


def told_by_carrier(attempt: Attempt) -> CallVerdict:
    """What was made of the call before its agent spoke."""
    return verdict_of(replace(attempt, report=None), attempt.facts)


def with_agent(attempt: Attempt, facts: CallFacts) -> CallFacts:
    """The facts of a call that we placed, with who took it, once it has ended. What is said later may still show an
    agent, or that there was none where nobody could say; it takes nothing back."""
    is_over = facts.state is AttemptState.ENDED and _facts(attempt, facts).was_answered
    if attempt.lead_id is None or not is_over or facts.agent in _CERTAIN:
        return facts
    found = _agent(attempt, facts)
    return (
        replace(facts, agent=facts.agent or found) if found is Agent.UNKNOWN else replace(facts, agent=found)
    )


def is_news(attempt: Attempt, facts: CallFacts) -> bool:
    """Its call was over, and then its agent reported, or it became known who took it. The lead had ended, perhaps as it
    was known, or waits for want of an agent."""
    is_late = attempt.facts.state is AttemptState.ENDED and attempt.is_newest and not attempt.is_cancelled
    is_settled = attempt.lead_status is LeadStatus.FINISHED or waits_for_an_agent(attempt)
    return is_late and is_settled and (attempt.report is not None or facts.agent is not attempt.facts.agent)


def waits_for_an_agent(attempt: Attempt) -> bool:
    """Its lead is to be called again, because this call seemed to have no agent."""
    is_waiting = attempt.lead_status is LeadStatus.BACKLOG and attempt.budget.no_agent_count > 0
    return is_waiting and attempt.facts.agent is Agent.NONE and not attempt.facts.is_machine


def revision(attempt: Attempt, facts: CallFacts, retries: Retries) -> LeadDecision | None:
    """What becomes of such a lead now. None if nothing differs, or if it did not end by what was known then: by
    somebody's wish, a list or a limit, or as the report says already."""
    if waits_for_an_agent(attempt):
        return decide(_counted_again(attempt), facts, retries) if facts.agent is not Agent.NONE else None
    told = decide(replace(attempt, report=None), attempt.facts, retries)
    if not isinstance(told, Finish) or attempt.lead_outcome != told.outcome.value:
        return None
    decision = decide(attempt, facts, retries)
    return decision if decision != told else None


def _counted_again(attempt: Attempt) -> Attempt:
    budget = attempt.budget
    return replace(
        attempt,
        budget=replace(
            budget, attempt_count=budget.attempt_count + 1, no_agent_count=budget.no_agent_count - 1
        ),
    )


def _facts(attempt: Attempt, facts: CallFacts) -> Facts:
    carrier = CarrierFacts(facts.answered_at, facts.end_reason, facts.duration_s)
    told = attempt.report
    if told is None:
        return Facts(carrier, SessionFacts(facts.agent, is_machine=facts.is_machine))
    said = AgentFacts(told.disposition, told.opt_out, told.callback_at)
    return Facts(carrier, SessionFacts(facts.agent, has_reported=True, is_machine=facts.is_machine), said)


def _agent(attempt: Attempt, facts: CallFacts) -> Agent:
    given = attempt.allocation
    return agent_of(
        Witnesses(
            is_external=attempt.carrier in STREAMLESS or facts.agent_joined is True,
            has_joined=attempt.report is not None or (given is not None and given.has_joined),
            given=facts.agent_joined,
            stream_began=_stream_began(given, facts),
            is_unnamed=_is_unnamed(attempt, facts),
        )
    )


def _stream_began(given: CallAllocation | None, facts: CallFacts) -> bool | None:
    """What the carrier says of the stream; that it asked what follows one which no agent had taken says it too."""
    if facts.stream_began is None and given is not None and given.was_refused:
        return False
    return facts.stream_began


def _is_unnamed(attempt: Attempt, facts: CallFacts) -> bool:
    """Its pod sent a heartbeat while the call lived, and did not name it. Of one that sent its last after the end it is
    not known what it said before."""
    given = attempt.allocation
    if given is None or given.begun_at is None or given.unnamed_at is None or facts.ended_at is None:
        return False
    answered_at = facts.answered_at or given.begun_at
    return max(given.begun_at, answered_at) + NAMED_WITHIN <= given.unnamed_at < facts.ended_at
