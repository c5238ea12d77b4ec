"""A script that only runs: the health check of Valkey, and the way to read its clock."""

from trunkline.bus.connection import Bus
from trunkline.bus.scripts import script

_PROBE = script("probe")


async def server_time_s(bus: Bus) -> float:
    """Valkey's time, in seconds since the epoch. PING succeeds even while every script is refused."""
    seconds, microseconds = await bus.run(_PROBE, [bus.keys.probe])
    return int(seconds) + int(microseconds) / 1e6
