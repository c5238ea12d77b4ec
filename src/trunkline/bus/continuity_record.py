"""Valkey as a witness of how far Postgres had come. It may be lost; what it says while it is there is true.

Only the leader writes, after its beat was committed, so what is remembered here was once in Postgres.
"""

from uuid import UUID

from trunkline.bus.connection import Bus


async def remember(bus: Bus, installation: UUID, beat: int) -> None:
    await bus.read(bus.client.set(bus.keys.witness, f"{installation} {beat}"))


async def recall(bus: Bus) -> tuple[UUID, int] | None:
    """What was remembered last; None if nothing was, or it was lost."""
    text: str | None = await bus.read(bus.client.get(bus.keys.witness))
    if text is None:
        return None
    installation, _, beat = text.partition(" ")
    return UUID(installation), int(beat)
