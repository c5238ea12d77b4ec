"""Changing leads: under their lock, with a new version, and only while they are not being called."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.api.routes import lead_edits
from trunkline.model import new_id
from trunkline.store import mailboxes
from trunkline.store.mailboxes import NewEvent

LEADS = "/api/v1/leads"
ABORT = f"{LEADS}/abort"
START = "UPDATE leads SET status = 'PROCESSING', attempt_count = attempt_count + 1, version = version + 1 WHERE id = $1"
FINISH = """
UPDATE leads SET status = 'FINISHED', outcome = 'ANSWERED', finished_at = now(), version = version + 1 WHERE id = $1
"""
DIAL = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer, state)
VALUES ($1, $2, 1, 'a', 'a1', $3, 1, 'twilio', 'default', '+14155550123', '+14155550100', 'test', 'ringing')
"""


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def execute(world: ApiWorld, statement: str, *values: object) -> None:
    async with world.database.connection() as connection:
        await connection.execute(statement, *values)


async def call(world: ApiWorld, lead_id: str) -> UUID:
    """As the intent leaves a lead: being called, with a live attempt."""
    attempt_id = new_id()
    await execute(world, START, UUID(lead_id))
    await execute(world, DIAL, attempt_id, UUID(lead_id), new_id())
    return attempt_id


async def hang_up_at(world: ApiWorld, attempt_id: UUID) -> datetime | None:
    async with world.database.connection() as connection:
        found: datetime | None = await connection.fetchval(
            "SELECT hang_up_at FROM attempts WHERE id = $1", attempt_id
        )
        return found


async def test_each_editable_field_of_a_lead_changes_alone(world: ApiWorld) -> None:
    lead = await world.make_lead("a1", payload={"a": 1})
    changes: dict[str, Any] = {
        "priority": 7,
        "pool": "shared",
        "payload": {"b": 2},
        "max_attempts": 5,
        "reporting_webhook_url": "https://acme.example/hook",
    }
    for nth, (name, value) in enumerate(changes.items()):
        changed = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", {name: value}), 200)
        assert (changed[name], changed["version"]) == (value, nth + 2)
        assert {n for n in lead if changed[n] != lead[n]} == {name, "version", "updated_at"}
        lead = changed
    emptied = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", {"reporting_webhook_url": None}), 200)
    assert emptied["reporting_webhook_url"] is None
    assert [str(each) for each in world.accepted] == [lead["id"]] * 7, (
        "each change is brought to the schedule"
    )


async def test_a_lead_is_rescheduled(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    when = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=0)
    moved = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", {"scheduled_at": when.isoformat()}), 200)
    assert datetime.fromisoformat(moved["due_at"]) == datetime.fromisoformat(moved["scheduled_at"]) == when
    past = {"scheduled_at": "2020-01-01T00:00:00Z"}
    now = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", past), 200)
    assert now["due_at"] == now["scheduled_at"] == now["updated_at"]
    assert now["version"] == 3


async def test_a_lead_is_rescheduled_into_its_window(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    day = (datetime.now(UTC) + timedelta(days=2)).date()
    window = {"spans": [{"start": "09:00", "end": "10:00"}], "timezone": "UTC"}
    await execute(
        world,
        "INSERT INTO policies (scope, subject, policy, reseller_id, merchant_id, updated_by) "
        "VALUES ('merchant', 'a1', $1, 'a', 'a1', 'test')",
        {"windows": [window]},
    )
    moved = expect(
        await world.admin.patch(f"{LEADS}/{lead['id']}", {"scheduled_at": f"{day}T07:30:00Z"}), 200
    )
    assert (moved["scheduled_at"], moved["due_at"]) == (f"{day}T07:30:00Z", f"{day}T09:00:00Z")
    async with world.database.connection() as connection:
        closes_at = await connection.fetchval("SELECT closes_at FROM leads")
    assert closes_at == datetime.combine(day, datetime.min.time(), UTC) + timedelta(hours=10)


async def test_a_lead_is_made_due_now_and_nothing_else(world: ApiWorld) -> None:
    when = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    lead = await world.make_lead("a1", scheduled_at=when, priority=80)
    due = expect(await world.admin.request("POST", f"{LEADS}/{lead['id']}/dispatch-now"), 200)
    assert due["due_at"] == due["scheduled_at"] == due["updated_at"]
    assert (due["status"], due["priority"], due["version"]) == ("BACKLOG", 80, 2)
    assert [str(each) for each in world.accepted] == [lead["id"]] * 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"priority": 0}, "priority"),
        ({"priority": 100}, "priority"),
        ({"pool": "b1-pool"}, "pool"),
        ({"payload": {"a": "\x00"}}, "payload"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"scheduled_at": "2030-01-01T00:00:00"}, "scheduled_at"),
        ({"scheduled_at": "9999-12-31T23:00:00Z"}, "scheduled_at"),
        ({"reporting_webhook_url": "ftp://x"}, "reporting_webhook_url"),
        ({"phone": "+14155550199"}, "phone"),
        ({"status": "FINISHED"}, "status"),
    ],
)
async def test_a_change_that_is_wrong_changes_nothing(
    world: ApiWorld, body: dict[str, Any], field: str
) -> None:
    lead = await world.make_lead("a1")
    refused = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", body), 422)
    assert [each["field"] for each in refused["fields"]] == [field]
    assert expect(await world.admin.get(f"{LEADS}/{lead['id']}"), 200)["version"] == 1


