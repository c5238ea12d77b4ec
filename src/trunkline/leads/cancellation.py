"""What a cancellation makes of a decision. Pure.

Somebody wanted the lead's end while it was being called. It is not called again, whatever the rules of retrying say. A
conversation that took place is still told as what it was; a call that we cut short before anybody answered is ABORTED.
"""

from dataclasses import dataclass

from trunkline.model import Decision, Finish, Outcome, Retry


@dataclass(frozen=True, slots=True)
class Cancellation:
    reason: str | None
    # The call was to be cut short, not only to be the last.
    hang_up: bool


def after_cancellation(decision: Decision, cancelled: Cancellation | None, *, was_answered: bool) -> Decision:
    """The decision about a lead, as it stands after its cancellation, if there was one."""
    if cancelled is None:
        return decision
    if isinstance(decision, Retry) or (cancelled.hang_up and not was_answered):
        return Finish(Outcome.ABORTED, cancelled.reason)
    return decision
