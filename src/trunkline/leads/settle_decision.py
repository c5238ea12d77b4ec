"""Pure rules: what becomes of a lead after an attempt.

`max_attempts` counts all attempts of a lead but those that ended by our failing, so no rule can stack on another.
Requests that the carrier refused for the person's sake count separately: a lead that no carrier takes ends too. So do
calls that were answered while no agent was there: such a lead comes again twice, at no cost of its own, and then ends.
What the account, our number or our network did costs no lead anything.
"""

from datetime import datetime, timedelta

from trunkline.leads.outcomes import CallVerdict, Facts, verdict
from trunkline.leads.retries import DEFAULT, Retries
from trunkline.model import Budget, Finish, LeadDecision, Outcome, Retry

# A later call that somebody asked for is within a year: a model that gets the year wrong is not taken at its word.
CALLBACK_MAX = timedelta(days=366)
# Nobody was reached, so it is worth another attempt unless a rule says otherwise.
_UNREACHED = frozenset({Outcome.NO_ANSWER, Outcome.BUSY, Outcome.VOICEMAIL})
# When somebody is called again who answered and found no agent: the first time, the second. Then it ends.
NO_AGENT_DELAYS_S = (300.0, 3600.0)
# A lead that is refused for no known reason while nobody else is called: each time after twice as long, and not longer.
UNEXPLAINED_DELAY_MAX_S = 3600.0
# Behind those that wait already: the account, the number or the process rests meanwhile, and another may take it.
OUR_FAILING_DELAY_S = 2.0


def after_facts(
    facts: Facts, budget: Budget, retries: Retries = DEFAULT, now: datetime | None = None
) -> LeadDecision:
    """A call has ended, as all witnesses tell it. Who asked not to be called is not called; who asked to be called at a
    certain time is, as long as the budget lasts."""
    found = verdict(facts)
    finish = Finish(found.outcome, found.reason, found.word)
    if found.outcome is Outcome.NO_AGENT:
        return _without_agent(found, budget, retries) or finish
    if facts.agent.opt_out or budget.attempt_count >= budget.max_attempts:
        return finish
    return _callback(facts.agent.callback_at, now) or _retry(found, budget, retries) or finish


def _callback(at: datetime | None, now: datetime | None) -> Retry | None:
    if at is None or now is None or not timedelta(0) < at - now <= CALLBACK_MAX:
        return None
    return Retry(max((at - now).total_seconds(), 1.0))


def _retry(found: CallVerdict, budget: Budget, retries: Retries) -> Retry | None:
    rule = retries.rule(found.word or found.outcome.value, found.reason)
    if not (found.outcome in _UNREACHED if rule is None else rule.retry):
        return None
    return Retry(retries.delay_s(budget.attempt_count, rule))


def _without_agent(found: CallVerdict, budget: Budget, retries: Retries) -> Retry | None:
    """Our failing: it uses no attempt of the lead. A rule may end the lead at once, and one that names NO_AGENT itself
    may set other delays; none adds a third call."""
    rule = retries.rule(found.outcome.value, found.reason)
    if budget.no_agent_count >= len(NO_AGENT_DELAYS_S) or (rule is not None and not rule.retry):
        return None
    own = retries.by_outcome.get(found.outcome.value)
    delays_s = own.delays_s if own is not None and own.delays_s else NO_AGENT_DELAYS_S
    delay_s = delays_s[min(budget.no_agent_count, len(delays_s) - 1)]
    return Retry(delay_s, counted=False, no_agent=True)


def after_refusal(code: str, budget: Budget, retries: Retries = DEFAULT) -> LeadDecision:
    """The carrier refused the request, so nobody was called: it costs carrier errors, not attempts."""
    errors = budget.carrier_error_count + 1
    if errors >= retries.carrier_errors_max:
        return Finish(Outcome.CARRIER_ERROR, code)
    return Retry(retries.delay_s(errors), carrier_error=True, counted=False)


def after_our_failing() -> LeadDecision:
    """The account, our number or the way to the carrier is at fault. The lead waits for its turn, as if nothing was."""
    return Retry(OUR_FAILING_DELAY_S, counted=False)


def after_unexplained(
    code: str, budget: Budget, retries: Retries = DEFAULT, *, others_were_accepted: bool, times: int = 1
) -> LeadDecision:
    """It is not known on whose account a call came to nothing, for the `times`-th time in a row. While the carrier
    takes others, it is the lead's. Otherwise it costs nothing, and the backoff is ours: a policy whose delays do not
    grow would have the carrier asked every minute for ever."""
    if others_were_accepted:
        return after_refusal(code, budget, retries)
    backoff_s = min(DEFAULT.delay_s(times), UNEXPLAINED_DELAY_MAX_S)
    return Retry(max(retries.delay_s(1), backoff_s), counted=False)


def after_throttling(retry_after_s: float) -> LeadDecision:
    """The carrier is too busy: no fault of the lead, so it costs nothing."""
    return Retry(max(retry_after_s, 1.0), counted=False)
