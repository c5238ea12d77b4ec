"""Formats values for people. Pure: the present time is an argument."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_STEPS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"))


def moment(value: str | datetime | None) -> datetime | None:
    """Parse a time of the API."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value)


def from_epoch(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def span(seconds: float) -> str:
    """`4 s`, `3 min`, `2 h 5 min`, `4 d 2 h`: two units are enough."""
    whole = max(0, int(seconds))
    for unit_s, unit, part_s, part in _STEPS:
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"


def money(micros: int, currency: str | None = None) -> str:
    """`0.014 USD`, from millionths."""
    units = f"{micros / 1_000_000:.6f}".rstrip("0")
    whole, _, rest = units.partition(".")
    return f"{whole}.{rest.ljust(2, '0')}" + (f" {currency}" if currency else "")


def distance(value: str | datetime | None, now: datetime) -> str:
    """`4 s ago`, `in 3 min`, `now`."""
    at = moment(value)
    if at is None:
        return "–"
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def exact(value: str | datetime | None) -> str:
    at = moment(value)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else "–"


def clock(value: str | datetime | None) -> str:
    at = moment(value)
    return f"{at.astimezone(UTC):%H:%M:%S}" if at else "–"


def precise(value: str | datetime | None) -> str:
    """With milliseconds: steps of one call are close together."""
    at = moment(value)
    return f"{at.astimezone(UTC):%H:%M:%S}.{at.microsecond // 1000:03d}" if at else "–"


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def count(value: float | int | None, most: int | None = None) -> str:
    """With thin separators of thousands; a count that stopped at `most` is marked."""
    if value is None:
        return "–"
    text = f"{value:,.0f}"
    return f"{text}+" if most is not None and value >= most else text


def percent(share: float | None) -> str:
    """With as many places as needed: 0.4 %, 12 %."""
    if share is None:
        return "–"
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def named_as(names: Mapping[str, bool], state: bool) -> str:
    """The names of a flag that have this state."""
    return ", ".join(name for name, is_on in names.items() if is_on == state)


def plain(value: Any) -> str:
    """Any value of an answer as text for a cell."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(plain(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else str(value)


def said(details: Mapping[str, Any]) -> str:
    """The details without null and empty values."""
    return plain({name: value for name, value in details.items() if value not in (None, "", {}, [])})


def short(value: str | None) -> str:
    """The end of an id: the front of a UUIDv7 is its time, which ids of one day share."""
    return f"…{value[-8:]}" if value else "–"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def natural(name: str) -> list[int | str]:
    """To sort by: agent-2 stands before agent-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


def label(word: str | None) -> str:
    """`in_doubt` and `BACKLOG` as words."""
    return word.replace("_", " ").replace("-", " ").lower() if word else "–"


_TONES = {
    "good": "answered completed active running ok done succeeded available ready idle alive created transferred free "
    "joined external",
    "busy": "dialing accepted ringing processing in_progress assigned allocated queued ramping draining scheduled "
    "existing calling starting",
    "warn": "in_doubt busy no_answer no-answer voicemail pending paused draft skipped ending unready warning "
    "early_hangup absent canceled stopping",
    "bad": "stopped dead failed unknown rejected carrier_error page urgent refused cancelled invalid_phone expired "
    "conflict no_agent none",
}
_BY_WORD = {word: tone for tone, words in _TONES.items() for word in words.split()}


def tone(word: str | None) -> str:
    """The colour of a state. The page always shows the word too, for people who cannot see the colour."""
    return _BY_WORD.get((word or "").lower(), "plain")
