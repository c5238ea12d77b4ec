"""Calls that wait in the carrier's own queue. Twilio keeps what is over its pace for up to a day, and then it rings.

What would ring too late is taken back at once, by whoever placed it; what is still queued when its window has closed is
taken back by the checker. Only what never began is: a call that rings or talks is left alone.
"""

from datetime import datetime, timedelta

from trunkline.clock import Clock
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Accepted, CallOrder, CallView, Carrier, PlaceResult, Throttled

log = get_logger(__name__)

# Our own pace is below the carrier's, so nothing should wait. What waits longer has met somebody else's calls.
PATIENCE = timedelta(seconds=30)
# A queue of a day is no reason to put a lead off for one: the account is slowed, and asked again.
RETRY_MAX_S = 300.0


def rings_too_late(placed: Accepted, order: CallOrder, now: datetime) -> bool:
    """Whether the carrier itself says so. Where it does not say how long a call waits, nobody knows."""
    if not placed.queued_ms:
        return False
    rings_at = now + timedelta(milliseconds=placed.queued_ms)
    return rings_at > now + PATIENCE or (order.not_after is not None and rings_at > order.not_after)


async def place(carrier: Carrier, order: CallOrder, clock: Clock) -> PlaceResult:
    """As `Carrier.place`; a call that would wait too long is taken back, if that is certain, and slows its account."""
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
    """Its window has closed: whether it was still queued, and is asked back. Its end webhook says what came of it."""
    seen = await carrier.look_up(call_id)
    if not isinstance(seen, CallView) or seen.state != "queued":
        return False
    await carrier.hang_up(call_id, only_unanswered=True)
    log.warning("call.window_closed_in_queue", carrier=carrier.name)
    return True


def _never_began(seen: CallView) -> bool:
    return seen.state == "ended" and seen.reason == "canceled" and seen.started_at is None
