"""The epoch: whether Valkey's projection is the one we know, and how a lost one is replaced.

A process reads the number before its first script, and every script checks it. Another run id, a missing epoch, a
promoted replica: the projection is lost, scripts refuse, and a rebuild writes a new one under a number of Postgres.
Numbers only grow, so of two rebuilds the newer wins.
"""

from trunkline.bus.connection import Bus
from trunkline.bus.scripts import script
from trunkline.errors import ProjectionLost

_BEGIN = script("epoch_begin")
_PUBLISH = script("epoch_publish")
_READ = script("epoch_read")

# A rebuild is heard of at least once per page of flows, which takes well under a second; after this it is dead.
SILENT_MS = 5000
# Keys of an old epoch are removed so many at a time.
SWEEP_BATCH = 500


async def read(bus: Bus) -> int:
    """Learn the epoch that is published; 0 if the projection was lost."""
    bus.epoch = int(await bus.run(_READ, [bus.keys.epoch]))
    return bus.epoch


async def ensure(bus: Bus) -> None:
    """Know the epoch, or say that the projection is lost."""
    if bus.epoch == 0 and await read(bus) == 0:
        raise ProjectionLost("Valkey has lost its projection, or it is being rebuilt")


async def begin(bus: Bus, number: int) -> Bus | None:
    """The bus to rebuild through, or None if somebody is ahead of us or at it."""
    return bus.at_epoch(number) if await go_on(bus, number) else None


async def go_on(bus: Bus, number: int) -> bool:
    """Say that this rebuild is going on. False: it is somebody else's now."""
    return bool(await bus.run(_BEGIN, [bus.keys.epoch], [number, SILENT_MS]))


async def publish(bus: Bus, number: int) -> bool:
    """Let the rebuilt projection count. False if a newer rebuild has begun."""
    published = bool(await bus.run(_PUBLISH, [bus.keys.epoch, bus.keys.dialer_wakeups], [number]))
    if published:
        bus.epoch = number
    return published


async def sweep(bus: Bus) -> int:
    """Remove the keys of older epochs: nobody reads them any more."""
    removed, batch = 0, []
    async for key in bus.client.scan_iter(match=bus.keys.any_memory, count=1000):
        if _epoch_of(bus, key) < bus.epoch:
            batch.append(key)
        if len(batch) >= SWEEP_BATCH:
            removed += int(await bus.read(bus.client.unlink(*batch)))
            batch = []
    if batch:
        removed += int(await bus.read(bus.client.unlink(*batch)))
    return removed


def _epoch_of(bus: Bus, key: str) -> int:
    start = len(bus.keys.projection(0)) - len("0:")
    return int(key[start:].split(":", 1)[0])
