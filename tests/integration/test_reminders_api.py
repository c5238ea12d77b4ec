"""Reminders through the API."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.world import ApiWorld, expect, open_api

ROOT = "/api/v1/reminders"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


def wall(in_s: float = 3600) -> str:
    return (datetime.now(UTC) + timedelta(seconds=in_s)).strftime("%Y-%m-%dT%H:%M:%S")


def body(**more: Any) -> dict[str, Any]:
    usual = {"phone": "+14155550123", "starts_at": wall(), "timezone": "UTC", "carrier": "twilio"}
    return usual | more


async def make(world: ApiWorld, status: int = 201, **more: Any) -> dict[str, Any]:
    return expect(await world.tenant("a1", "leads").post(ROOT, body(**more)), status)


async def act(
    world: ApiWorld, reminder: dict[str, Any], what: str, status: int = 200, **more: Any
) -> dict[str, Any]:
    answer = await world.tenant("a1", "leads").post(f"{ROOT}/{reminder['id']}/{what}", more)
    return expect(answer, status)


async def occurrences(world: ApiWorld, reminder: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await world.tenant("a1", "read").get(f"{ROOT}/{reminder['id']}/occurrences")
    items: list[dict[str, Any]] = expect(answer, 200)["items"]
    return items


async def upcoming(world: ApiWorld, reminder: dict[str, Any], limit: int = 3) -> list[dict[str, Any]]:
    answer = await world.tenant("a1").get(f"{ROOT}/{reminder['id']}/upcoming", {"limit": limit})
    items: list[dict[str, Any]] = expect(answer, 200)["items"]
    return items


async def lead_of(world: ApiWorld, occurrence: dict[str, Any]) -> dict[str, Any]:
    return expect(await world.tenant("a1").get(f"/api/v1/leads/{occurrence['lead_id']}"), 200)


async def test_a_reminder_in_the_future_has_no_occurrence_yet(world: ApiWorld) -> None:
    reminder = await make(world, rrule="FREQ=DAILY;COUNT=5", message="Hello")
    assert reminder["status"] == "ACTIVE"
    assert (reminder["max_attempts"], reminder["late_s"], reminder["pool"]) == (3, 900, "a1-pool")
    assert await occurrences(world, reminder) == []
    assert len(await upcoming(world, reminder, 10)) == 5


async def test_a_reminder_due_at_once_is_a_lead_when_its_request_returns(world: ApiWorld) -> None:
    reminder = await make(
        world, starts_at=wall(5), message="Hello", assistant_id="nurse", payload={"order": 1}
    )
    assert (reminder["status"], reminder["ended_reason"]) == ("ACTIVE", None), "it has yet to ring"
    [occurrence] = await occurrences(world, reminder)
    assert occurrence["state"] == "SCHEDULED"
    assert (reminder["next_wall"], reminder["next_at"]) == (occurrence["wall_at"], occurrence["scheduled_at"])
    lead = await lead_of(world, occurrence)
    assert lead["scheduled_at"] == occurrence["scheduled_at"]
    assert lead["max_attempts"] == 3
    assert lead["payload"] == {
        "order": 1,
        "message": "Hello",
        "assistant_id": "nurse",
        "reminder_id": reminder["id"],
        "occurrence_id": occurrence["id"],
    }
    assert [str(lead_id) for lead_id in world.accepted] == [occurrence["lead_id"]]


async def test_a_reminder_request_with_the_same_request_id_is_made_once(world: ApiWorld) -> None:
    at = wall()
    first = await make(world, request_id="r", starts_at=at)
    again = await make(world, 200, request_id="r", starts_at=at, phone="+1 (415) 555-0123")
    assert again["id"] == first["id"]
    assert (await make(world, 409, request_id="r", starts_at=wall(60)))["code"] == "request_id_reused"


async def test_vapi_is_the_carrier_unless_another_is_named(world: ApiWorld) -> None:
    refused = await make(world, 422, carrier=None)
    assert "vapi" in refused["fields"][0]["error"]
    async with world.database.connection() as conn:
        await conn.execute("UPDATE numbers SET carrier = 'vapi' WHERE pool_id = 'shared'")
    assert (await make(world, carrier=None))["pool"] == "shared"
    assert (await make(world, carrier=None, pool="a1-pool"))["pool"] == "a1-pool"
    refused = await make(world, 422, carrier="vapi", pool="a1-pool")
    assert refused["fields"][0]["field"] == "pool"
    assert (await make(world, 422, pool="b1-pool"))["fields"][0]["field"] == "pool"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"starts_at": "2030-05-01T09:00+02:00"}, "starts_at"),
        ({"starts_at": 1}, "starts_at"),
        ({"starts_at": "2001-01-01T00:00"}, "starts_at"),
        ({"starts_at": "9999-01-01T00:00"}, "starts_at"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"phone": "12"}, "phone"),
        ({"rrule": "FREQ=SECONDLY"}, "rrule"),
        ({"rrule": "FREQ=DAILY;COUNT=1000000"}, "rrule"),
        ({"rrule": "FREQ=DAILY;UNTIL=20200101"}, "rrule"),
        ({"rrule": "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"}, "rrule"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"windows": [{"spans": [{"start": "09:00", "end": "09:00"}]}]}, "windows.0.spans.0"),
        ({"reporting_webhook_url": "nowhere"}, "reporting_webhook_url"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_a_reminder_with_a_wrong_field_is_refused_by_that_field(
    world: ApiWorld, more: dict[str, Any], field: str
) -> None:
    refused = await make(world, 422, **more)
    assert field in [problem["field"] for problem in refused["fields"]]
    assert expect(await world.admin.get(ROOT), 200)["items"] == []


async def test_a_one_off_in_the_past_is_refused_and_a_recurring_reminder_starts_now(world: ApiWorld) -> None:
    refused = await make(world, 422, starts_at=wall(-60))
    assert "passed" in refused["fields"][0]["error"]
    reminder = await make(world, starts_at=wall(-36 * 3600), rrule="FREQ=DAILY;COUNT=3")
    assert len(await upcoming(world, reminder)) == 1, "two of three have gone by"


async def test_skip_without_a_time_skips_the_next_occurrence(world: ApiWorld) -> None:
    reminder = await make(world, rrule="FREQ=DAILY")
    one, two, three = await upcoming(world, reminder)
    assert (await act(world, reminder, "skip"))["next_wall"] == two["wall_at"]
    await act(world, reminder, "skip", wall_at=three["wall_at"])
    assert [each["skipped"] for each in await upcoming(world, reminder, 2)] == [False, True]
    assert (await act(world, reminder, "skip", 409, wall_at=three["wall_at"]))["code"] == "nothing_to_skip"
    assert (await act(world, reminder, "skip", 409, wall_at="2030-01-01T00:00:01"))[
        "code"
    ] == "nothing_to_skip"
    states = {
        each["wall_at"]: (each["state"], each["skip_reason"]) for each in await occurrences(world, reminder)
    }
    assert states == {one["wall_at"]: ("SKIPPED", "asked"), three["wall_at"]: ("SKIPPED", "asked")}


async def test_skipping_a_scheduled_occurrence_aborts_its_lead(world: ApiWorld) -> None:
    reminder = await make(world, starts_at=wall(30), rrule="FREQ=DAILY")
    [waiting] = await occurrences(world, reminder)
    await act(world, reminder, "skip", wall_at=waiting["wall_at"])
    [skipped] = await occurrences(world, reminder)
    assert (skipped["state"], skipped["skip_reason"]) == ("SKIPPED", "asked")
    assert (await lead_of(world, skipped))["outcome"] == "ABORTED"


async def be_called(world: ApiWorld, occurrence: dict[str, Any]) -> None:
    """Its intent is committed."""
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE leads SET status = 'PROCESSING' WHERE id = $1", UUID(occurrence["lead_id"])
        )


async def made_for_today(world: ApiWorld, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A reminder whose next occurrence is a lead. It waits for an hour, however slow the machine is."""
    reminder = await make(world, starts_at=wall(60), **more)
    [today] = await occurrences(world, reminder)
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE leads SET due_at = due_at + interval '1 hour' WHERE id = $1", UUID(today["lead_id"])
        )
    return reminder, today


