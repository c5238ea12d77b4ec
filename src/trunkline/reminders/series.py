"""A series and its position, in wall time and as instants. Pure.

A wall time that does not exist, because clocks are put forward over it, rings as long after the change as it is after
the gap began: 02:30 becomes 03:30. One that exists twice, because clocks are put back, rings the first time only. Both
follow RFC 5545.

Instants only grow. Where clocks are put forward, two wall times may be one instant, or swap (02:30 rings at 03:30,
after 03:00): an occurrence that does not come after the one before it is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from trunkline.reminders import recurrence
from trunkline.reminders.recurrence import RecurrenceRule


def instant(wall: datetime, zone: str) -> datetime:
    """In UTC."""
    return wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class OccurrenceTime:
    """An occurrence: its wall time, its instant, its number in the rule."""

    wall: datetime
    at: datetime
    no: int


@dataclass(frozen=True, slots=True)
class Series:
    starts_at: datetime
    zone: str
    rule: RecurrenceRule | None

    def places(self) -> Iterator[OccurrenceTime]:
        """All of them, one after the other."""
        place = self._first()
        while place is not None:
            yield place
            place = self.after(place)

    def after(self, place: OccurrenceTime, last_at: datetime | None = None) -> OccurrenceTime | None:
        """The occurrence after this one. `last_at` is the instant that it must come after."""
        later_than = max(place.at, last_at or place.at)
        if self.rule is None:
            return None
        wall, no = recurrence.following(self.rule, place.wall), place.no + 1
        while wall is not None and self.rule.allows(wall, no):
            if (at := instant(wall, self.zone)) > later_than:
                return OccurrenceTime(wall, at, no)
            wall, no = recurrence.following(self.rule, wall), no + 1
        return None

    def first_from(self, moment: datetime, since: OccurrenceTime | None = None) -> OccurrenceTime | None:
        """The first occurrence that is not before `moment`, searched from `since` on."""
        place = since or self._first()
        while place is not None and place.at < moment:
            place = self.after(place)
        return place

    def upcoming(self, since: OccurrenceTime, limit: int) -> list[OccurrenceTime]:
        upcoming = [since]
        while len(upcoming) < limit and (place := self.after(upcoming[-1])) is not None:
            upcoming.append(place)
        return upcoming

    def _first(self) -> OccurrenceTime | None:
        wall = recurrence.first(self.rule, self.starts_at) if self.rule else self.starts_at
        if wall is None or (self.rule and not self.rule.allows(wall, 1)):
            return None
        return OccurrenceTime(wall, instant(wall, self.zone), 1)
