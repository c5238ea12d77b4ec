"""Windows around the changes of every zone's clock, judged by trying every quarter of an hour."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from trunkline.leads.windows import TimeSpan, Window, WindowRule, is_open, next_opening

ZONES = sorted(available_timezones())
QUARTER = timedelta(minutes=15)
HALF_DAY = timedelta(hours=12)
# One by day, one over midnight, one that lies where clocks are usually changed.
WINDOWS = (("08:00", "21:00"), ("22:00", "06:00"), ("01:30", "03:15"))


def changes(zone: str) -> list[datetime]:
    """The instants of 2026 at which a clock there is changed, to the quarter of an hour."""
    clock, found, at = ZoneInfo(zone), [], datetime(2026, 1, 1, tzinfo=UTC)
    while at.year == 2026:
        before = at.astimezone(clock).utcoffset()
        if before != (at + HALF_DAY).astimezone(clock).utcoffset():
            found.append(
                next(
                    at + n * QUARTER
                    for n in range(49)
                    if (at + n * QUARTER).astimezone(clock).utcoffset() != before
                )
            )
        at += HALF_DAY
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_clock_change_the_next_opening_equals_that_found_by_trying(zone: str) -> None:
    for change in changes(zone):
        for start, end in WINDOWS:
            rules = (WindowRule(Window(spans=(TimeSpan(start=start, end=end),)), (zone,)),)
            tried = [change + n * QUARTER for n in range(-8, 9)]
            for at in tried[::4]:
                opening = next_opening(rules, at)
                assert opening is not None
                first = next(at + n * QUARTER for n in range(200) if is_open(rules, at + n * QUARTER))
                assert first - QUARTER < opening.opens_at <= first, (zone, at, start)
                assert is_open(rules, opening.opens_at)
                wall = opening.opens_at.astimezone(ZoneInfo(zone)).strftime("%H:%M")
                inside = start <= wall < end if start < end else wall >= start or wall < end
                assert inside, "whatever the clock does, it shows a time of the window"
