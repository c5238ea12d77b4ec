"""Entries, numbers and matches with as little ceremony as a test can have."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from trunkline.bus import channels, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.model import Entry, Flow, Grant, NumberLimit

NUMBER = uuid4()
PAST = datetime.now(UTC) - timedelta(minutes=1)


def entry(
    *,
    version: int = 1,
    pool: str = "p",
    merchant: str = "m",
    due_at: datetime = PAST,
    lead_id: UUID | None = None,
    priority: int = 50,
    closes_at: datetime | None = None,
    next_pool: str | None = None,
    moves_after_s: float | None = None,
) -> Entry:
    flow = Flow(pool, "r", merchant)
    return Entry(lead_id or uuid4(), version, flow, due_at, priority, closes_at, next_pool, moves_after_s)


async def match(bus: Bus, most: int = 10) -> tuple[Grant, ...]:
    found = await schedule.match(bus, [uuid4() for _ in range(most)], clock_offset_ms=0)
    return found.grants


async def numbers(bus: Bus, *limits: tuple[UUID, str, int], **more: Any) -> int:
    limits_ = tuple(NumberLimit(*limit) for limit in limits)
    return await channels.configure(bus, Configuration(numbers=limits_, **more))


def again(grant: Grant) -> GiveBack:
    return GiveBack(grant.attempt_id, GrantReturn.AGAIN)
