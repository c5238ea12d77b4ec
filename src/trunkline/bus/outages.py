"""What Valkey holds about Postgres: its last beat, to detect a restore; and while it is down, the id of the outage and
which process reports it.

Valkey may be down too, or lose this: then no restore is detected here, and each process reports by itself.
"""

from uuid import UUID

from trunkline.bus.connection import Bus

# Renewed with every check of every process that notices; a later outage is another one.
OUTAGE_TTL_S = 60
# A process that reports it and dies is replaced after this.
REPORTER_TTL_S = 20


async def agree(bus: Bus, own_id: UUID) -> UUID:
    """The id of this outage: that of the first process that noticed."""
    key = bus.keys.outage
    if await bus.read(bus.client.set(key, str(own_id), nx=True, ex=OUTAGE_TTL_S)):
        return own_id
    stored: str | None = await bus.read(bus.client.get(key))
    await bus.read(bus.client.expire(key, OUTAGE_TTL_S))
    return UUID(stored) if stored else own_id


async def claim(bus: Bus, process: str) -> bool:
    """Whether this process is the one that reports it."""
    key = bus.keys.outage_announced_by
    if await bus.read(bus.client.set(key, process, nx=True, ex=REPORTER_TTL_S)):
        return True
    is_own: bool = await bus.read(bus.client.get(key)) == process
    if is_own:
        await bus.read(bus.client.expire(key, REPORTER_TTL_S))
    return is_own


async def mark_reported(bus: Bus, outage: UUID) -> None:
    await bus.read(bus.client.set(bus.keys.outage_announced, str(outage), ex=OUTAGE_TTL_S))


async def was_reported(bus: Bus, outage: UUID) -> bool:
    stored: str | None = await bus.read(bus.client.get(bus.keys.outage_announced))
    return stored == str(outage)


async def forget(bus: Bus) -> None:
    """The outage is over, and recorded."""
    await bus.read(bus.client.delete(bus.keys.outage, bus.keys.outage_announced_by))


async def remember(bus: Bus, installation: UUID, beat: int) -> None:
    """Only the leader writes, after its beat was committed, so every value here was once in Postgres."""
    await bus.read(bus.client.set(bus.keys.witness, f"{installation} {beat}"))


async def recall(bus: Bus) -> tuple[UUID, int] | None:
    """The last value; None if there is none, or it was lost."""
    text: str | None = await bus.read(bus.client.get(bus.keys.witness))
    if text is None:
        return None
    installation, _, beat = text.partition(" ")
    return UUID(installation), int(beat)
