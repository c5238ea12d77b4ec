"""How far Postgres' clock is ahead of Valkey's. Postgres decides what is due; Valkey only has to agree with it."""

import time

from trunkline.bus.connection import Bus
from trunkline.bus.probe import server_time_s
from trunkline.store import schedule
from trunkline.store.database import Database

# Clocks of servers drift by milliseconds an hour; a step by an operator is noticed within this time.
MEASURE_EVERY_S = 10.0


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
        """Both clocks are read within one short moment, and each is taken at the middle of its round trip."""
        async with self._database.connection() as conn:
            before = time.monotonic()
            postgres_s = await schedule.clock_s(conn)
            between = time.monotonic()
            valkey_s = await server_time_s(self._bus)
            after = time.monotonic()
        gap_s = (between + after) / 2 - (before + between) / 2
        return round((postgres_s + gap_s - valkey_s) * 1000)
