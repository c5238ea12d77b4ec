"""How a cancellation changes a decision. Pure.

The lead was cancelled while it was being called. It is not called again, whatever the retry rules say. Where the call
was to be hung up, the lead is ABORTED, whatever was said until then; where it was only to be the last, a conversation
keeps its outcome.
"""

from trunkline.model import Finish, LeadDecision, Outcome, Retry


def after_cancellation(decision: LeadDecision, reason: str | None, *, hang_up: bool) -> LeadDecision:
    """`hang_up`: the call was to be hung up, not only to be the last."""
    if isinstance(decision, Retry) or hang_up:
        return Finish(Outcome.ABORTED, reason)
    return decision
