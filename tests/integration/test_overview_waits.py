"""The overview tells of each queue for what it waits, apart from how late calls are."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def queue(world: ApiWorld) -> dict[str, Any]:
    (found,) = expect(await world.tenant("a1").get("/api/v1/overview"), 200)["queues"]
    return {"waits_for": found["waits_for"], "waits_until": found["waits_until"]}


async def test_a_queue_says_for_what_it_waits_and_until_when(world: ApiWorld) -> None:
    await world.make_lead("a1")

    async def run(sql: str, *args: object) -> None:
        async with world.database.connection() as conn:
            await conn.execute(sql, *args)

    await run("UPDATE leads SET due_at = now() - interval '1 minute' WHERE merchant_id = 'a1'")
    assert await queue(world) == {"waits_for": "turn", "waits_until": None}
    ends_at = datetime(2031, 5, 1, 9, 30, tzinfo=UTC)
    await run(
        "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ends_at, ramp_s)"
        " VALUES ('merchant', 'a1', 'platform', 'x', 'x', $1, 0)",
        ends_at,
    )
    assert await queue(world) == {"waits_for": "stopped", "waits_until": "2031-05-01T09:30:00Z"}
    await run("DELETE FROM controls")
    await run(
        "INSERT INTO decisions (lead_id, reason, merchant_id, subject, until)"
        " SELECT id, 'limit', 'a1', 'attempts_per_day', $1 FROM leads WHERE merchant_id = 'a1'",
        ends_at,
    )
    assert await queue(world) == {"waits_for": "limit", "waits_until": "2031-05-01T09:30:00Z"}
    await run("UPDATE numbers SET status = 'disabled'")
    assert (await queue(world))["waits_for"] == "no_number"
    await run("UPDATE leads SET due_at = now() + interval '1 minute' WHERE merchant_id = 'a1'")
    assert (await queue(world))["waits_for"] is None, "nothing is due"
