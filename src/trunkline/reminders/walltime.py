"""From wall time to an instant. Pure.

A time that does not exist, because clocks are put forward over it, rings as long after the change as it is after the
gap began: 02:30 becomes 03:30. A time that exists twice, because clocks are put back, rings the first time only. Both
follow RFC 5545.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo


def instant(wall: datetime, zone: str) -> datetime:
    """In UTC."""
    return wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)


def exists(wall: datetime, zone: str) -> bool:
    """Whether a clock there ever shows this time."""
    return instant(wall, zone).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == wall
