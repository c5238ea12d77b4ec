"""Counting rules: how often a person may be called, how much a merchant may do in a day. Pure.

Only placed calls count. A limiter that counts what it refused refills itself; here a refusal leaves no trace in the
counts.
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

# An exact time would show a tenant when another one called; one rounded to 15 minutes does not.
ROUND_S = 900


class PersonLimit(Frozen):
    """How often one merchant may call one person."""

    max_calls: int = Field(ge=1, le=1000)
    window_h: int = Field(ge=1, le=168)
    then: Literal["defer", "finish"] = Field(
        "defer",
        description="What happens to a lead over the limit: it is called later, or ends as "
        "CALL_LIMIT_REACHED.",
    )


class CallsPerPerson(Frozen):
    """How often one person may be called, by all tenants together."""

    max_calls: int = Field(7, ge=1, le=1000)
    window_s: int = Field(3600, ge=60, le=604_800)


def person_free_at(question: PersonQuestion, history: PersonCalls, at: datetime) -> datetime | None:
    """When the person may be called again; None means at `at`. Rounded where an exact time would show another tenant's
    call."""
    if history.calls < question.max_calls or history.oldest_at is None:
        return None
    free_at = history.oldest_at + timedelta(seconds=question.window_s)
    if free_at <= at and history.calls <= question.max_calls:
        return None
    # With more calls than allowed the oldest is not enough. When the next one expires is counted at the next try.
    free_at = max(free_at, at)
    return free_at if history.all_own else rounded_up(free_at)


def rounded_up(moment: datetime) -> datetime:
    seconds = math.ceil(moment.timestamp() / ROUND_S) * ROUND_S
    return datetime.fromtimestamp(seconds, UTC)


class Day(Value, frozen=True):
    """A day in some time zone: its name, its first moment, and the first of the next day."""

    name: date
    first_at: datetime
    after_at: datetime


def day_of(now: datetime, zone: str | None) -> Day:
    """The merchant's day at this time."""
    clock = ZoneInfo(zone or "UTC")
    return _day(now.astimezone(clock).date(), clock)


@lru_cache(maxsize=256)
def _day(today: date, clock: ZoneInfo) -> Day:
    first_at = datetime.combine(today, time(), clock)
    after_at = datetime.combine(today + timedelta(days=1), time(), clock)
    return Day(today, first_at.astimezone(UTC), after_at.astimezone(UTC))


@dataclass(slots=True)
class Pace:
    """Starts are spaced evenly: one every `interval_s`. Without an interval only a throttling by the carrier counts."""

    kind: str
    subject: str
    interval_s: float | None
    next_start_at: datetime


def start_together(paces: Sequence[Pace], earliest_at: datetime, within_s: float) -> datetime | Pace:
    """The time at which all of these paces let a call start. If it cannot start soon after its earliest, the pace that
    delays it most."""
    start_at = earliest_at
    for pace in paces:
        start_at = max(start_at, pace.next_start_at)
    if start_at > earliest_at + timedelta(seconds=within_s):
        return max(paces, key=lambda pace: pace.next_start_at)
    return start_at


def advance(paces: Iterable[Pace], start_at: datetime) -> None:
    """A call starts then: each of its paces continues from there."""
    for pace in paces:
        if pace.interval_s is not None:
            pace.next_start_at = start_at + timedelta(seconds=pace.interval_s)
