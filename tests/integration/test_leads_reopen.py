"""Finished leads that a user reopens: checked anew, counted, reported, and never past what forbids a call."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.api.routes import leads_reopen
from trunkline.dispatch.checker import Resolution
from trunkline.model import new_id

LEADS = "/api/v1/leads"
REOPEN = f"{LEADS}/reopen"
ORDER = {"reason": "agents were away", "request_id": "order-1"}
END = """
UPDATE leads SET status = 'FINISHED', outcome = $2, outcome_reason = $3, finished_at = $4, version = version + 1,
       attempt_count = $5, carrier_error_count = 2, no_agent_count = 2
WHERE id = $1
"""
DIAL = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer, state, holds_channel, next_check_at)
SELECT $1, l.id, 1, l.reseller_id, l.merchant_id, $3, 1, 'twilio', 'default', l.phone, '+14155550100', 'test', $4,
       $4 = 'unknown', CASE WHEN $4 = 'unknown' THEN now() + interval '1 hour' END
FROM leads AS l WHERE l.id = $2
"""


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def execute(world: ApiWorld, statement: str, *values: object) -> None:
    async with world.database.connection() as connection:
        await connection.execute(statement, *values)


async def rows(world: ApiWorld, statement: str, *values: object) -> list[dict[str, Any]]:
    async with world.database.connection() as connection:
        return [dict(row) for row in await connection.fetch(statement, *values)]


async def ended(
    world: ApiWorld,
    request_id: str = "r1",
    outcome: str = "NO_AGENT",
    *,
    merchant: str = "a1",
    reason: str | None = None,
    ago: timedelta = timedelta(minutes=1),
    attempts: int = 1,
    **more: object,
) -> str:
    lead = await world.make_lead(merchant, request_id, **more)
    at = datetime.now(UTC) - ago
    await execute(world, END, UUID(lead["id"]), outcome, reason, at, attempts)
    return str(lead["id"])


async def attempt(world: ApiWorld, lead_id: str, state: str) -> UUID:
    attempt_id = new_id()
    await execute(world, DIAL, attempt_id, UUID(lead_id), new_id(), state)
    return attempt_id


async def reopen(world: ApiWorld, lead_id: str, status: int = 200, **more: object) -> dict[str, Any]:
    answer = await world.tenant("a1", "leads").post(f"{LEADS}/{lead_id}/reopen", ORDER | more)
    return expect(answer, status)


async def put_policy(world: ApiWorld, policy: dict[str, Any]) -> None:
    answer = await world.admin.request("PUT", "/api/v1/merchants/a1/policy", json=policy)
    assert answer.status == 200, answer.json()


async def test_a_reopened_lead_waits_again_with_its_count_and_history(world: ApiWorld) -> None:
    lead_id = await ended(world, outcome="NO_AGENT", reason="x", max_attempts=3, attempts=1)
    before = expect(await world.admin.get(f"{LEADS}/{lead_id}"), 200)
    lead = await reopen(world, lead_id)
    assert (lead["status"], lead["outcome"], lead["finished_at"]) == ("BACKLOG", None, None)
    assert (lead["reopen_count"], lead["attempt_count"], lead["max_attempts"]) == (1, 1, 3)
    assert lead["no_agent_count"] == 0
    assert lead["version"] > before["version"]
    assert UUID(lead_id) in world.accepted, "the schedule hears of it at once"
    [order] = await rows(world, "SELECT * FROM lead_reopenings")
    assert (order["no"], order["outcome"], order["outcome_reason"]) == (1, "NO_AGENT", "x")
    assert order["finished_at"] == datetime.fromisoformat(before["finished_at"])
    [line] = await rows(world, "SELECT * FROM audit_log WHERE action = 'lead.reopened'")
    assert (line["subject"], line["reason"]) == (lead_id, "agents were away")


async def test_the_same_reopen_request_id_reopens_a_lead_once(world: ApiWorld) -> None:
    lead_id = await ended(world)
    await reopen(world, lead_id)
    assert (await reopen(world, lead_id))["reopen_count"] == 1
    await execute(world, END, UUID(lead_id), "ANSWERED", None, datetime.now(UTC), 2)
    repeated = await reopen(world, lead_id)
    assert (repeated["status"], repeated["outcome"], repeated["reopen_count"]) == ("FINISHED", "ANSWERED", 1)
    assert (await reopen(world, lead_id, request_id="order-2"))["reopen_count"] == 2


async def test_concurrent_reopen_requests_reopen_a_lead_once(world: ApiWorld) -> None:
    lead_id = await ended(world)
    client = world.tenant("a1", "leads")
    answers = await asyncio.gather(
        *(
            client.post(f"{LEADS}/{lead_id}/reopen", ORDER | {"request_id": f"order-{each}"})
            for each in range(4)
        )
    )
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
    assert {answer.json()["code"] for answer in answers if answer.status == 409} == {"not_finished"}


