"""Calls that wait in the carrier's own queue. Twilio queues calls over its pace for up to a day, and then they ring.

The dialer cancels a call that would ring too late at once; the checker cancels one that is still queued when its window
has closed. Only queued calls are cancelled: one that rings or was answered goes on.
"""

from datetime import datetime, timedelta

from trunkline.clock import Clock
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Accepted, CallOrder, CallView, Carrier, PlaceResult, Throttled

log = get_logger(__name__)

# The platform's pace is below the carrier's, so no call should wait. One that does waits behind calls of other systems.
PATIENCE = timedelta(seconds=30)
# A queue of a day does not defer a lead for a day: the account slows down, and the lead is tried again.
RETRY_MAX_S = 300.0


def rings_too_late(placed: Accepted, order: CallOrder, now: datetime) -> bool:
    """By the carrier's own estimate of the wait. Without one: False."""
    if not placed.queued_ms:
        return False
    rings_at = now + timedelta(milliseconds=placed.queued_ms)
    return rings_at > now + PATIENCE or (order.not_after is not None and rings_at > order.not_after)


async def place(carrier: Carrier, order: CallOrder, clock: Clock) -> PlaceResult:
    """As `Carrier.place`; a call that would wait too long is cancelled, if that is certain, and slows its account."""
    result = await carrier.place(order)
    if not isinstance(result, Accepted) or not rings_too_late(result, order, clock.now()):
        return result
    await carrier.hang_up(result.call_id, only_unanswered=True)
    seen = await carrier.look_up(result.call_id)
    if isinstance(seen, CallView) and _never_began(seen):
        log.warning("call.taken_from_queue", carrier=carrier.name, queued_ms=result.queued_ms)
        return Throttled(min((result.queued_ms or 0) / 1000, RETRY_MAX_S))
    return result  # it may ring after all, so it is a call like every other


async def cancel_if_queued(carrier: Carrier, call_id: str) -> bool:
    """Its window has closed. Whether it was still queued, and its cancellation was requested; the end webhook reports
    the result."""
    seen = await carrier.look_up(call_id)
    if not isinstance(seen, CallView) or seen.state != "queued":
        return False
    await carrier.hang_up(call_id, only_unanswered=True)
    log.warning("call.window_closed_in_queue", carrier=carrier.name)
    return True


def _never_began(seen: CallView) -> bool:
    return seen.state == "ended" and seen.reason == "canceled" and seen.started_at is None
