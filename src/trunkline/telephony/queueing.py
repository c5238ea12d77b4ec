"""Calls that wait in the carrier's own queue. Twilio keeps what is over its pace for up to a day, and then it rings.

What would ring too late is cancelled at once; what is still queued when its window closes is cancelled then. Only what
never began is cancelled: a call that rings or talks is left alone.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from trunkline.clock import Clock
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Accepted, CallOrder, CallView, Carrier, PlaceResult, Rejected

log = get_logger(__name__)

# Our own pace is below the carrier's, so nothing should wait. What waits longer has met somebody else's calls.
PATIENCE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call in a carrier's queue that must not ring after this moment."""

    carrier: Carrier
    call_id: str
    not_after: datetime


def rings_too_late(placed: Accepted, order: CallOrder, now: datetime) -> bool:
    """Whether the carrier itself says so. Where it does not say how long a call waits, nobody knows."""
    if not placed.queued_ms:
        return False
    rings_at = now + timedelta(milliseconds=placed.queued_ms)
    return rings_at > now + PATIENCE or (order.not_after is not None and rings_at > order.not_after)


async def place(carrier: Carrier, order: CallOrder, clock: Clock) -> PlaceResult:
    """As `Carrier.place`; a call that would wait too long is taken back, if that is certain."""
    result = await carrier.place(order)
    if not isinstance(result, Accepted) or not rings_too_late(result, order, clock.now()):
        return result
    await carrier.hang_up(result.call_id, only_unanswered=True)
    seen = await carrier.look_up(result.call_id)
    if isinstance(seen, CallView) and _never_began(seen):
        log.warning("call.taken_from_queue", carrier=carrier.name, queued_ms=result.queued_ms)
        return Rejected("refused", "queued_too_long", retryable=True)
    return result  # it may ring after all, so it is a call like every other


async def cancel_if_queued(waiting: Waiting) -> bool:
    """Its window has closed: whether it was still queued, and is asked back."""
    seen = await waiting.carrier.look_up(waiting.call_id)
    if not isinstance(seen, CallView) or seen.state != "queued":
        return False
    await waiting.carrier.hang_up(waiting.call_id, only_unanswered=True)
    log.warning("call.window_closed_in_queue", carrier=waiting.carrier.name)
    return True


class QueueGuard:
    """Waits for the ends of windows. A process that dies forgets them; the checker asks about every call in time."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, waiting: Waiting) -> None:
        task = asyncio.create_task(self._until_closed(waiting), name=f"queued {waiting.call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait until no window is waited for any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_closed(self, waiting: Waiting) -> None:
        await asyncio.sleep(max(0.0, (waiting.not_after - self._clock.now()).total_seconds()))
        await cancel_if_queued(waiting)


def _never_began(seen: CallView) -> bool:
    return seen.state == "ended" and seen.reason == "canceled" and seen.started_at is None
