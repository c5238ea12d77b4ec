"""How far Postgres's clock is ahead of Valkey's, and of this process's. Postgres decides what is due and when a call
leaves; the others only have to agree with it."""

import math
import time

from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.model import Intent
from trunkline.store import schedule
from trunkline.store.database import Database

# Clocks of servers drift by milliseconds an hour; a step by an operator is noticed within this time.
MEASURE_EVERY_S = 10.0
MEASUREMENTS = 3


class ClockOffset:
    def __init__(self, database: Database, bus: Bus, clock: Clock):
        self._database = database
        self._bus = bus
        self._clock = clock
        self._measured_at_s = float("-inf")
        self._offset_ms = 0
        self._ahead_of_us_s = float("-inf")

    async def ms(self) -> int:
        """The offset, measured again when the last measurement is old."""
        if time.monotonic() - self._measured_at_s > MEASURE_EVERY_S:
            self._offset_ms = await self._measure()
            self._measured_at_s = time.monotonic()
        return self._offset_ms

    @property
    def last_ms(self) -> int:
        """The last measurement, for callers that cannot measure now."""
        return self._offset_ms

    def invalidate(self) -> None:
        """Postgres disagreed: a clock was set, and the next use measures again."""
        self._measured_at_s = float("-inf")

    def turn_s(self, intent: Intent, began_s: float, returned_s: float) -> float:
        """What our boot-time clock shows when Postgres's shows `send_at`, or a little later: never before it. The
        intent began and returned at these times, so its own reading of Postgres's clock lies between them. If the
        measured offset contradicts that, a clock was set, and the intent's reading counts."""
        intent_at_s = intent.send_at.timestamp() - intent.send_in_s
        least_s, most_s = intent_at_s - returned_s, intent_at_s - began_s
        ahead_s = self._ahead_of_us_s
        if not least_s <= ahead_s <= most_s:
            self.invalidate()
            ahead_s = least_s
        return intent.send_at.timestamp() - ahead_s

    async def _measure(self) -> int:
        """The least that each can be. Postgres's clock is read before the other one, so every difference is too small
        by the time in between, and the largest is the nearest. If it were too large by a fraction of a millisecond,
        calls would leave before they are due."""
        valkey_offsets_s, own_offsets_s = [], []
        async with self._database.connection() as conn:
            for _ in range(MEASUREMENTS):
                postgres_s = await schedule.clock_s(conn)
                own_offsets_s.append(postgres_s - self._clock.boottime_s())
                valkey_offsets_s.append(postgres_s - await self._bus.server_time_s())
        self._ahead_of_us_s = max(own_offsets_s)
        return math.floor(max(valkey_offsets_s) * 1000)
