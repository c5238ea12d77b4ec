"""Parses dates of other systems.

Carriers, language models and frameworks send dates that no call can have: year 1 is the "no date" of some languages,
year 9999 their "never". Near the ends of the calendar such a date cannot even be converted to UTC, and neither
Postgres' driver nor date arithmetic accepts it. A date before 1970 or after 2199 counts as none.
"""

from datetime import UTC, datetime, tzinfo

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)


def read_moment(text: object, zone: tzinfo | None = None) -> datetime | None:
    """A date and time in ISO form, in UTC. Without an offset it is in `zone`; without that it is ambiguous, and
    None."""
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
