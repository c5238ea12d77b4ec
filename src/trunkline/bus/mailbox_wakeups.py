"""Wakeups of mailbox workers: "this mailbox has new events". Hints on a stream; a lost one costs a second, until the
sweep.

A wakeup that was read stays on the group's pending list until its mailbox is claimed, then one script acknowledges and
removes it. Recovery does not depend on it: a mailbox whose wakeup was lost, trimmed or acknowledged by the wrong worker
is still `queued` in Postgres, and one whose worker died has a lease there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from trunkline.bus.connection import BLOCK_MAX_S, Bus
from trunkline.bus.scripts import script
from trunkline.errors import BusUnavailable

GROUP = "workers"
# A wakeup is worthless once the sweep has passed; this is far more than one second's worth.
STREAM_LENGTH_MAX = 100_000
# Arguments of one script; Lua unpacks at most some 8,000.
SCRIPT_KEYS_MAX = 1_000

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
    for some in _slices(keys):
        await bus.run(_SEND, [bus.keys.mailbox_wakeups(kind)], [STREAM_LENGTH_MAX, *some])


async def receive(bus: Bus, kind: str, worker: str, *, count: int, timeout_s: float) -> Wakeups:
    """Wait for wakeups, at most `count`; with no time to wait, those that are there."""
    try:
        reply = await _read(bus, kind, worker, count, timeout_s)
    except BusUnavailable as error:
        if not _says(error, "NOGROUP"):
            raise
        # The first worker ever, or the stream went with Valkey's projection.
        await _create_group(bus, kind)
        return Wakeups()
    entries = _entries(reply)
    # A wakeup has one field, `key`.
    keys = dict.fromkeys(fields[1] for _, fields in entries if fields)
    return Wakeups(tuple(entry_id for entry_id, _ in entries), tuple(keys))


async def done(bus: Bus, kind: str, ids: Sequence[str]) -> None:
    """Acknowledge and remove: the mailboxes are claimed, or had nothing to claim."""
    for some in _slices(ids):
        await bus.run(_DONE, [bus.keys.mailbox_wakeups(kind)], [GROUP, *some])


async def tidy(bus: Bus, kind: str, *, gone_after_s: float) -> int:
    """Remove the traces of dead workers; returns the number of wakeups that are read and not yet acknowledged."""
    return int(await bus.run(_TIDY, [bus.keys.mailbox_wakeups(kind)], [GROUP, int(gone_after_s * 1000)]))


async def _read(bus: Bus, kind: str, worker: str, count: int, timeout_s: float) -> Any:
    block_ms = int(min(timeout_s, BLOCK_MAX_S) * 1000)
    # 0 would wait for ever.
    block = ("BLOCK", block_ms) if block_ms else ()
    stream = bus.keys.mailbox_wakeups(kind)
    return await bus.wait(
        "XREADGROUP", "GROUP", GROUP, worker, "COUNT", count, *block, "STREAMS", stream, ">"
    )


def _entries(reply: Any) -> list[tuple[str, list[str] | None]]:
    """Of the one stream. An entry that was removed after it was delivered has no fields."""
    if not reply:
        return []
    ((_, entries),) = reply
    return [(entry_id, fields) for entry_id, fields in entries]


async def _create_group(bus: Bus, kind: str) -> None:
    try:
        await bus.read(bus.client.xgroup_create(bus.keys.mailbox_wakeups(kind), GROUP, id="0", mkstream=True))
    except BusUnavailable as error:
        if not _says(error, "BUSYGROUP"):
            raise


def _says(error: BusUnavailable, word: str) -> bool:
    return isinstance(error.__cause__, ResponseError) and word in str(error.__cause__)


def _slices(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), SCRIPT_KEYS_MAX):
        yield values[start : start + SCRIPT_KEYS_MAX]
