"""How a cancellation changes a decision. Pure.

The lead was cancelled while it was being called. It is not called again, whatever the retry rules say. Where the call
was to be hung up, the lead is ABORTED, whatever was said until then; where it was only to be the last, a conversation
keeps its outcome.
"""

from dataclasses import dataclass

from trunkline.model import Finish, LeadDecision, Outcome, Retry


@dataclass(frozen=True, slots=True)
class Cancellation:
    reason: str | None
    # The call was to be hung up, not only to be the last.
    hang_up: bool


def after_cancellation(decision: LeadDecision, cancelled: Cancellation | None) -> LeadDecision:
    """The decision about a lead after its cancellation, if there was one."""
    if cancelled is None:
        return decision
    if isinstance(decision, Retry) or cancelled.hang_up:
        return Finish(Outcome.ABORTED, cancelled.reason)
    return decision
