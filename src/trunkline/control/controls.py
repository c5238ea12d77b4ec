"""This process's view of the controls. `refresh.py` keeps it at most half a second behind Postgres.

    if stop := controls.stopped(merchant_id=lead.merchant_id, reseller_id=lead.reseller_id):
        ...                                # no grant, no intent
    if controls.killed():
        ...                                # no send

Until the first read everything is stopped. While Postgres is away, the last read state holds: without Postgres no
intent can be committed, so no call is started by a stale state either.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Unpack

from trunkline.clock import Clock
from trunkline.control.stops import Stops, StopTarget, Suspension
from trunkline.store.controls import Control

# After ten failed refreshes in a row the view counts as stale.
STALE_AFTER_S = 5.0
UNREAD = Suspension("unread", "", "The controls have not been read yet.", None)


class Controls:
    def __init__(self, clock: Clock):
        self._clock = clock
        self._stops = Stops()
        self._closed: Suspension | None = UNREAD
        self._read_at_s = clock.boottime_s()
        # Postgres' time in its last reply. Counting on from there can only be late: no stop ends early.
        self._postgres_now: datetime | None = None
        self._fingerprint: object = UNREAD
        self._generation = 0
        self._changed = asyncio.Event()

    def stopped(self, **target: Unpack[StopTarget]) -> Suspension | None:
        """Why this target may not start now. Without arguments: why nothing may."""
        return self._closed or self._stops.stopped(target, self.now())

    def killed(self) -> Suspension | None:
        """Why nothing may be sent now. Call it before every single send."""
        return self._closed or self._stops.killed(self.now())

    def share(self, **target: Unpack[StopTarget]) -> float:
        """The share of its usual starts that this target may make: 0 while stopped, then ramping up to 1."""
        return 0.0 if self._closed else self._stops.share(target, self.now())

    @property
    def in_force(self) -> tuple[Control, ...]:
        """All controls that stop or ramp up, for the matcher's scripts."""
        return self._stops.controls

    @property
    def closed(self) -> Suspension | None:
        """Why the view itself stops everything, whatever the controls."""
        return self._closed

    @property
    def generation(self) -> int:
        """Increments with every change of what is stopped, also when a stop ends by itself."""
        return self._generation

    async def changed(self, after: int) -> int:
        """Wait until the generation differs from `after`, and return it."""
        while self._generation == after:
            await self._changed.wait()
        return self._generation

    @property
    def age_s(self) -> float:
        """Since Postgres' last reply."""
        return self._clock.boottime_s() - self._read_at_s

    @property
    def is_stale(self) -> bool:
        return self.age_s > STALE_AFTER_S

    def read(self, postgres_now: datetime, stops: Stops | None = None) -> None:
        """Take over Postgres' reply: its time, and new stops, or None if they did not change."""
        self._postgres_now = postgres_now
        self._read_at_s = self._clock.boottime_s()
        self._stops = self._stops if stops is None else stops
        self._closed = None
        self._announce()

    def close(self, reason: str) -> None:
        """Stop everything until the next reply: this view cannot be relied on."""
        self._closed = Suspension("unread", "", reason, None)
        self._announce()

    def now(self) -> datetime:
        """Postgres' time, extrapolated from its last reply."""
        assert self._postgres_now is not None, "an open view has been read"
        return self._postgres_now + timedelta(seconds=self.age_s)

    def _announce(self) -> None:
        fingerprint: object = self._closed or self._stops.fingerprint(self.now())
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        self._generation += 1
        signal, self._changed = self._changed, asyncio.Event()
        signal.set()
