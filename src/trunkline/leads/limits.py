"""Counting rules: how often a person may be called, how much a merchant may do in a day. Pure.

Only calls that were placed count. A limiter that counts what it refused refills itself; here a refusal leaves no trace
in what is counted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from trunkline.leads.immutable import Frozen
from trunkline.model import PersonCalls, PersonQuestion
from trunkline.value import Value

# An exact moment would tell a tenant when another one called; a quarter of an hour does not.
ROUND_S = 900


class PersonLimit(Frozen):
    """How often one merchant may call one person."""

    max_calls: int = Field(ge=1, le=1000)
    window_h: int = Field(ge=1, le=168)
    then: Literal["defer", "finish"] = Field(
        "defer", description="What becomes of a lead over the limit: called later, or CALL_LIMIT_REACHED."
    )


class CallsPerPerson(Frozen):
    """How often one person may be called, by all tenants together."""

    max_calls: int = Field(7, ge=1, le=1000)
    window_s: int = Field(3600, ge=60, le=604_800)


def person_free_at(question: PersonQuestion, found: PersonCalls, at: datetime) -> datetime | None:
    """When the person may be called again; None is at that moment. Rounded where an exact moment would tell on another
    tenant."""
    if found.calls < question.max_calls or found.oldest_at is None:
        return None
    free_at = found.oldest_at + timedelta(seconds=question.window_s)
    if free_at <= at and found.calls <= question.max_calls:
        return None
    # Of more calls than are allowed the oldest is not enough. When the next one is, is known once these are written.
    free_at = max(free_at, at)
    return free_at if found.all_own else rounded_up(free_at)


def rounded_up(moment: datetime) -> datetime:
    seconds = math.ceil(moment.timestamp() / ROUND_S) * ROUND_S
    return datetime.fromtimestamp(seconds, UTC)


class Day(Value, frozen=True):
    """A day in some time zone: its name, its first moment, and the first of the day after."""

    name: date
    first_at: datetime
    after_at: datetime


def day_of(now: datetime, zone: str | None) -> Day:
    """The merchant's day that this moment is in."""
    clock = ZoneInfo(zone or "UTC")
    return _day(now.astimezone(clock).date(), clock)


@lru_cache(maxsize=256)
def _day(today: date, clock: ZoneInfo) -> Day:
    first_at, after_at = (
        datetime.combine(day, time(), clock).astimezone(UTC) for day in (today, today + timedelta(days=1))
    )
    return Day(today, first_at, after_at)


@dataclass(slots=True)
class Pace:
    """Starts are spaced evenly: one every `interval_s`. Without an interval only a set-back counts."""

    kind: str
    subject: str
    interval_s: float | None
    next_start_at: datetime


def start_together(paces: Sequence[Pace], earliest_at: datetime, within_s: float) -> datetime | Pace:
    """The moment at which all of these paces let a call start. If it cannot start soon after its earliest, the pace
    that stands in its way."""
    start_at = max([earliest_at, *(pace.next_start_at for pace in paces)])
    if start_at > earliest_at + timedelta(seconds=within_s):
        return max(paces, key=lambda pace: pace.next_start_at)
    return start_at


def advance(paces: Iterable[Pace], start_at: datetime) -> None:
    """A call starts then: each of its paces goes on from there."""
    for pace in paces:
        if pace.interval_s is not None:
            pace.next_start_at = start_at + timedelta(seconds=pace.interval_s)
