"""What the end of a call means: who took it, its outcome, and what follows for its lead. Pure.

The carrier's facts show whether the call was answered, the evidence whether an agent took part, the report the result.
The source nearest to the conversation counts first. A call without a report has the outcome of its facts.

`max_attempts` counts all attempts of a lead but those that failed because of us, so no rule can stack on another.
Requests that the carrier refused because of the person count separately: a lead that no carrier accepts ends too. So do
calls that were answered while no agent was there: such a lead retries twice, without using an attempt, and then ends.
Failures of the account, our number or our network cost no lead anything. A lead that was cancelled while it was being
called is not called again, whatever the retry rules say.

An agent often reports after the carrier: it writes its summary when the person has hung up. And allocations that were
made while an engine was down are written after the call's end. By then the lead has ended on the earlier evidence, or
waits because the call seemed to have no agent. The same rules are applied again, and the new result counts.
"""

import re
from datetime import timedelta

from trunkline.leads.retries import DEFAULT, Retries
from trunkline.model import STREAMLESS, Agent, Budget, CallFacts, Finish, LeadDecision, Outcome, Retry
from trunkline.states import AttemptState, LeadStatus
from trunkline.store.attempts import Attempt, ReportedOutcome
from trunkline.value import replace

# Counted from the call's assignment to a pod: its stream has to be opened, and a heartbeat that was sent before that
# may still arrive.
HEARTBEAT_GRACE = timedelta(seconds=10)
# Once an agent is proven it stays so: allocations and heartbeats are deleted later.
_CERTAIN = frozenset({Agent.JOINED, Agent.EXTERNAL})
# Shorter than this, with an agent that reported no result, there was no conversation.
EARLY_HANGUP_S = 5
DISPOSITION_MAX = 60

_REASONS = {"no_answer": "NO_ANSWER", "failed": "FAILED", "canceled": "CANCELED", "timeout": "TIMEOUT"}
# Dispositions of an agent that have the same meaning as ours.
_SHARED_DISPOSITIONS = {
    outcome.value: outcome for outcome in (Outcome.BUSY, Outcome.VOICEMAIL, Outcome.TRANSFERRED)
}
# A disposition that no agent can report of its own call.
_CONTRADICTION = Outcome.NO_AGENT.value
# A callback that a person asked for is within a year: an agent's model that gets the year wrong does not count.
CALLBACK_MAX = timedelta(days=366)
# The person was not reached, so another attempt is worthwhile unless a rule says otherwise.
_UNREACHED = frozenset({Outcome.NO_ANSWER, Outcome.BUSY, Outcome.VOICEMAIL})
# When a lead is called again whose call was answered without an agent: the first time, the second. Then it ends.
NO_AGENT_DELAYS_S = (300.0, 3600.0)
# A lead that is refused for no known reason on a quiet account: each delay twice as long, up to this.
UNEXPLAINED_DELAY_MAX_S = 3600.0
# Behind the leads that wait already: the account, number or process cools down meanwhile, and another may take the
# lead.
OUR_FAILING_DELAY_S = 2.0


def with_agent(attempt: Attempt, facts: CallFacts) -> CallFacts:
    """The facts of an ended call that we placed, with who took it. Later evidence may still prove an agent, or prove
    that there was none where it was unknown; it revokes nothing."""
    is_over = facts.state is AttemptState.ENDED and was_answered(facts)
    if attempt.lead_id is None or not is_over or facts.agent in _CERTAIN:
        return facts
    agent = agent_of(attempt, facts)
    return replace(facts, agent=(facts.agent or agent) if agent is Agent.UNKNOWN else agent)


def agent_of(attempt: Attempt, facts: CallFacts) -> Agent:
    """Who took an answered call. Where agents are external, the document that we sent is the only evidence. For ours
    the agent's own trace counts most; then what we did with the call; then the carrier's report on the stream; at last
    a heartbeat that did not name it. Without evidence it stays unknown: in doubt the lead is not called again."""
    allocation = attempt.allocation
    if attempt.carrier in STREAMLESS or facts.agent_joined is True:
        return Agent.EXTERNAL
    if attempt.report is not None or (allocation is not None and allocation.has_joined):
        return Agent.JOINED
    if facts.agent_joined is False:
        return Agent.NONE
    if facts.stream_began is not None:
        return Agent.JOINED if facts.stream_began else Agent.NONE
    if allocation is None:
        return Agent.UNKNOWN
    if allocation.was_refused:
        return Agent.NONE  # the carrier requested the document again, after a refused stream
    if allocation.begun_at is None or allocation.unnamed_at is None or facts.ended_at is None:
        return Agent.UNKNOWN
    # Of the pod's heartbeats only the last is known: one after the end says nothing of those before.
    connected_at = max(allocation.begun_at, facts.answered_at or allocation.begun_at)
    is_unnamed = connected_at + HEARTBEAT_GRACE <= allocation.unnamed_at < facts.ended_at
    return Agent.NONE if is_unnamed else Agent.UNKNOWN


def was_answered(facts: CallFacts) -> bool:
    """A call that the carrier reports as completed was answered, even if that webhook was lost."""
    return facts.answered_at is not None or facts.end_reason == "completed"