async def test_upcoming_begins_with_the_scheduled_occurrence(world: ApiWorld) -> None:
    reminder, today = await made_for_today(world, rrule="FREQ=DAILY")
    shown = await upcoming(world, reminder)
    assert [each["lead_id"] for each in shown] == [today["lead_id"], None, None]
    assert shown[0]["wall_at"] == today["wall_at"]
    assert shown[0]["at"] == (await lead_of(world, today))["due_at"]
    assert [each["at"] for each in shown] == sorted(each["at"] for each in shown)
    read = expect(await world.tenant("a1").get(f"{ROOT}/{reminder['id']}"), 200)
    assert read["next_wall"] == today["wall_at"]
    [listed] = expect(await world.tenant("a1").get(ROOT), 200)["items"]
    assert listed == read
    await be_called(world, today)
    assert [each["lead_id"] for each in await upcoming(world, reminder)] == [None, None, None]


async def test_skip_aborts_the_occurrence_that_is_about_to_ring(world: ApiWorld) -> None:
    reminder, today = await made_for_today(world, rrule="FREQ=DAILY")
    _, tomorrow, _ = await upcoming(world, reminder)
    assert (await act(world, reminder, "skip"))["next_wall"] == tomorrow["wall_at"]
    [skipped] = await occurrences(world, reminder)
    assert (skipped["wall_at"], skipped["state"], skipped["skip_reason"]) == (
        today["wall_at"],
        "SKIPPED",
        "asked",
    )
    assert (await lead_of(world, skipped))["outcome"] == "ABORTED"


