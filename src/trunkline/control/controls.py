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
from trunkline.store.controls import Control, Level, Scope
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


class Stops:
    """The stops that are in force. Immutable: a check is a few look-ups, whatever the number of stops."""

    def __init__(self, controls: Iterable[Control] = ()):
        self.controls = tuple(controls)
        self._by_subject: dict[tuple[Scope, str], list[Control]] = {}
        for control in self.controls:
            self._by_subject.setdefault((control.scope, control.subject), []).append(control)

    def killed(self, now: datetime) -> Suspension | None:
        """The kill switch, if it is on. Then nothing is sent either."""
        return self._strongest([(Scope.KILL_SWITCH, "")], now)

    def stopped(self, target: StopTarget, now: datetime) -> Suspension | None:
        """The stop that lasts longest of those that hold for the target."""
        return self._strongest(_keys(target), now)

    def share(self, target: StopTarget, now: datetime) -> float:
        """The share of its usual starts that the target may make: 0 while stopped, less than 1 while ramping up."""
        if not self._by_subject:
            return 1.0
        return min((control.share(now) for control in self._found(_keys(target))), default=1.0)

    def fingerprint(self, now: datetime) -> frozenset[tuple[Scope, str, Level, str, datetime]]:
        """All controls that stop or ramp up. Equal fingerprints mean that nothing has changed."""
        return frozenset(
            (control.scope, control.subject, control.set_by, control.phase(now), control.changed_at)
            for control in self.controls
            if control.phase(now) != "over"
        )

    def _strongest(self, keys: Iterable[tuple[Scope, str]], now: datetime) -> Suspension | None:
        if not self._by_subject:
            return None
        stops = [c for c in self._found(keys) if c.phase(now) == "stopped"]
        if not stops:
            return None
        longest = max(stops, key=lambda control: control.ends_at or _FOREVER)
        return Suspension(longest.scope, longest.subject, longest.reason, longest.ends_at)

    def _found(self, keys: Iterable[tuple[Scope, str]]) -> Iterator[Control]:
        for key in keys:
            yield from self._by_subject.get(key, ())


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
