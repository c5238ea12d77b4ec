"""What holds for the webhooks of every carrier, once they are verified and read."""

from datetime import datetime

from trunkline.telephony.carrier import CallbackTag, CallEvent, Forged, WebhookResult
from trunkline.value import replace

# Clocks differ by less. A time further ahead was told in another zone than we think.
AHEAD_MAX_S = 60.0


def accept_event(
    event: WebhookResult, tag: CallbackTag, now: datetime, age_max_s: float = 86_400.0
) -> WebhookResult:
    """Refuse what is stale, and what names no attempt though it is about a call of ours."""
    if not isinstance(event, CallEvent):
        return event
    if event.at is not None and (now - event.at).total_seconds() > age_max_s:
        return Forged("stale")
    if event.attempt_id is None and event.direction == "outbound" and tag.kind != "inbound":
        return Forged("callback without its attempt")
    if event.at is not None and (event.at - now).total_seconds() > AHEAD_MAX_S:
        return replace(event, at=None)  # then the time of its arrival counts
    return event
