"""Nudges: "this mailbox has something new". Hints on a stream; a lost one costs a second, until the sweep.

A nudge is acknowledged as soon as it is read. Recovery does not hang on it: the mailbox's lease in Postgres does.
"""

from collections.abc import Iterable
from typing import Any

from redis.exceptions import ResponseError

from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable

GROUP = "workers"
# A nudge is worthless once the sweep has passed; this is far more than one second's worth.
STREAM_LENGTH_MAX = 100_000


async def send(bus: Bus, kind: str, keys: Iterable[str]) -> None:
    """Tell the workers of a kind which mailboxes to look into."""
    pipeline: Any = bus.client.pipeline()
    for key in keys:
        pipeline.xadd(bus.keys.nudges(kind), {"key": key}, maxlen=STREAM_LENGTH_MAX, approximate=True)
    await bus.read(pipeline.execute())


async def receive(bus: Bus, kind: str, worker: str, *, count: int, timeout_s: float) -> list[str]:
    """Wait for nudges; the keys of the mailboxes, each once."""
    stream = bus.keys.nudges(kind)
    try:
        reply = await _read(bus, stream, worker, count, timeout_s)
    except BusUnavailable as error:
        if not _group_is_missing(error):
            raise
        # The first worker ever, or the stream went with Valkey's memory.
        await _create_group(bus, stream)
        return []
    return list(dict.fromkeys(fields["key"] for _, entries in reply or [] for _, fields in entries))


async def _read(bus: Bus, stream: str, worker: str, count: int, timeout_s: float) -> Any:
    return await bus.read(
        bus.blocking.xreadgroup(
            GROUP, worker, {stream: ">"}, count=count, block=max(1, int(timeout_s * 1000)), noack=True
        )
    )


async def _create_group(bus: Bus, stream: str) -> None:
    try:
        await bus.client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _group_is_missing(error: BusUnavailable) -> bool:
    return "NOGROUP" in str(error.__cause__)
