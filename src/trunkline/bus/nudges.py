"""Nudges: "this mailbox has something new". Hints on a stream; a lost one costs a second, until the sweep.

A nudge that was read stays on the group's pending list until its mailbox is claimed, then it is acknowledged and
removed in one script. Recovery does not hang on it: a mailbox whose nudge was lost, trimmed or acknowledged by the
wrong hands is still `queued` in Postgres, and one whose worker died has a lease there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from trunkline.bus.connection import BLOCK_MAX_S, Bus
from trunkline.bus.scripts import script
from trunkline.errors import BusUnavailable

GROUP = "workers"
# A nudge is worthless once the sweep has passed; this is far more than one second's worth.
STREAM_LENGTH_MAX = 100_000
# Arguments of one script; Lua unpacks at most some 8,000.
SCRIPT_KEYS_MAX = 1_000

_SEND = script("nudges_send")
_DONE = script("nudges_done")
_TIDY = script("nudges_tidy")


@dataclass(frozen=True, slots=True)
class Nudges:
    """What was read: entries to acknowledge, and the mailboxes they name, each once."""

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


async def send(bus: Bus, kind: str, keys: Sequence[str]) -> None:
    """Tell the workers of a kind which mailboxes to look into."""
    for some in _slices(keys):
        await bus.run(_SEND, [bus.keys.nudges(kind)], [STREAM_LENGTH_MAX, *some])


async def receive(bus: Bus, kind: str, worker: str, *, count: int, timeout_s: float) -> Nudges:
    """Wait for nudges, at most `count`; with no time to wait, those that are there."""
    try:
        reply = await _read(bus, kind, worker, count, timeout_s)
    except BusUnavailable as error:
        if not _says(error, "NOGROUP"):
            raise
        # The first worker ever, or the stream went with Valkey's memory.
        await _create_group(bus, kind)
        return Nudges()
    entries = _entries(reply)
    # A nudge has one field, `key`.
    keys = dict.fromkeys(fields[1] for _, fields in entries if fields)
    return Nudges(tuple(entry_id for entry_id, _ in entries), tuple(keys))


async def done(bus: Bus, kind: str, ids: Sequence[str]) -> None:
    """Acknowledge and remove: the mailboxes are claimed, or had nothing to claim."""
    for some in _slices(ids):
        await bus.run(_DONE, [bus.keys.nudges(kind)], [GROUP, *some])


async def tidy(bus: Bus, kind: str, *, gone_after_s: float) -> int:
    """Clear up after workers that are gone; the number of nudges that are read and not yet acknowledged."""
    return int(await bus.run(_TIDY, [bus.keys.nudges(kind)], [GROUP, int(gone_after_s * 1000)]))


async def _read(bus: Bus, kind: str, worker: str, count: int, timeout_s: float) -> Any:
    block_ms = int(min(timeout_s, BLOCK_MAX_S) * 1000)
    # 0 would be for ever.
    block = ("BLOCK", block_ms) if block_ms else ()
    stream = bus.keys.nudges(kind)
    return await bus.wait(
        "XREADGROUP", "GROUP", GROUP, worker, "COUNT", count, *block, "STREAMS", stream, ">"
    )


def _entries(reply: Any) -> list[tuple[str, list[str] | None]]:
    """Of the one stream: a list of pairs in the older protocol, a mapping in the newer. An entry that was removed after
    it was delivered has no fields."""
    if not reply:
        return []
    (entries,) = reply.values() if isinstance(reply, dict) else [pair[1] for pair in reply]
    return [(entry_id, fields) for entry_id, fields in entries]


async def _create_group(bus: Bus, kind: str) -> None:
    try:
        await bus.read(bus.client.xgroup_create(bus.keys.nudges(kind), GROUP, id="0", mkstream=True))
    except BusUnavailable as error:
        if not _says(error, "BUSYGROUP"):
            raise


def _says(error: BusUnavailable, word: str) -> bool:
    return isinstance(error.__cause__, ResponseError) and word in str(error.__cause__)


def _slices(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), SCRIPT_KEYS_MAX):
        yield values[start : start + SCRIPT_KEYS_MAX]
