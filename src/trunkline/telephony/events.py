"""Checks for the webhooks of every carrier, after they are verified and parsed."""

from datetime import datetime

from trunkline.telephony.carrier import CallbackTag, CallEvent, Forged, WebhookResult
from trunkline.value import replace

# Clocks differ by less. A time further ahead is in another time zone than assumed.
AHEAD_MAX_S = 60.0


def accept_event(
    event: WebhookResult, tag: CallbackTag, now: datetime, age_max_s: float = 86_400.0
) -> WebhookResult:
    """Refuse stale events, and outbound events without an attempt."""
    if not isinstance(event, CallEvent):
        return event
    if event.at is not None and (now - event.at).total_seconds() > age_max_s:
        return Forged("stale")
    if event.attempt_id is None and event.direction == "outbound" and tag.kind != "inbound":
        return Forged("callback without its attempt")
    if event.at is not None and (event.at - now).total_seconds() > AHEAD_MAX_S:
        return replace(event, at=None)  # then the time of its arrival counts
    return event
