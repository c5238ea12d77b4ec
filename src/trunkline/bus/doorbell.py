"""The bell that wakes dialers: something became due, or a channel was freed.

It is a hint. A dialer that takes the ring and dies costs the others at most their longest wait, one second.
"""

from trunkline.bus.connection import BLOCK_MAX_S, Bus


async def wait(bus: Bus, timeout_s: float) -> bool:
    """Wait for a ring; True if there was one."""
    # Valkey takes 0 for ever; anything under a millisecond is not worth a round trip.
    timeout_s = min(timeout_s, BLOCK_MAX_S)
    if timeout_s < 0.001:
        return False
    return await bus.read(bus.blocking.blpop([bus.keys.bell], timeout=timeout_s)) is not None
