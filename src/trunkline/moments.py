"""Dates that somebody else wrote, read at the door.

Carriers, language models and frameworks write dates that no call can have: year 1 is the "no date" of some languages,
year 9999 their "never". Near the ends of the calendar such a date cannot even be moved to UTC, and neither Postgres'
driver nor our own arithmetic takes it. What lies outside of these two centuries is no date.
"""

from datetime import UTC, datetime, tzinfo

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)


def read_moment(text: object, zone: tzinfo | None = None) -> datetime | None:
    """A date and time in ISO form, in UTC. One without its zone is of `zone`; without that it could be any of two dozen
    moments, and is none."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return moment.astimezone(UTC) if is_usable(moment) else None


def is_usable(moment: datetime) -> bool:
    return moment.tzinfo is not None and EARLIEST <= moment < LATEST


def has_utc(moment: datetime) -> bool:
    """Whether it can be moved to UTC at all. For those who may mean "never" by the end of the calendar."""
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return False
    return True