def verdict(facts: CallFacts, report: ReportedOutcome | None = None) -> Finish:
    """The outcome of an ended call, as the lead has it if this was its last. `word` is the agent's own disposition."""
    if not was_answered(facts):
        if facts.end_reason == "busy":
            return Finish(Outcome.BUSY)
        return Finish(Outcome.NO_ANSWER, _REASONS.get(facts.end_reason or "", "FAILED"))
    if report is not None and report.disposition is not None:
        word = re.sub(r"[^A-Z0-9]+", "_", report.disposition.upper()).strip("_")[:DISPOSITION_MAX]
        if shared := _SHARED_DISPOSITIONS.get(word):
            return Finish(shared)
        if word == _CONTRADICTION:
            return Finish(Outcome.ANSWERED, word)
        return Finish(Outcome.ANSWERED, word=word or None)
    if facts.is_machine:
        return Finish(Outcome.VOICEMAIL)
    if facts.agent is Agent.NONE:
        return Finish(Outcome.NO_AGENT)
    if report is not None and facts.duration_s is not None and facts.duration_s < EARLY_HANGUP_S:
        return Finish(Outcome.EARLY_HANGUP)
    return Finish(Outcome.ANSWERED)


def after_facts(facts: CallFacts, attempt: Attempt, retries: Retries = DEFAULT) -> LeadDecision:
    """A call has ended, by all evidence; the facts name who took it, see `with_agent`. A person who opted out is not
    called again; one who asked for a callback is, as long as the budget lasts."""
    report, budget = attempt.report, attempt.budget
    finish = verdict(facts, report)
    if finish.outcome is Outcome.NO_AGENT:
        return _without_agent(finish, budget, retries)
    if (report and report.opt_out) or budget.attempt_count >= budget.max_attempts:
        return finish
    if report and report.callback_at and attempt.read_at:
        wait = report.callback_at - attempt.read_at
        if timedelta(0) < wait <= CALLBACK_MAX:
            return Retry(max(wait.total_seconds(), 1.0))
    rule = retries.rule(finish.word or finish.outcome.value, finish.reason)
    if not (finish.outcome in _UNREACHED if rule is None else rule.retry):
        return finish
    return Retry(retries.delay_s(budget.attempt_count, rule))


def _without_agent(finish: Finish, budget: Budget, retries: Retries) -> LeadDecision:
    """Our failure: it uses no attempt of the lead. A rule may end the lead at once, and one that names NO_AGENT itself
    may set other delays; none adds a third call."""
    rule = retries.rule(finish.outcome.value, finish.reason)
    if budget.no_agent_count >= len(NO_AGENT_DELAYS_S) or (rule is not None and not rule.retry):
        return finish
    own = retries.by_outcome.get(finish.outcome.value)
    delays_s = own.delays_s if own is not None and own.delays_s else NO_AGENT_DELAYS_S
    delay_s = delays_s[min(budget.no_agent_count, len(delays_s) - 1)]
    return Retry(delay_s, counted=False, no_agent=True)


def after_refusal(code: str, budget: Budget, retries: Retries = DEFAULT) -> LeadDecision:
    """The carrier refused the request, so no person was called: it costs carrier errors, not attempts."""
    errors = budget.carrier_error_count + 1
    if errors >= retries.carrier_errors_max:
        return Finish(Outcome.CARRIER_ERROR, code)
    return Retry(retries.delay_s(errors), carrier_error=True, counted=False)


def after_our_failing() -> LeadDecision:
    """The account, our number or the way to the carrier is at fault. The lead waits for its turn again."""
    return Retry(OUR_FAILING_DELAY_S, counted=False)


def after_unexplained(
    code: str, budget: Budget, retries: Retries = DEFAULT, *, others_were_accepted: bool, times: int = 1
) -> LeadDecision:
    """A call failed for the `times`-th time in a row, and it is unknown whether account or lead is the cause. While the
    carrier accepts others, it is the lead. Otherwise the failure costs nothing, and the backoff is ours: a policy whose
    delays do not grow would query the carrier every minute for ever."""
    if others_were_accepted:
        return after_refusal(code, budget, retries)
    backoff_s = min(DEFAULT.delay_s(times), UNEXPLAINED_DELAY_MAX_S)
    return Retry(max(retries.delay_s(1), backoff_s), counted=False)


def after_throttling(retry_after_s: float) -> LeadDecision:
    """The carrier is too busy: no fault of the lead, so it costs nothing."""
    return Retry(max(retry_after_s, 1.0), counted=False)


def after_cancellation(decision: LeadDecision, reason: str | None, *, hang_up: bool) -> LeadDecision:
    """The lead was cancelled while it was being called. Where the call was to be hung up, the lead is ABORTED, whatever
    was said until then; where it was only to be the last, a conversation keeps its outcome."""
    return Finish(Outcome.ABORTED, reason) if isinstance(decision, Retry) or hang_up else decision


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
        if facts.agent is Agent.NONE:
            return None
        # The attempt counts after all.
        tried, without_agent = attempt.budget.attempt_count + 1, attempt.budget.no_agent_count - 1
        budget = replace(attempt.budget, attempt_count=tried, no_agent_count=without_agent)
        return after_facts(facts, replace(attempt, budget=budget), retries)
    earlier = after_facts(attempt.facts, replace(attempt, report=None), retries)
    if not isinstance(earlier, Finish) or attempt.lead_outcome != earlier.outcome.value:
        return None
    decision = after_facts(facts, attempt, retries)
    return decision if decision != earlier else None
