"""Sends wakeups and their acknowledgements in the background, so that a slow Valkey delays neither appends nor workers.

Both are hints: a lost wakeup costs one second, until the sweep; a lost acknowledgement costs an entry on the pending
list, until the worker tidies it.
"""

from collections.abc import Iterable

from trunkline.bus import mailbox_wakeups
from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable
from trunkline.event_loop import OnDemandTask
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# How many wakeups are queued while Valkey does not answer. The sweep finds the others before Valkey is back.
WAITING_MAX = 10_000


class MailboxNotifier:
    """One sender; wakeups that come in while it waits for a reply are sent together."""

    def __init__(self, bus: Bus):
        self._bus = bus
        self._waiting: dict[str, dict[str, None]] = {}
        self._done: dict[str, list[str]] = {}
        self._sender = OnDemandTask(self._send, "wakeups")

    def wake(self, kind: str, keys: Iterable[str]) -> None:
        """Wake the workers of a kind for these mailboxes."""
        waiting = self._waiting.setdefault(kind, {})
        if len(waiting) < WAITING_MAX:
            waiting.update(dict.fromkeys(keys))
        self._sender.start()

    def acknowledge(self, kind: str, ids: Iterable[str]) -> None:
        """A worker has received these wakeups and acted upon them."""
        done = self._done.setdefault(kind, [])
        if len(done) < WAITING_MAX:
            done.extend(ids)
        self._sender.start()

    async def flush(self) -> None:
        """Return when everything was sent or dropped."""
        await self._sender.idle()

    async def close(self) -> None:
        """Flush, and close the connection, if this notifier owns it."""
        await self.flush()
        await self._bus.close()

    async def _send(self) -> None:
        while self._waiting or self._done:
            try:
                await self._send_some()
            except BusUnavailable as error:
                log.debug("mailbox.wakeups_lost", error=str(error))

    async def _send_some(self) -> None:
        if self._waiting:
            kind, keys = self._waiting.popitem()
            await mailbox_wakeups.send(self._bus, kind, list(keys))
        else:
            kind, ids = self._done.popitem()
            await mailbox_wakeups.done(self._bus, kind, ids)
