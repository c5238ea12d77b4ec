"""Wakes dialers: a lead became due, or a channel was freed.

A wakeup is a hint. A dialer that takes one and dies delays the others by at most their longest wait, one second.

The time limit of a wait is enforced here and not at the server: Valkey ends blocking reads at its own tick, ten times a
second, and a dialer that waits for a lead due in 7 ms would be 50 ms late. So one blocking read outlives many waits,
and takes the next wakeup.
"""

import asyncio

from trunkline.bus.connection import BLOCK_MAX_S, Bus


class DialerWakeups:
    def __init__(self, bus: Bus):
        self._bus = bus
        self._listening: asyncio.Task[bool] | None = None

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a wakeup; True if there was one, also since the last wait. False may come early."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="dialer_wakeups")
        await asyncio.wait({self._listening}, timeout=timeout_s)
        if not self._listening.done():
            return False
        listening, self._listening = self._listening, None
        return listening.result()

    async def close(self) -> None:
        """Stop listening. A wakeup that comes at the same time may be lost: it is a hint."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> bool:
        return await self._bus.wait("BLPOP", self._bus.keys.dialer_wakeups, BLOCK_MAX_S) is not None