async def test_a_lead_is_not_given_fewer_attempts_than_it_had(world: ApiWorld) -> None:
    lead = await world.make_lead("a1", max_attempts=5)
    await execute(world, "UPDATE leads SET attempt_count = 2")
    refused = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", {"max_attempts": 2}), 422)
    assert refused["fields"][0]["field"] == "max_attempts"
    expect(await world.admin.patch(f"{LEADS}/{lead['id']}", {"max_attempts": 3}), 200)


@pytest.mark.parametrize(("statement", "code"), [(START, "being_called"), (FINISH, "finished")])
async def test_a_lead_that_is_not_waiting_cannot_be_changed(
    world: ApiWorld, statement: str, code: str
) -> None:
    lead = await world.make_lead("a1")
    await execute(world, statement, UUID(lead["id"]))
    path = f"{LEADS}/{lead['id']}"
    for answer in (
        await world.admin.patch(path, {"priority": 7}),
        await world.admin.request("POST", f"{path}/dispatch-now"),
    ):
        assert expect(answer, 409)["code"] == code
    assert expect(await world.admin.get(path), 200)["version"] == 2


async def test_a_change_waits_for_an_intent_and_is_then_refused(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    async with world.database.transaction() as tx:
        await tx.execute(START, UUID(lead["id"]))
        changing = asyncio.create_task(world.admin.patch(f"{LEADS}/{lead['id']}", {"priority": 7}))
        await world.somebody_waits_for_a_lock()
    assert expect(await changing, 409)["code"] == "being_called"


async def test_a_lead_that_waits_is_aborted_with_its_reason(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    path = f"{LEADS}/{lead['id']}"
    ended = expect(await world.admin.delete(path, query={"reason": "sold out"}), 200)
    assert (ended["status"], ended["outcome"], ended["outcome_reason"]) == ("FINISHED", "ABORTED", "sold out")
    assert ended["version"] == 2
    assert ended["finished_at"]
    again = expect(await world.admin.delete(path, query={"reason": "another"}), 200)
    assert again == ended, "twice is as good as once"


async def test_a_lead_that_ended_otherwise_cannot_be_aborted(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    await execute(world, FINISH, UUID(lead["id"]))
    assert expect(await world.admin.delete(f"{LEADS}/{lead['id']}"), 409)["code"] == "finished"


async def test_aborting_a_lead_that_is_being_called_ends_it_with_its_call(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    attempt_id = await call(world, lead["id"])
    path = f"{LEADS}/{lead['id']}"
    asked = expect(await world.admin.delete(path, query={"reason": "sold out"}), 202)
    assert (asked["status"], asked["cancel_reason"], asked["outcome"]) == ("PROCESSING", "sold out", None)
    assert asked["cancel_requested_at"]
    assert await hang_up_at(world, attempt_id) is None, "nobody asked for that"
    again = expect(await world.admin.delete(path, query={"reason": "now", "hang_up": "true"}), 202)
    assert (again["cancel_requested_at"], again["cancel_reason"]) == (
        asked["cancel_requested_at"],
        "sold out",
    )
    assert await hang_up_at(world, attempt_id) is not None


async def test_an_abort_waits_for_an_intent_and_then_orders_the_hang_up(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    async with world.database.transaction() as tx:
        await tx.execute(START, UUID(lead["id"]))
        await tx.execute(DIAL, new_id(), UUID(lead["id"]), new_id())
        aborting = asyncio.create_task(world.admin.delete(f"{LEADS}/{lead['id']}", query={"hang_up": "true"}))
        await world.somebody_waits_for_a_lock()
    assert expect(await aborting, 202)["cancel_requested_at"]
    async with world.database.connection() as connection:
        assert await connection.fetchval("SELECT hang_up_at FROM attempts") is not None


async def test_leads_are_aborted_by_their_ids_with_a_result_each(world: ApiWorld) -> None:
    waiting, called, ended, theirs = [
        await world.make_lead(m, f"r{n}") for n, m in enumerate(("a1", "a1", "a1", "b1"))
    ]
    await call(world, called["id"])
    await execute(world, FINISH, UUID(ended["id"]))
    nobodys = str(new_id())
    ids = [waiting["id"], called["id"], ended["id"], theirs["id"], nobodys, waiting["id"]]
    answer = expect(await world.tenant("a").post(ABORT, {"lead_ids": ids, "reason": "sold out"}), 202)
    assert {each["id"]: each["result"] for each in answer["results"]} == {
        waiting["id"]: "aborted",
        called["id"]: "cancel_requested",
        ended["id"]: "finished",
        theirs["id"]: "not_found",
        nobodys: "not_found",
    }
    assert (answer["aborted"], answer["cancel_requested"], answer["complete"]) == (1, 1, True)
    assert expect(await world.admin.get(f"{LEADS}/{theirs['id']}"), 200)["status"] == "BACKLOG"
    [line] = expect(await world.admin.get("/api/v1/audit", {"action": "leads.aborted"}), 200)["items"]
    assert (line["subject"], line["reason"], line["details"]["leads"]) == ("a1", "sold out", 2)


async def test_leads_are_aborted_by_a_filter_over_many_pages(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead_edits, "PAGE", 3)
    campaign_id = str(new_id())
    mine = [await world.make_lead("a1", f"r{n}", campaign_id=campaign_id) for n in range(10)]
    other = await world.make_lead("a1", "other")
    attempt_id = await call(world, mine[4]["id"])
    body = {"campaign_id": campaign_id, "reason": "over", "hang_up": True}
    answer = expect(await world.tenant("a1").post(ABORT, body), 202)
    assert answer == {"aborted": 9, "cancel_requested": 1, "complete": True, "results": None}
    assert await hang_up_at(world, attempt_id) is not None
    assert expect(await world.admin.get(f"{LEADS}/{other['id']}"), 200)["status"] == "BACKLOG"
    again = expect(await world.tenant("a1").post(ABORT, body), 200)
    assert (again["aborted"], again["cancel_requested"]) == (0, 0)


async def test_a_filter_reaches_no_other_tenant(world: ApiWorld) -> None:
    await world.make_lead("b1")
    for body in ({"phone": "+14155550123"}, {"campaign_id": str(new_id())}):
        answer = expect(await world.tenant("a").post(ABORT, body | {"reason": "over"}), 200)
        assert (answer["aborted"], answer["cancel_requested"]) == (0, 0)
    refused = expect(await world.tenant("a").post(ABORT, {"merchant_id": "b1", "reason": "over"}), 404)
    assert refused["code"] == "unknown_merchant"
    assert (
        expect(await world.admin.post(ABORT, {"phone": "+14155550123", "reason": "over"}), 200)["aborted"]
        == 1
    )


async def test_a_bulk_abort_past_its_time_budget_reports_itself_incomplete(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.make_lead("a1")
    monkeypatch.setattr(lead_edits, "BUDGET_S", -1.0)
    answer = expect(await world.admin.post(ABORT, {"merchant_id": "a1", "reason": "over"}), 200)
    assert (answer["aborted"], answer["complete"]) == (0, False)


@pytest.mark.parametrize(
    "body",
    [
        {"reason": "over"},
        {"lead_ids": [], "reason": "over"},
        {"lead_ids": [str(new_id())], "merchant_id": "a1", "reason": "over"},
        {"merchant_id": "a1"},
        {"merchant_id": "a1", "reason": ""},
    ],
)
async def test_a_bulk_abort_without_a_filter_is_refused(world: ApiWorld, body: dict[str, Any]) -> None:
    await world.make_lead("a1")
    expect(await world.admin.post(ABORT, body), 422)
    async with world.database.connection() as connection:
        assert await connection.fetchval("SELECT status FROM leads") == "BACKLOG"


async def test_the_timeline_of_a_lead_is_in_order(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    path = f"{LEADS}/{lead['id']}"
    expect(await world.admin.patch(path, {"priority": 7, "payload": {"secret": "Ada"}}), 200)
    attempt_id = await call(world, lead["id"])
    told = {"kind": "ringing", "call_id": "CA1", "at": "2030-01-01T00:00:00Z", "raw": {"x": "y"}}
    async with world.database.connection() as connection:
        await mailboxes.append(connection, [NewEvent("call", str(attempt_id), "d", "ringing", told)])
    await execute(
        world,
        "INSERT INTO decisions (lead_id, reason, merchant_id, until) VALUES ($1, 'window', 'a1', now())",
        UUID(lead["id"]),
    )
    expect(await world.admin.delete(path, query={"reason": "sold out", "hang_up": "true"}), 202)
    story = expect(await world.admin.get(path), 200)
    assert [(each["source"], each["what"]) for each in story["timeline"]] == [
        ("lead", "created"),
        ("audit", "lead.changed"),
        ("attempt", "intended"),
        ("carrier", "ringing"),
        ("decision", "window"),
        ("audit", "lead.cancel_requested"),
    ]
    assert "Ada" not in str(story["timeline"])
    changed, _, ringing, _, cancelled = story["timeline"][1:]
    assert changed["details"] == {"fields": ["payload", "priority"], "priority": 7}
    assert changed["actor"].startswith("key:")
    assert ringing["attempt_id"] == str(attempt_id)
    assert ringing["details"] == {"call_id": "CA1"}
    assert (ringing["clock"], ringing["carrier_at"]) == ("ours", "2030-01-01T00:00:00Z")
    assert (cancelled["reason"], cancelled["details"]) == ("sold out", {"hang_up": True})
    assert [each["reason"] for each in story["decisions"]] == ["window"]
    assert [each["id"] for each in story["attempts"]] == [str(attempt_id)]


async def test_the_timeline_shows_each_event_once_and_names_its_clock(world: ApiWorld) -> None:
    """The answer and the status tell of one answered call, and the attempt's own times are the carrier's."""
    lead = await world.make_lead("a1")
    attempt_id = await call(world, lead["id"])
    at = "2030-01-01T00:00:00+00:00"
    events = [
        NewEvent("call", str(attempt_id), "e", "ended", {"kind": "ended", "at": at, "reason": "completed"}),
        NewEvent(
            "call", str(attempt_id), "1", "answered", {"kind": "answered", "at": at, "is_our_clock": True}
        ),
        NewEvent("call", str(attempt_id), "2", "answered", {"kind": "answered", "at": at}),
        NewEvent("call", str(attempt_id), "r", "ringing", {"kind": "ringing", "at": at}),
    ]
    async with world.database.connection() as connection:
        for event in events:
            await mailboxes.append(connection, [event])
    await execute(
        world,
        "UPDATE attempts SET state = 'ended', ringing_at = $2, answered_at = $2, ended_at = $2, accepted_at = now(),"
        " holds_channel = false WHERE id = $1",
        attempt_id,
        datetime.fromisoformat(at),
    )
    path = f"{LEADS}/{lead['id']}"
    story = expect(await world.admin.get(path), 200)["timeline"]
    life = ["intended", "accepted", "ringing", "answered", "ended"]
    assert [each["what"] for each in story] == ["created", *life]
    assert {each["clock"] for each in story} == {"ours"}
    assert [each["carrier_at"] for each in story] == [None, None, None, at, at, at]
    assert story[4]["details"] == {"times": 2}
    # Long after, when its events are forgotten, the carrier's clock is all there is.
    await execute(world, "DELETE FROM mailbox_events")
    later = expect(await world.admin.get(path), 200)["timeline"]
    assert [(each["what"], each["clock"]) for each in later[3:]] == [
        (what, "carrier") for what in ("ringing", "answered", "ended")
    ]


async def test_a_lead_is_found_by_its_request_id(world: ApiWorld) -> None:
    lead = await world.make_lead("a1", "order-1")
    other = await world.make_lead("a2", "order-1")
    query = {"request_id": "order-1", "merchant_id": "a1"}
    assert [each["id"] for each in expect(await world.admin.get(LEADS, query), 200)["items"]] == [lead["id"]]
    own = expect(await world.tenant("a1").get(LEADS, {"request_id": "order-1"}), 200)
    assert [each["id"] for each in own["items"]] == [lead["id"]]
    for more in ({"status": "FINISHED"}, {"phone": "+14155550199"}, {"request_id": "order-2"}):
        assert expect(await world.admin.get(LEADS, query | more), 200)["items"] == []
    assert expect(await world.tenant("b").get(LEADS, query), 200)["items"] == []
    for whose in (world.admin, world.tenant("a")):
        both = expect(await whose.get(LEADS, {"request_id": "order-1"}), 200)["items"]
        assert [each["id"] for each in both] == [other["id"], lead["id"]]
    assert expect(await world.tenant("b").get(LEADS, {"request_id": "order-1"}), 200)["items"] == []