async def test_skip_leaves_an_occurrence_that_is_being_called(world: ApiWorld) -> None:
    reminder, today = await made_for_today(world, rrule="FREQ=DAILY")
    _, tomorrow, _ = await upcoming(world, reminder)
    await be_called(world, today)
    await act(world, reminder, "skip")
    states = {each["wall_at"]: each["state"] for each in await occurrences(world, reminder)}
    assert states == {today["wall_at"]: "SCHEDULED", tomorrow["wall_at"]: "SKIPPED"}


async def test_next_makes_the_scheduled_occurrence_due_now_and_adds_none(world: ApiWorld) -> None:
    reminder, today = await made_for_today(world, rrule="FREQ=DAILY")
    for _ in range(2):
        await act(world, reminder, "next")
        assert [each["id"] for each in await occurrences(world, reminder)] == [today["id"]]
    lead = await lead_of(world, today)
    assert datetime.fromisoformat(lead["due_at"]) <= datetime.now(UTC)
    assert world.accepted.count(UUID(today["lead_id"])) == 3
    await be_called(world, today)
    await act(world, reminder, "next")
    assert len(await occurrences(world, reminder)) == 2, "tomorrow's, in the place of its own time"


async def test_a_one_off_with_a_scheduled_lead_can_be_paused_skipped_and_cancelled(world: ApiWorld) -> None:
    paused, _ = await made_for_today(world)
    assert (await act(world, paused, "pause"))["status"] == "PAUSED"
    [occurrence] = await occurrences(world, paused)
    assert (occurrence["state"], occurrence["skip_reason"]) == ("SKIPPED", "paused")
    assert (await act(world, paused, "resume"))["status"] == "ENDED", "nothing of it is left"
    skipped, _ = await made_for_today(world)
    assert (await act(world, skipped, "skip"))["status"] == "ENDED"
    cancelled, _ = await made_for_today(world)
    answer = expect(await world.tenant("a1", "leads").delete(f"{ROOT}/{cancelled['id']}"), 200)
    assert (answer["status"], answer["ended_reason"]) == ("ENDED", "cancelled")
    assert (await act(world, cancelled, "pause", 409))["code"] == "not_active"


async def test_next_rings_the_next_occurrence_now(world: ApiWorld) -> None:
    reminder = await make(world, rrule="FREQ=DAILY")
    one, two, _ = await upcoming(world, reminder)
    assert (await act(world, reminder, "next"))["next_wall"] == one["wall_at"]
    assert [each["wall_at"] for each in await upcoming(world, reminder, 2)] == [
        one["wall_at"],
        two["wall_at"],
    ]
    [occurrence] = await occurrences(world, reminder)
    assert occurrence["wall_at"] == one["wall_at"]
    assert occurrence["scheduled_at"] < one["at"]
    assert occurrence["lead_id"] in map(str, world.accepted)


