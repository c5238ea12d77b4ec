"""Wakeups of mailbox workers: "this mailbox has new events". Hints on a stream; a lost one costs a second, until the
sweep.

`MailboxNotifier` sends them and their acknowledgements in the background, so that a slow Valkey delays neither appends
nor workers.

A wakeup that was read stays on the group's pending list until its mailbox is claimed, then one script acknowledges and
removes it. Recovery does not depend on it: a mailbox whose wakeup was lost, trimmed or acknowledged by the wrong worker
is still `queued` in Postgres, and one whose worker died has a lease there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from trunkline.bus.connection import BLOCK_MAX_S, Bus
from trunkline.bus.scripts import script
from trunkline.errors import BusUnavailable
from trunkline.event_loop import OnDemandTask
from trunkline.telemetry import get_logger

log = get_logger(__name__)

GROUP = "workers"
# A wakeup is worthless once the sweep has passed; this is far more than one second's worth.
STREAM_LENGTH_MAX = 100_000
# Arguments of one script; Lua unpacks at most some 8,000.
SCRIPT_KEYS_MAX = 1_000
# How many wakeups are queued while Valkey does not answer. The sweep finds the others before Valkey is back.
WAITING_MAX = 10_000

_SEND = script("mailbox_wakeups_send")
_DONE = script("mailbox_wakeups_done")
_TIDY = script("mailbox_wakeups_tidy")


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Entries to acknowledge, and the mailboxes they name, each once."""

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


async def send(bus: Bus, kind: str, keys: Sequence[str]) -> None:
    """Wake the workers of a kind for these mailboxes."""
    stream = bus.keys.mailbox_wakeups(kind)
    for start in range(0, len(keys), SCRIPT_KEYS_MAX):
        await bus.run(_SEND, [stream], [STREAM_LENGTH_MAX, *keys[start : start + SCRIPT_KEYS_MAX]])


async def receive(bus: Bus, kind: str, worker: str, *, count: int, timeout_s: float) -> Wakeups:
    """Wait for wakeups, at most `count`; with no time to wait, those that are there."""
    block_ms = int(min(timeout_s, BLOCK_MAX_S) * 1000)
    # 0 would wait for ever.
    block = ("BLOCK", block_ms) if block_ms else ()
    stream = bus.keys.mailbox_wakeups(kind)
    try:
        reply = await bus.wait(
            "XREADGROUP", "GROUP", GROUP, worker, "COUNT", count, *block, "STREAMS", stream, ">"
        )
    except BusUnavailable as error:
        if not _says(error, "NOGROUP"):
            raise
        # The first worker ever, or the stream went with Valkey's projection.
        await _create_group(bus, kind)
        return Wakeups()
    ids: list[str] = []
    keys: dict[str, None] = {}
    for _, entries in reply or ():
        for entry_id, fields in entries:
            ids.append(entry_id)
            # A wakeup has one field, `key`. An entry that was removed after it was delivered has none.
            if fields:
                keys[fields[1]] = None
    return Wakeups(tuple(ids), tuple(keys))


async def done(bus: Bus, kind: str, ids: Sequence[str]) -> None:
    """Acknowledge and remove: the mailboxes are claimed, or had nothing to claim."""
    stream = bus.keys.mailbox_wakeups(kind)
    for start in range(0, len(ids), SCRIPT_KEYS_MAX):
        await bus.run(_DONE, [stream], [GROUP, *ids[start : start + SCRIPT_KEYS_MAX]])


async def tidy(bus: Bus, kind: str, *, gone_after_s: float) -> int:
    """Remove the traces of dead workers; returns the number of wakeups that are read and not yet acknowledged."""
    return int(await bus.run(_TIDY, [bus.keys.mailbox_wakeups(kind)], [GROUP, int(gone_after_s * 1000)]))


async def _create_group(bus: Bus, kind: str) -> None:
    try:
        await bus.read(bus.client.xgroup_create(bus.keys.mailbox_wakeups(kind), GROUP, id="0", mkstream=True))
    except BusUnavailable as error:
        if not _says(error, "BUSYGROUP"):
            raise


def _says(error: BusUnavailable, word: str) -> bool:
    return isinstance(error.__cause__, ResponseError) and word in str(error.__cause__)


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
        """A worker has received these wakeups and acted upon them. A lost acknowledgement costs an entry on the pending
        list, until the worker tidies it."""
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
                if self._waiting:
                    kind, keys = self._waiting.popitem()
                    await send(self._bus, kind, list(keys))
                else:
                    kind, ids = self._done.popitem()
                    await done(self._bus, kind, ids)
            except BusUnavailable as error:
                log.debug("mailbox.wakeups_lost", error=str(error))
