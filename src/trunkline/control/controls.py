"""This process's view of the controls. `refresh.py` keeps it at most half a second behind Postgres.

    if stop := controls.stopped(merchant_id=lead.merchant_id, reseller_id=lead.reseller_id):
        ...                                # no grant, no intent
    if controls.killed():
        ...                                # no send

Until the first read everything is stopped. While Postgres is away, the last read state holds: without Postgres no
intent can be committed, so no call is started by a stale state either.
"""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypedDict, Unpack
from uuid import UUID

from trunkline.clock import Clock
from trunkline.store.controls import Control, Scope
from trunkline.value import Value

# After ten failed refreshes in a row the view counts as stale.
STALE_AFTER_S = 5.0
_FOREVER = datetime.max.replace(tzinfo=UTC)


class Suspension(Value, frozen=True):
    """Why a target may not start now, and until when; None: until an operator lifts it."""

    scope: str
    subject: str
    reason: str
    until: datetime | None


class StopTarget(TypedDict, total=False):
    """The tenant, campaign, number and carrier of a call. Those that are not known yet are missing, or None."""

    reseller_id: str | None
    merchant_id: str | None
    campaign_id: UUID | str | None
    number_id: UUID | str | None
    carrier: str | None


def campaign_subject(merchant_id: str, campaign_id: UUID | str) -> str:
    """Merchants choose ids of campaigns themselves, so a stop is for the campaign of one merchant."""
    return f"{merchant_id}/{campaign_id}"


def _keys(target: StopTarget) -> Iterator[tuple[Scope, str]]:
    yield Scope.KILL_SWITCH, ""
    yield Scope.PROMOTER, ""
    if reseller_id := target.get("reseller_id"):
        yield Scope.RESELLER, reseller_id
    if merchant_id := target.get("merchant_id"):
        yield Scope.MERCHANT, merchant_id
        if campaign_id := target.get("campaign_id"):
            yield Scope.CAMPAIGN, campaign_subject(merchant_id, campaign_id)
    if number_id := target.get("number_id"):
        yield Scope.NUMBER, str(number_id)
    if carrier := target.get("carrier"):
        yield Scope.CARRIER, carrier


UNREAD = Suspension("unread", "", "The controls have not been read yet.", None)


class Controls:
    def __init__(self, clock: Clock):
        self._clock = clock
        # All controls that stop or ramp up, for the matcher's scripts; and by scope and subject: a check is a few
        # look-ups, whatever the number of stops.
        self.in_force: tuple[Control, ...] = ()
        self._by_subject: dict[tuple[Scope, str], list[Control]] = {}
        self._closed: Suspension | None = UNREAD
        self._read_at_s = clock.boottime_s()
        # Postgres' time in its last reply. Counting on from there can only be late: no stop ends early.
        self._postgres_now: datetime | None = None
        self._fingerprint: object = UNREAD
        self._generation = 0
        self._changed = asyncio.Event()

    def stopped(self, **target: Unpack[StopTarget]) -> Suspension | None:
        """Why this target may not start now: of the stops that hold for it the one that lasts longest. Without
        arguments: why nothing may."""
        return self._strongest(_keys(target))

    def killed(self) -> Suspension | None:
        """Why nothing may be sent now: the kill switch. Call it before every single send."""
        return self._strongest([(Scope.KILL_SWITCH, "")])

    def share(self, **target: Unpack[StopTarget]) -> float:
        """The share of its usual starts that this target may make: 0 while stopped, then ramping up to 1."""
        if self._closed:
            return 0.0
        if not self._by_subject:
            return 1.0
        now = self.now()
        found = (control for key in _keys(target) for control in self._by_subject.get(key, ()))
        return min((control.share(now) for control in found), default=1.0)

    def _strongest(self, keys: Iterable[tuple[Scope, str]]) -> Suspension | None:
        if self._closed or not self._by_subject:
            return self._closed
        now = self.now()
        found = (control for key in keys for control in self._by_subject.get(key, ()))
        stops = [control for control in found if control.phase(now) == "stopped"]
        if not stops:
            return None
        longest = max(stops, key=lambda control: control.ends_at or _FOREVER)
        return Suspension(longest.scope, longest.subject, longest.reason, longest.ends_at)

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

    def read(self, postgres_now: datetime, in_force: Iterable[Control] | None = None) -> None:
        """Take over Postgres' reply: its time, and the controls, or None if they did not change."""
        self._postgres_now = postgres_now
        self._read_at_s = self._clock.boottime_s()
        if in_force is not None:
            self.in_force, self._by_subject = tuple(in_force), {}
            for control in self.in_force:
                self._by_subject.setdefault((control.scope, control.subject), []).append(control)
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
        """Wake those that wait for a change: of the controls that stop or ramp up, or of the view itself."""
        fingerprint: object = self._closed or frozenset(
            (control.scope, control.subject, control.set_by, phase, control.changed_at)
            for control in self.in_force
            if (phase := control.phase(self.now())) != "over"
        )
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        self._generation += 1
        signal, self._changed = self._changed, asyncio.Event()
        signal.set()