async def test_a_lead_that_waits_or_is_called_is_not_reopened(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    assert (await reopen(world, lead["id"], 409))["code"] == "not_finished"
    lead_id = await ended(world, "r2", "ABORTED")
    await attempt(world, lead_id, "answered")
    assert (await reopen(world, lead_id, 409))["code"] == "being_called"


async def test_a_reopened_lead_keeps_its_attempt_count_up_to_the_cap(world: ApiWorld) -> None:
    spent = await ended(world, "r1", "NO_ANSWER", attempts=3, max_attempts=3)
    assert (await reopen(world, spent))["max_attempts"] == 4, "one more than it had"
    more = await ended(world, "r2", "NO_ANSWER", attempts=3, max_attempts=3, phone="+14155550124")
    assert (await reopen(world, more, max_attempts=6))["max_attempts"] == 6
    over = await ended(world, "r3", "NO_ANSWER", attempts=20, max_attempts=20, phone="+14155550125")
    assert (await reopen(world, over, 409))["code"] == "attempts_used_up"
    assert (await reopen(world, over, 422, max_attempts=21))["fields"][0]["field"] == "max_attempts"


async def test_a_reopening_checks_lists_windows_and_destinations_again(world: ApiWorld) -> None:
    listed = await ended(world, "r1")
    expect(await world.admin.post("/api/v1/do-not-call", {"phone": "+14155550123", "merchant_id": "a1"}), 201)
    assert (await reopen(world, listed, 403))["code"] == "do_not_call"
    closed = await ended(world, "r2", phone="+14155550124")
    today = datetime.now(UTC).date().isoformat()
    window = {"spans": [{"start": "09:00", "end": "10:00"}], "closed_on": [today], "timezone": "UTC"}
    await put_policy(world, {"windows": [window]})
    lead = await reopen(world, closed)
    assert datetime.fromisoformat(lead["due_at"]).hour == 9
    assert datetime.fromisoformat(lead["due_at"]) > datetime.now(UTC)
    barred = await ended(world, "r3", phone="+14155550125", scheduled_at="2030-01-01T00:00:00Z")
    await put_policy(world, {"destinations": {"allow": ["+44"]}})
    assert (await reopen(world, barred, 409))["code"] == "not_permitted"


async def test_a_reopening_past_the_leads_expiry_is_refused(world: ApiWorld) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    lead_id = await ended(world, expires_at=later.isoformat())
    at = (later + timedelta(minutes=1)).isoformat()
    assert (await reopen(world, lead_id, 409, scheduled_at=at))["code"] == "expired"
    await execute(world, "UPDATE leads SET expires_at = now() WHERE id = $1", UUID(lead_id))
    assert (await reopen(world, lead_id, 409))["code"] == "expired"


async def test_a_lead_of_a_stopped_campaign_stays_finished(world: ApiWorld) -> None:
    made = await world.admin.post("/api/v1/campaigns", {"name": "Renewals", "merchant_id": "a1"})
    campaign_id = expect(made, 201)["id"]
    lead_id = await ended(world, campaign_id=campaign_id)
    await execute(world, "UPDATE campaigns SET status = 'STOPPED' WHERE id = $1", UUID(campaign_id))
    assert (await reopen(world, lead_id, 409))["code"] == "campaign_stopped"


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [("settled", 200, None), ("found", 409, "call_found"), ("unknown", 409, "call_unknown")],
)
async def test_an_unknown_lead_is_reopened_only_after_its_carrier_was_asked(
    database_url: str, said: Resolution, status: int, code: str | None
) -> None:
    asked: list[UUID] = []

    async def resolve(attempt_id: UUID) -> Resolution:
        asked.append(attempt_id)
        if said == "settled":
            await execute(
                asking,
                "UPDATE attempts SET state = 'absent', holds_channel = false, next_check_at = NULL WHERE id = $1",
                attempt_id,
            )
        return said

    async with open_api(database_url, resolve_unknown=resolve) as asking:
        lead_id = await ended(asking, outcome="UNKNOWN")
        attempt_id = await attempt(asking, lead_id, "unknown")
        answer = await reopen(asking, lead_id, status)
        assert asked == [attempt_id]
        assert answer.get("code") == code


async def test_an_unknown_lead_whose_carrier_cannot_be_asked_is_not_reopened(world: ApiWorld) -> None:
    lead_id = await ended(world, outcome="UNKNOWN")
    await attempt(world, lead_id, "unknown")
    assert (await reopen(world, lead_id, 409))["code"] == "call_unknown"


async def test_an_unknown_lead_without_an_attempt_is_not_reopened(world: ApiWorld) -> None:
    """As a restored database leaves it: a call may have been placed that it does not know."""
    assert (await reopen(world, await ended(world, outcome="UNKNOWN"), 409))["code"] == "call_unknown"


