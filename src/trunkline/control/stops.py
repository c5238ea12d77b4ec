"""The stops that are in force. Immutable: a check is a few look-ups, whatever the number of stops."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from uuid import UUID

from trunkline.store.controls import Control, Level, Scope
from trunkline.value import Value

_FOREVER = datetime.max.replace(tzinfo=UTC)


class Suspension(Value, frozen=True):
    """Why a target may not start now, and until when; None: until an operator lifts it."""

    scope: str
    subject: str
    reason: str
    until: datetime | None


class StopTarget(Value, frozen=True):
    """The tenant, campaign, number and carrier of a call. Those that are not known yet are None."""

    reseller_id: str | None = None
    merchant_id: str | None = None
    campaign_id: UUID | str | None = None
    number_id: UUID | str | None = None
    carrier: str | None = None


def campaign_subject(merchant_id: str, campaign_id: UUID | str) -> str:
    """Merchants choose ids of campaigns themselves, so a stop is for the campaign of one merchant."""
    return f"{merchant_id}/{campaign_id}"


class Stops:
    def __init__(self, controls: Iterable[Control] = ()):
        self.controls = tuple(controls)
        self._by_subject: dict[tuple[Scope, str], list[Control]] = {}
        for control in self.controls:
            self._by_subject.setdefault((control.scope, control.subject), []).append(control)

    def killed(self, now: datetime) -> Suspension | None:
        """The kill switch, if it is on. Then nothing is sent either."""
        if not self._by_subject:
            return None
        return self._strongest([(Scope.KILL_SWITCH, "")], now)

    def stopped(self, target: StopTarget, now: datetime) -> Suspension | None:
        """The stop that lasts longest of those that hold for the target."""
        if not self._by_subject:
            return None
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
    if target.reseller_id is not None:
        yield Scope.RESELLER, target.reseller_id
    if target.merchant_id is not None:
        yield Scope.MERCHANT, target.merchant_id
        if target.campaign_id is not None:
            yield Scope.CAMPAIGN, campaign_subject(target.merchant_id, target.campaign_id)
    if target.number_id is not None:
        yield Scope.NUMBER, str(target.number_id)
    if target.carrier is not None:
        yield Scope.CARRIER, target.carrier
