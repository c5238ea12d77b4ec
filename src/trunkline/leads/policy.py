"""Pure rules: which outcome a call had, and whether the lead is called again.

`max_attempts` counts all attempts of a lead, whatever ended them, so no rule can stack on another. Requests that the
carrier refused count separately: a lead that no carrier takes ends too.
"""

from datetime import datetime

from trunkline.model import Budget, Decision, Finish, Outcome, Retry

RETRY_BASE_S = 60.0
CARRIER_ERRORS_MAX = 3


def after_call(answered_at: datetime | None, end_reason: str | None, budget: Budget) -> Decision:
    """A call has ended, as the carrier tells it."""
    if answered_at is not None or end_reason == "completed":
        return Finish(Outcome.ANSWERED, None)
    reason = (end_reason or "failed").upper()
    if budget.attempt_count < budget.max_attempts:
        return Retry(retry_delay_s(budget.attempt_count))
    return Finish(Outcome.NO_ANSWER, reason)


def after_refusal(code: str, budget: Budget) -> Decision:
    """The carrier refused the request, so nobody was called: it costs carrier errors, not attempts."""
    errors = budget.carrier_error_count + 1
    if errors >= CARRIER_ERRORS_MAX:
        return Finish(Outcome.CARRIER_ERROR, code)
    return Retry(retry_delay_s(errors), carrier_error=True, counted=False)


def after_throttling(retry_after_s: float) -> Decision:
    """The carrier is too busy: no fault of the lead, so it costs nothing."""
    return Retry(max(retry_after_s, 1.0), counted=False)


def retry_delay_s(failures: int) -> float:
    """After the k-th failure: 60 s × 2^(k-1)."""
    return RETRY_BASE_S * float(2 ** (failures - 1))
