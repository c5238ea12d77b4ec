"""The stop that the match applies to one lead's owner, for a person who wants to know why the lead is not called."""

from typing import Literal
from uuid import UUID

from trunkline.bus import epoch
from trunkline.bus.channels import ALL
from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable


async def projection(
    bus: Bus, reseller_id: str, merchant_id: str, campaign_id: UUID | None
) -> tuple[Literal["whole", "lost", "away"], str | None]:
    """The state of Valkey's projection, and the stop that the match applies to this owner, if any."""
    try:
        if await epoch.read(bus) == 0:
            return "lost", None
        subjects = [ALL, f"r/{reseller_id}", f"m/{merchant_id}", f"c/{merchant_id}/{campaign_id}"]
        stops: list[str | None] = await bus.read(bus.client.hmget(bus.projection.stops, subjects))
    except BusUnavailable:
        return "away", None
    return "whole", next((each for each in stops if each), None)
