"""How far Postgres' clock is ahead of Valkey's. Postgres decides what is due; Valkey only has to agree with it."""

import math
import time

from trunkline.bus.connection import Bus
from trunkline.bus.probe import server_time_s
from trunkline.store import schedule
from trunkline.store.database import Database

# Clocks of servers drift by milliseconds an hour; a step by an operator is noticed within this time.
MEASURE_EVERY_S = 10.0
MEASUREMENTS = 3


class ClockOffset:
    def __init__(self, database: Database, bus: Bus):
        self._database = database
        self._bus = bus
        self._measured_at_s = float("-inf")
        self._offset_ms = 0

    async def ms(self) -> int:
        """The offset, measured anew when the last measure is old."""
        if time.monotonic() - self._measured_at_s > MEASURE_EVERY_S:
            self._offset_ms = await self._measure()
            self._measured_at_s = time.monotonic()
        return self._offset_ms

    @property
    def last_ms(self) -> int:
        """As it was last measured, for whoever cannot measure now."""
        return self._offset_ms

    def doubt(self) -> None:
        """Postgres said otherwise than Valkey: somebody has set a clock, and the next use measures anew."""
        self._measured_at_s = float("-inf")

    async def _measure(self) -> int:
        """The least that it can be. Postgres' clock is read before Valkey's, so each difference is too small by the
        time in between, and the largest is the nearest. Were it too large by a fraction of a millisecond, leads would
        be matched before they are due, and refused."""
        async with self._database.connection() as conn:
            found = [
                await schedule.clock_s(conn) - await server_time_s(self._bus) for _ in range(MEASUREMENTS)
            ]
        return math.floor(max(found) * 1000)
