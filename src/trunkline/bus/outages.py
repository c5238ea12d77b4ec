"""What the processes agree on while Postgres is away: under which id they tell of it, and which of them does.

Valkey may be away too, or lose this: then each process tells by itself.
"""

from uuid import UUID

from trunkline.bus.connection import Bus

# Renewed with every look of every process that notices; the next outage is another one.
KEPT_S = 60
# Whoever tells of it and dies is replaced after this.
TOLD_BY_S = 20


async def agree(bus: Bus, own_id: UUID) -> UUID:
    """The id of this outage: that of the first process that noticed."""
    key = bus.keys.outage
    if await bus.read(bus.client.set(key, str(own_id), nx=True, ex=KEPT_S)):
        return own_id
    said: str | None = await bus.read(bus.client.get(key))
    await bus.read(bus.client.expire(key, KEPT_S))
    return UUID(said) if said else own_id


async def claim(bus: Bus, process: str) -> bool:
    """Whether this process is the one that tells of it."""
    key = bus.keys.outage_told_by
    if await bus.read(bus.client.set(key, process, nx=True, ex=TOLD_BY_S)):
        return True
    is_own: bool = await bus.read(bus.client.get(key)) == process
    if is_own:
        await bus.read(bus.client.expire(key, TOLD_BY_S))
    return is_own


async def note_told(bus: Bus, outage: UUID) -> None:
    await bus.read(bus.client.set(bus.keys.outage_told, str(outage), ex=KEPT_S))


async def was_told(bus: Bus, outage: UUID) -> bool:
    said: str | None = await bus.read(bus.client.get(bus.keys.outage_told))
    return said == str(outage)


async def forget(bus: Bus) -> None:
    """It is over, and written down."""
    await bus.read(bus.client.delete(bus.keys.outage, bus.keys.outage_told_by))