async def test_a_pause_skips_scheduled_occurrences_and_a_resume_makes_up_none(world: ApiWorld) -> None:
    reminder = await make(world, starts_at=wall(30), rrule="FREQ=DAILY")
    paused = await act(world, reminder, "pause")
    assert (paused["status"], paused["next_at"]) == ("PAUSED", None)
    [skipped] = await occurrences(world, reminder)
    assert (skipped["state"], skipped["skip_reason"]) == ("SKIPPED", "paused")
    assert await upcoming(world, reminder) == []
    await act(world, reminder, "pause")
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE reminders SET next_wall = next_wall - interval '5 days', starts_at = starts_at - interval '6 days'"
        )
    resumed = await act(world, reminder, "resume")
    assert resumed["status"] == "ACTIVE"
    assert datetime.fromisoformat(resumed["next_at"]) > datetime.now(UTC)
    assert len(await occurrences(world, reminder)) <= 2
    await act(world, reminder, "resume")


async def test_a_cancelled_reminder_stays_ended(world: ApiWorld) -> None:
    reminder = await make(world, starts_at=wall(30), rrule="FREQ=DAILY")
    path = f"{ROOT}/{reminder['id']}"
    for _ in range(2):
        ended = expect(await world.tenant("a1", "leads").delete(path), 200)
        assert (ended["status"], ended["ended_reason"], ended["next_at"]) == ("ENDED", "cancelled", None)
    [skipped] = await occurrences(world, reminder)
    assert skipped["skip_reason"] == "cancelled"
    for what in ("pause", "resume", "next"):
        assert (await act(world, reminder, what, 409))["code"] == "not_active"


async def test_a_changed_reminder_applies_from_its_next_occurrence(world: ApiWorld) -> None:
    reminder = await make(world, rrule="FREQ=DAILY", message="old")
    path = f"{ROOT}/{reminder['id']}"
    changed = expect(await world.tenant("a1").patch(path, {"message": "new", "late_minutes": 1}), 200)
    assert (changed["message"], changed["late_s"], changed["rrule"]) == ("new", 60, "FREQ=DAILY")
    await act(world, reminder, "next")
    [occurrence] = await occurrences(world, reminder)
    assert (await lead_of(world, occurrence))["payload"]["message"] == "new"


async def test_a_reminders_own_windows_defer_its_call_until_they_open(world: ApiWorld) -> None:
    hour = (datetime.now(UTC) + timedelta(hours=2)).strftime("%H:00")
    later = (datetime.now(UTC) + timedelta(hours=3)).strftime("%H:00")
    reminder = await make(world, starts_at=wall(30), windows=[{"spans": [{"start": hour, "end": later}]}])
    [occurrence] = await occurrences(world, reminder)
    lead = await lead_of(world, occurrence)
    assert lead["due_at"][11:16] == hour
    assert lead["campaign_id"] == reminder["id"], "the dial finds the windows under it"


async def test_an_occurrence_for_a_phone_on_a_do_not_call_list_fails(world: ApiWorld) -> None:
    expect(await world.admin.post("/api/v1/do-not-call", {"phone": "+14155550123", "merchant_id": "a1"}), 201)
    reminder = await make(world, starts_at=wall(30))
    [failed] = await occurrences(world, reminder)
    assert (failed["state"], failed["lead_id"]) == ("FAILED", None)
    assert "do-not-call list" in failed["last_error"]


async def test_reminders_are_listed_in_pages_and_filtered(world: ApiWorld) -> None:
    made = [await make(world, rrule="FREQ=DAILY") for _ in range(3)]
    await act(world, made[0], "pause")
    page = expect(await world.tenant("a").get(ROOT, {"limit": 2}), 200)
    rest = expect(await world.tenant("a").get(ROOT, {"limit": 2, "cursor": page["next_cursor"]}), 200)
    assert [each["id"] for each in page["items"] + rest["items"]] == [each["id"] for each in reversed(made)]
    paused = expect(await world.tenant("a").get(ROOT, {"status": "PAUSED"}), 200)["items"]
    assert [each["id"] for each in paused] == [made[0]["id"]]
    assert expect(await world.tenant("b").get(ROOT), 200)["items"] == []