async def test_a_tenant_reopens_its_own_alone(world: ApiWorld) -> None:
    theirs = await ended(world, merchant="b1")
    assert (await reopen(world, theirs, 404))["code"] == "not_found"
    body = ORDER | {"outcomes": ["NO_AGENT"], "finished_since": "2020-01-01T00:00:00Z"}
    done = expect(await world.tenant("a").post(REOPEN, body), 200)
    assert (done["matched"], done["reopened"]) == (0, 0)
    named = expect(await world.tenant("a").post(REOPEN, ORDER | {"lead_ids": [theirs]}), 200)
    assert named["results"] == [{"id": theirs, "result": "not_found"}]


async def test_leads_are_reopened_by_outcome_and_time_over_pages(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leads_reopen, "PAGE", 2)
    nine = datetime.now(UTC) - timedelta(hours=1)
    wanted = [await ended(world, f"w{n}", phone=f"+1415555{n:04d}") for n in range(200, 205)]
    await ended(world, "answered", "ANSWERED", phone="+14155550301")
    await ended(world, "early", ago=timedelta(hours=2), phone="+14155550302")
    await ended(world, "other", merchant="b1")
    body = ORDER | {"outcomes": ["NO_AGENT"], "finished_since": nine.isoformat(), "merchant_id": "a1"}
    counted = expect(await world.admin.post(REOPEN, body | {"dry_run": True}), 200)
    assert (counted["matched"], counted["reopened"]) == (5, 0)
    done = expect(await world.admin.post(REOPEN, body), 200)
    assert (done["reopened"], done["complete"], done["refused"]) == (5, True, {})
    waiting = await rows(world, "SELECT id FROM leads WHERE status = 'BACKLOG'")
    assert {str(row["id"]) for row in waiting} == set(wanted)
    # They end again in the same way: the same order does not fit them any more, another one does.
    for lead_id in wanted:
        await execute(world, END, UUID(lead_id), "NO_AGENT", None, datetime.now(UTC), 1)
    assert expect(await world.admin.post(REOPEN, body), 200)["reopened"] == 0
    again = expect(await world.admin.post(REOPEN, body | {"request_id": "order-2"}), 200)
    assert again["reopened"] == 5


async def test_a_bulk_reopening_counts_refused_leads_and_reopens_the_others(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leads_reopen, "PAGE", 1)
    for n in range(3):
        await ended(world, f"w{n}", phone=f"+1415555020{n}")
    await world.admin.post("/api/v1/do-not-call", {"phone": "+14155550200", "merchant_id": "a1"})
    body = ORDER | {"outcomes": ["NO_AGENT"], "finished_since": "2020-01-01T00:00:00Z"}
    done = expect(await world.admin.post(REOPEN, body), 200)
    assert (done["matched"], done["reopened"], done["refused"]) == (3, 2, {"do_not_call": 1})


async def test_a_filter_without_outcome_and_moment_is_refused(world: ApiWorld) -> None:
    for body in (
        {},
        {"merchant_id": "a1"},
        {"outcomes": ["NO_AGENT"]},
        {"lead_ids": [str(new_id())], "phone": "+1"},
    ):
        assert (await world.admin.post(REOPEN, ORDER | body)).status == 422


async def test_a_reopened_lead_of_a_campaign_counts_as_tried(world: ApiWorld) -> None:
    made = await world.admin.post("/api/v1/campaigns", {"name": "Renewals", "merchant_id": "a1"})
    campaign_id = expect(made, 201)["id"]
    lead_id = await ended(world, campaign_id=campaign_id, attempts=0)
    await reopen(world, lead_id)
    progress = expect(await world.admin.get(f"/api/v1/campaigns/{campaign_id}/progress"), 200)
    assert (progress["waiting"], progress["to_be_retried"], progress["finished"]) == (1, 1, 0)


async def test_the_timeline_shows_every_end_and_every_reopening_once(world: ApiWorld) -> None:
    lead_id = await ended(world, outcome="NO_AGENT")
    await execute(
        world, "UPDATE leads SET created_at = created_at - interval '1 hour' WHERE id = $1", UUID(lead_id)
    )
    await reopen(world, lead_id)
    await execute(world, END, UUID(lead_id), "ANSWERED", None, datetime.now(UTC), 2)
    story = expect(await world.admin.get(f"{LEADS}/{lead_id}"), 200)["timeline"]
    told = [(each["what"], each["reason"]) for each in story]
    assert told == [
        ("created", None),
        ("finished", "NO_AGENT"),
        ("reopened", "agents were away"),
        ("finished", "ANSWERED"),
    ]
    assert story[2]["actor"].startswith("key:")


async def test_a_reopening_takes_an_earlier_cancellation_back(world: ApiWorld) -> None:
    """The lead had been cancelled; the reopening takes that back."""
    lead_id = await ended(world, outcome="ABORTED")
    await execute(
        world,
        "UPDATE leads SET cancel_requested_at = now(), cancel_reason = 'x' WHERE id = $1",
        UUID(lead_id),
    )
    lead = await reopen(world, lead_id)
    assert (lead["cancel_requested_at"], lead["cancel_reason"]) == (None, None)
