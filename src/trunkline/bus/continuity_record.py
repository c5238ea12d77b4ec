"""Valkey's copy of Postgres's beat, to detect a restore of Postgres. It may be lost; what it holds is true.

Only the leader writes, after its beat was committed, so every value here was once in Postgres.
"""

from uuid import UUID

from trunkline.bus.connection import Bus


async def remember(bus: Bus, installation: UUID, beat: int) -> None:
    await bus.read(bus.client.set(bus.keys.witness, f"{installation} {beat}"))


async def recall(bus: Bus) -> tuple[UUID, int] | None:
    """The last value; None if there is none, or it was lost."""
    text: str | None = await bus.read(bus.client.get(bus.keys.witness))
    if text is None:
        return None
    installation, _, beat = text.partition(" ")
    return UUID(installation), int(beat)
