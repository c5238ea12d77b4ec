"""The timeline of a lead that was really called: each step once, in the order of its call, both clocks told apart."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.leads.timeline import in_order
from trunkline.store import leads
from trunkline.store.leads import StoredTimelineEvent

STEPS = ["intended", "accepted", "ringing", "answered", "ended"]


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def timeline(stage: Stage, lead: UUID) -> list[StoredTimelineEvent]:
    async with stage.database.connection() as conn:
        return in_order(await leads.timeline(conn, lead, limit=1000))


async def test_the_timeline_shows_every_step_of_a_call_once(stage: Stage) -> None:
    """Of each step after the request there are two sources: the attempt's own facts, and the carrier's webhook."""
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    for kind in ("ended", "ringing", "answered"):
        await stage.told(attempt, kind, duration_s=5)
    seen = await timeline(stage, lead)
    assert [each.what for each in seen] == ["created", *STEPS, "finished"]
    assert {each.attempt_id for each in seen[1:-1]} == {attempt}
    told = {each.what: (each.clock, each.carrier_at is not None) for each in seen[1:-1]}
    assert told == {
        "intended": ("ours", False),
        "accepted": ("ours", False),
        "ringing": ("ours", True),
        "answered": ("ours", True),
        "ended": ("ours", True),
    }


async def test_without_the_calls_events_the_timeline_names_the_carriers_clock(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.told(attempt, "ringing", "answered", "ended", duration_s=5)
    await stage.dialing.run("DELETE FROM mailbox_events")
    # Whole seconds, and before the request by our clock.
    await stage.dialing.run(
        "UPDATE attempts SET ringing_at = date_trunc('second', intent_at), ended_at = date_trunc('second', intent_at),"
        " answered_at = date_trunc('second', intent_at)"
    )
    seen = await timeline(stage, lead)
    assert [each.what for each in seen] == ["created", *STEPS, "finished"]
    assert [each.clock for each in seen[3:6]] == ["carrier"] * 3
