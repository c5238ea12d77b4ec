"""Counting rules: how often a person may be called, how much a merchant may do in a day. Pure.

Only placed calls count. A limiter that counts what it refused refills itself; here a refusal leaves no trace in the
counts.
"""

import math
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from trunkline.leads.immutable import Frozen
from trunkline.model import PersonCalls, PersonQuestion

# An exact time would show a tenant when another one called; one rounded to 15 minutes does not.
ROUND_S = 900


class PersonLimit(Frozen):
    """How often one merchant may call one person."""

    max_calls: int = Field(ge=1, le=1000, description="The maximum of calls within the window.")
    window_h: int = Field(ge=1, le=168, description="The length of the window.")
    then: Literal["defer", "finish"] = Field(
        "defer",
        description="What happens to a lead over the limit: it is called later, or ends as "
        "CALL_LIMIT_REACHED.",
    )


class CallsPerPerson(Frozen):
    """How often one person may be called, by all tenants together."""

    max_calls: int = Field(7, ge=1, le=1000, description="The maximum of calls within the window.")
    window_s: int = Field(3600, ge=60, le=604_800, description="The length of the window.")


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


@lru_cache(maxsize=256)
def day_bounds(day: date, zone: str | None) -> tuple[datetime, datetime]:
    """Its first moment in this time zone, and that of the next day."""
    clock = ZoneInfo(zone or "UTC")
    first_at = datetime.combine(day, time(), clock)
    after_at = datetime.combine(day + timedelta(days=1), time(), clock)
    return first_at.astimezone(UTC), after_at.astimezone(UTC)
