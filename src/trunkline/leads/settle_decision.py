"""Pure rules: the decision about a lead after an attempt.

`max_attempts` counts all attempts of a lead but those that failed because of us, so no rule can stack on another.
Requests that the carrier refused because of the person count separately: a lead that no carrier accepts ends too. So do
calls that were answered while no agent was there: such a lead retries twice, without using an attempt, and then ends.
Failures of the account, our number or our network cost no lead anything.

A lead that was cancelled while it was being called is not called again, whatever the retry rules say.
"""

from datetime import datetime, timedelta

from trunkline.leads.outcomes import CallVerdict, verdict
from trunkline.leads.retries import DEFAULT, Retries
from trunkline.model import Budget, CallFacts, Finish, LeadDecision, Outcome, Retry
from trunkline.store.attempts import ReportedOutcome

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


def after_facts(
    facts: CallFacts,
    report: ReportedOutcome | None,
    budget: Budget,
    retries: Retries = DEFAULT,
    now: datetime | None = None,
) -> LeadDecision:
    """A call has ended, by all evidence. A person who opted out is not called again; one who asked for a callback is,
    as long as the budget lasts."""
    call = verdict(facts, report)
    finish = Finish(call.outcome, call.reason, call.word)
    if call.outcome is Outcome.NO_AGENT:
        return _without_agent(call, budget, retries) or finish
    if (report and report.opt_out) or budget.attempt_count >= budget.max_attempts:
        return finish
    return _callback(report, now) or _retry(call, budget, retries) or finish


def _callback(report: ReportedOutcome | None, now: datetime | None) -> Retry | None:
    at = report.callback_at if report else None
    if at is None or now is None or not timedelta(0) < at - now <= CALLBACK_MAX:
        return None
    return Retry(max((at - now).total_seconds(), 1.0))


def _retry(call: CallVerdict, budget: Budget, retries: Retries) -> Retry | None:
    rule = retries.rule(call.word or call.outcome.value, call.reason)
    if not (call.outcome in _UNREACHED if rule is None else rule.retry):
        return None
    return Retry(retries.delay_s(budget.attempt_count, rule))


def _without_agent(call: CallVerdict, budget: Budget, retries: Retries) -> Retry | None:
    """Our failure: it uses no attempt of the lead. A rule may end the lead at once, and one that names NO_AGENT itself
    may set other delays; none adds a third call."""
    rule = retries.rule(call.outcome.value, call.reason)
    if budget.no_agent_count >= len(NO_AGENT_DELAYS_S) or (rule is not None and not rule.retry):
        return None
    own = retries.by_outcome.get(call.outcome.value)
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
