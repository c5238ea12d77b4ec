"""The epoch: whether Valkey's projection is the one that this process has read, and how a lost one is replaced.

A process reads the epoch before its first script, and every script checks it. Another run id, a missing epoch or a
promoted replica mean that the projection is lost: scripts refuse, and a rebuild writes a new one under a number from
Postgres. Numbers only grow, so of two rebuilds the newer wins.
"""

from trunkline.bus.connection import Bus
from trunkline.bus.scripts import script
from trunkline.errors import ProjectionLost

_BEGIN = script("epoch_begin")
_PUBLISH = script("epoch_publish")
_READ = script("epoch_read")

# A rebuild renews its mark at least once per page of flows, which takes well under a second; after this it is dead.
SILENT_MS = 5000
# How many keys of an old epoch are removed at a time.
SWEEP_BATCH = 500


async def read(bus: Bus) -> int:
    """Read the published epoch; 0 if the projection was lost."""
    bus.epoch = int(await bus.run(_READ, [bus.keys.epoch]))
    return bus.epoch


async def ensure(bus: Bus) -> None:
    """Read the epoch if this process has none; raises if the projection is lost."""
    if bus.epoch == 0 and await read(bus) == 0:
        raise ProjectionLost("Valkey has lost its projection, or it is being rebuilt")


async def begin(bus: Bus, number: int) -> Bus | None:
    """The bus to rebuild through, or None if another process rebuilds or a newer epoch is published."""
    return bus.at_epoch(number) if await go_on(bus, number) else None


async def go_on(bus: Bus, number: int) -> bool:
    """Renew the mark of this rebuild. False: another rebuild has taken over."""
    return bool(await bus.run(_BEGIN, [bus.keys.epoch], [number, SILENT_MS]))


async def publish(bus: Bus, number: int) -> bool:
    """Publish the rebuilt projection. False if a newer rebuild has begun."""
    published = bool(await bus.run(_PUBLISH, [bus.keys.epoch, bus.keys.dialer_wakeups], [number]))
    if published:
        bus.epoch = number
    return published


async def sweep(bus: Bus) -> int:
    """Remove the keys of older epochs: no script reads them any more."""
    removed, batch = 0, []
    async for key in bus.client.scan_iter(match=bus.keys.all_projections, count=1000):
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
