"""Sends nudges beside the work, so that a slow Valkey slows nobody: a lost nudge costs a second, until the sweep."""

import asyncio
from collections.abc import Iterable

from trunkline.bus import nudges
from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# What has gathered behind a Valkey that does not answer. The sweep finds the rest before Valkey is back.
WAITING_MAX = 10_000


class Nudger:
    """One sender; what gathers while it waits for an answer leaves together."""

    def __init__(self, bus: Bus):
        self._bus = bus
        self._waiting: dict[str, dict[str, None]] = {}
        self._sender: asyncio.Task[None] | None = None

    def wake(self, kind: str, keys: Iterable[str]) -> None:
        waiting = self._waiting.setdefault(kind, {})
        if len(waiting) < WAITING_MAX:
            waiting.update(dict.fromkeys(keys))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="nudges")

    async def flush(self) -> None:
        """Return when every nudge was sent or given up on."""
        while self._sender is not None and not self._sender.done():
            await asyncio.wait([self._sender])

    async def _send(self) -> None:
        while self._waiting:
            kind, keys = self._waiting.popitem()
            try:
                await nudges.send(self._bus, kind, list(keys))
            except BusUnavailable as error:
                log.debug("mailbox.nudges_lost", kind=kind, count=len(keys), error=str(error))
