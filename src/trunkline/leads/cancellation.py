"""What a cancellation makes of a decision. Pure.

Somebody wanted the lead's end while it was being called. It is not called again, whatever the rules of retrying say.
Where the call was to be cut short, the lead is ABORTED, whatever was said until then; where it was only to be the last,
a conversation is still told as what it was.
"""

from dataclasses import dataclass

from trunkline.model import Finish, LeadDecision, Outcome, Retry


@dataclass(frozen=True, slots=True)
class Cancellation:
    reason: str | None
    # The call was to be cut short, not only to be the last.
    hang_up: bool


def after_cancellation(decision: LeadDecision, cancelled: Cancellation | None) -> LeadDecision:
    """The decision about a lead, as it stands after its cancellation, if there was one."""
    if cancelled is None:
        return decision
    if isinstance(decision, Retry) or cancelled.hang_up:
        return Finish(Outcome.ABORTED, cancelled.reason)
    return decision
