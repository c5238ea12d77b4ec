"""What is kept of a campaign equals what a count of its leads would say, whatever happened to them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.campaigns.maintenance import CampaignCounter

ROOT = "/api/v1/campaigns"
_COUNTED = """
SELECT status, outcome, count(*) AS leads, sum(attempt_count) AS attempts,
       count(*) FILTER (WHERE attempt_count + no_agent_count > 0) AS tried
FROM leads WHERE campaign_id = $1::uuid GROUP BY status, outcome ORDER BY status, outcome
"""
_KEPT = """
SELECT status, outcome, sum(leads)::bigint AS leads, sum(attempts)::bigint AS attempts, sum(tried)::bigint AS tried
FROM campaign_counts WHERE campaign_id = $1::uuid
GROUP BY status, outcome HAVING sum(leads) <> 0 ORDER BY status, outcome
"""
# What dialers, folds, gates, retries, corrections and deletions do to leads, many in a statement.
_STEPS = (
    "UPDATE leads SET status = 'PROCESSING', attempt_count = 1 WHERE right(phone, 1) < '6'",
    "UPDATE leads SET status = 'BACKLOG', due_at = now() + interval '1 hour' WHERE right(phone, 1) = '5'",
    # Answered, and no agent was there: it cost no attempt.
    "UPDATE leads SET status = 'BACKLOG', attempt_count = 0, no_agent_count = 1 WHERE right(phone, 1) = '4'",
    "UPDATE leads SET status = 'FINISHED', finished_at = now(), outcome = 'BUSY' WHERE right(phone, 1) < '4'",
    "UPDATE leads SET outcome = 'ANSWERED' WHERE right(phone, 1) < '2'",
    "UPDATE leads SET priority = 7",
    "DELETE FROM leads WHERE right(phone, 1) = '9'",
)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


@pytest.fixture
async def campaign(world: ApiWorld) -> dict[str, Any]:
    made = expect(await world.tenant("a1").post(ROOT, {"name": "May", "merchant_id": "a1"}), 201)
    people = [{"phone": f"+1415555010{n}"} for n in range(10)]
    expect(await world.tenant("a1", "leads").post(f"{ROOT}/{made['id']}/leads", people), 200)
    return dict(made)


async def test_the_stored_counts_of_a_campaign_equal_a_count_of_its_leads(
    world: ApiWorld, campaign: dict[str, Any]
) -> None:
    counter = CampaignCounter(world.database, fresh_min=1)
    await world.make_lead("a1", "without a campaign")
    async with world.database.connection() as conn:
        for step in _STEPS:
            await conn.execute(step)
            assert await conn.fetch(_KEPT, campaign["id"]) == await conn.fetch(_COUNTED, campaign["id"]), step
            before = await world.tenant("a1").get(f"{ROOT}/{campaign['id']}/progress")
            await counter.run_once()
            after = await world.tenant("a1").get(f"{ROOT}/{campaign['id']}/progress")
            assert after.json() | {"as_of": ""} == before.json() | {"as_of": ""}, step
    progress = expect(await world.tenant("a1").get(f"{ROOT}/{campaign['id']}/progress"), 200)
    assert (progress["leads"], progress["waiting"], progress["to_be_retried"]) == (9, 5, 2)
    assert progress["outcomes"] == {"ANSWERED": 2, "BUSY": 2}


async def test_the_count_folder_waits_for_enough_rows_and_leaves_two(
    world: ApiWorld, campaign: dict[str, Any]
) -> None:
    async with world.database.connection() as conn:
        for priority in range(1, 30):
            await conn.execute("UPDATE leads SET attempt_count = $1", priority)
        rows = "SELECT count(*) FROM campaign_counts WHERE campaign_id = $1::uuid"
        assert await conn.fetchval(rows, campaign["id"]) == 30
        assert await CampaignCounter(world.database, fresh_min=31).run_once() == 0
        assert await CampaignCounter(world.database, fresh_min=30).run_once() == 30
        assert await conn.fetchval(rows, campaign["id"]) <= 2
        assert await conn.fetch(_KEPT, campaign["id"]) == await conn.fetch(_COUNTED, campaign["id"])


async def test_a_lead_of_another_merchant_with_the_campaigns_id_is_not_counted(
    world: ApiWorld, campaign: dict[str, Any]
) -> None:
    lead = await world.make_lead("a2", "elsewhere")
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE leads SET campaign_id = $1::uuid WHERE id = $2::uuid", campaign["id"], lead["id"]
        )
    progress = expect(await world.tenant("a1").get(f"{ROOT}/{campaign['id']}/progress"), 200)
    assert progress["leads"] == 10
