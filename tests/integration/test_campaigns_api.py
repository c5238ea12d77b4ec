"""Campaigns through the API."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.asgi import Answer
from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.campaigns.maintenance import CampaignMaintenance
from trunkline.store import controls
from trunkline.store.controls import Scope

ROOT = "/api/v1/campaigns"
CSV = {"content-type": "text/csv"}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


def moment(in_s: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=in_s)).isoformat()


async def make(world: ApiWorld, status: int = 201, **more: Any) -> dict[str, Any]:
    return expect(await world.tenant("a1", "leads").post(ROOT, {"name": "Renewals", **more}), status)


async def act(
    world: ApiWorld, campaign: dict[str, Any], what: str, status: int = 200, **more: Any
) -> dict[str, Any]:
    return expect(await world.tenant("a1", "leads").post(f"{ROOT}/{campaign['id']}/{what}", more), status)


async def patch(world: ApiWorld, campaign: dict[str, Any], status: int = 200, **more: Any) -> dict[str, Any]:
    return expect(await world.tenant("a1", "leads").patch(f"{ROOT}/{campaign['id']}", more), status)


async def send(
    world: ApiWorld, campaign: dict[str, Any], body: bytes, kind: str = "text/csv", **query: Any
) -> Answer:
    return await world.tenant("a1", "leads").request(
        "POST", f"{ROOT}/{campaign['id']}/leads", body=body, headers={"content-type": kind}, query=query
    )


async def upload(world: ApiWorld, campaign: dict[str, Any], text: str, **query: Any) -> dict[str, Any]:
    return expect(await send(world, campaign, text.encode(), **query), 200)


def people(count: int, first: int = 0) -> str:
    return "phone,name\n" + "".join(f"+1415555{n:04d},n{n}\n" for n in range(first, first + count))


async def leads(world: ApiWorld, campaign: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    answer = await world.tenant("a1").get(
        "/api/v1/leads", {"campaign_id": campaign["id"], "limit": 200, **more}
    )
    items: list[dict[str, Any]] = expect(answer, 200)["items"]
    return items


async def held(world: ApiWorld, campaign: dict[str, Any]) -> bool:
    async with world.database.connection() as conn:
        found = await controls.get(conn, Scope.CAMPAIGN, f"a1/{campaign['id']}")
    return any(control.share(control.seen_at) == 0 for control in found)


async def keep(world: ApiWorld) -> None:
    await CampaignMaintenance(world.database, page=3).run_once()


async def test_a_draft_dials_no_lead_until_it_is_started(world: ApiWorld) -> None:
    campaign = await make(world, policy={"starts_per_s": 5, "max_concurrent": 2})
    assert (campaign["status"], campaign["policy"]) == ("DRAFT", {"starts_per_s": 5.0, "max_concurrent": 2})
    assert (campaign["pool"], campaign["max_attempts"]) == ("a1-pool", 3)
    assert await held(world, campaign)
    await upload(world, campaign, people(2))
    started = await act(world, campaign, "start")
    assert started["status"] == "RUNNING"
    assert not await held(world, campaign)
    assert (await act(world, campaign, "start"))["started_at"] == started["started_at"], "safe to repeat"


async def test_a_campaign_with_a_future_start_is_held_until_starts_at(world: ApiWorld) -> None:
    campaign = await make(world, starts_at=moment(3600))
    await act(world, campaign, "start")
    assert await held(world, campaign)
    async with world.database.connection() as conn:
        [control] = await controls.get(conn, Scope.CAMPAIGN, f"a1/{campaign['id']}")
    assert control.ends_at == datetime.fromisoformat(campaign["starts_at"])


async def test_a_pause_holds_a_campaign_back_and_a_resume_releases_it(world: ApiWorld) -> None:
    campaign = await make(world)
    assert (await act(world, campaign, "pause", 409))["code"] == "wrong_status"
    await act(world, campaign, "start")
    assert (await act(world, campaign, "pause", reason="wrong prompt"))["status"] == "PAUSED"
    assert await held(world, campaign)
    assert (await act(world, campaign, "resume"))["status"] == "RUNNING"
    assert not await held(world, campaign)


async def test_the_keeper_restores_a_campaigns_stop_that_was_lifted_directly(world: ApiWorld) -> None:
    campaign = await make(world)
    path = f"/api/v1/controls/campaign/{campaign['id']}"
    expect(await world.tenant("a1").delete(path, query={"reason": "I know better"}), 200)
    assert not await held(world, campaign)
    await keep(world)
    assert await held(world, campaign)


async def test_stopping_a_campaign_ends_its_waiting_leads_page_by_page(world: ApiWorld) -> None:
    campaign = await make(world)
    await upload(world, campaign, people(8))
    await act(world, campaign, "start")
    calling = (await leads(world, campaign))[0]["id"]
    async with world.database.connection() as conn:
        await conn.execute("UPDATE leads SET status = 'PROCESSING' WHERE id = $1", UUID(calling))
    assert (await act(world, campaign, "stop", 202, reason="sold out", hang_up=True))["status"] == "STOPPING"
    assert await held(world, campaign)
    await keep(world)
    found = expect(await world.tenant("a1").get(f"{ROOT}/{campaign['id']}"), 200)
    assert (found["status"], found["stop_reason"]) == ("STOPPED", "sold out")
    by_id = {lead["id"]: lead for lead in await leads(world, campaign)}
    assert by_id.pop(calling)["cancel_requested_at"] is not None
    assert {(lead["outcome"], lead["outcome_reason"]) for lead in by_id.values()} == {
        ("ABORTED", "campaign stopped: sold out")
    }
    assert (await act(world, campaign, "stop", 202))["status"] == "STOPPED"
    assert (await act(world, campaign, "start", 409))["code"] == "wrong_status"
    assert expect(await send(world, campaign, people(1).encode()), 409)["code"] == "wrong_status"


async def test_a_campaign_ends_at_its_end(world: ApiWorld) -> None:
    campaign = await make(world, ends_at=moment(3600))
    await upload(world, campaign, people(2))
    await act(world, campaign, "start")
    async with world.database.connection() as conn:
        await conn.execute("UPDATE campaigns SET ends_at = now() - interval '1 s'")
    await keep(world)
    found = expect(await world.tenant("a1").get(f"{ROOT}/{campaign['id']}"), 200)
    assert (found["status"], found["stop_reason"]) == ("STOPPED", "its end has come")
    assert {lead["outcome"] for lead in await leads(world, campaign)} == {"ABORTED"}


async def test_a_change_of_a_campaign_is_applied_to_its_waiting_leads(world: ApiWorld) -> None:
    campaign = await make(world, priority=60)
    await upload(
        world,
        campaign,
        "phone,priority\n+14155550101,\n+14155550102,7\n+14155550103,\n+14155550104,\n+14155550105,\n",
    )
    changed = await patch(
        world, campaign, priority=20, max_attempts=5, pool="shared", policy={"packs": ["us-tcpa"]}
    )
    assert (changed["priority"], changed["policy"]) == (20, {"packs": ["us-tcpa"]})
    assert (await patch(world, campaign, 409, priority=1))["code"] == "being_applied"
    await keep(world)
    found = sorted(
        (lead["phone"][-1], lead["priority"], lead["max_attempts"], lead["pool"])
        for lead in await leads(world, campaign)
    )
    assert found == [("1", 20, 5, "shared"), ("2", 7, 5, "shared")] + [(n, 20, 5, "shared") for n in "345"]
    await act(world, campaign, "start")
    assert (await patch(world, campaign, 409, name="x"))["code"] == "not_paused"
    await act(world, campaign, "pause")
    assert (await patch(world, campaign, name="Other", ends_at=moment(60)))["name"] == "Other"
    assert (await patch(world, campaign, ends_at=None))["ends_at"] is None


async def test_a_change_of_a_campaign_does_not_wait_for_its_ended_leads(world: ApiWorld) -> None:
    campaign = await make(world, priority=60)
    await upload(world, campaign, people(2))
    ended, _ = await leads(world, campaign)
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE leads SET status = 'FINISHED', outcome = 'ABORTED', finished_at = now() WHERE id = $1",
            UUID(ended["id"]),
        )
    await patch(world, campaign, priority=20)
    async with asyncio.timeout(30):
        await keep(world)
    assert sorted(lead["priority"] for lead in await leads(world, campaign)) == [20, 60]
    assert (await patch(world, campaign, priority=30))["priority"] == 30, "the first change is complete"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"name": ""}, "name"),
        ({"starts_at": "2031-01-02T00:00:00Z", "ends_at": "2031-01-01T00:00:00Z"}, "ends_at"),
        ({"ends_at": "2001-01-01T00:00:00Z"}, "ends_at"),
        ({"ends_at": "9999-01-01T00:00:00Z"}, "ends_at"),
        ({"pool": "b1-pool"}, "pool"),
        ({"policy": {"calls_per_person": {"max_calls": 9}}}, "calls_per_person"),
        (
            {"policy": {"windows": [{"spans": [{"start": "12:00", "end": "12:00"}]}]}},
            "policy.windows.0.spans.0",
        ),
        ({"max_attempts": 21}, "max_attempts"),
        ({"reporting_webhook_url": "x"}, "reporting_webhook_url"),
    ],
)
async def test_a_campaign_with_a_wrong_field_is_refused_by_that_field(
    world: ApiWorld, more: dict[str, Any], field: str
) -> None:
    refused = await make(world, 422, **more)
    assert field in [problem["field"] for problem in refused["fields"]]
    assert expect(await world.admin.get(ROOT), 200)["items"] == []


async def test_an_edit_cannot_make_it_end_before_it_starts(world: ApiWorld) -> None:
    campaign = await make(world, starts_at=moment(3600))
    assert (await patch(world, campaign, 422, ends_at=moment(60)))["fields"][0]["field"] == "ends_at"


FINISH = """
UPDATE leads SET status = 'FINISHED', outcome = 'ANSWERED', finished_at = clock_timestamp(), version = version + 1,
       attempt_count = 1
WHERE campaign_id = $1 AND status = 'BACKLOG'
"""


async def finish(world: ApiWorld, campaign: dict[str, Any]) -> None:
    """Everybody who waits has been called."""
    async with world.database.connection() as connection:
        await connection.execute(FINISH, UUID(campaign["id"]))


async def status(world: ApiWorld, campaign: dict[str, Any]) -> str:
    return str(expect(await world.admin.get(f"{ROOT}/{campaign['id']}"), 200)["status"])


async def test_a_campaign_without_waiting_leads_is_completed_and_runs_again_with_its_next_lead(
    world: ApiWorld,
) -> None:
    campaign = await make(world)
    await act(world, campaign, "start")
    await keep(world)
    assert await status(world, campaign) == "RUNNING", "it had no leads yet"
    await upload(world, campaign, people(2))
    await keep(world)
    assert await status(world, campaign) == "RUNNING"
    await finish(world, campaign)
    await keep(world)
    done = expect(await world.admin.get(f"{ROOT}/{campaign['id']}"), 200)
    assert (done["status"], done["completed_at"] is None) == ("COMPLETED", False)
    progress = expect(await world.admin.get(f"{ROOT}/{campaign['id']}/progress"), 200)
    assert (progress["status"], progress["estimated_end_at"]) == ("COMPLETED", None)
    listed = expect(await world.admin.get(ROOT, {"status": "COMPLETED"}), 200)["items"]
    assert [each["id"] for each in listed] == [campaign["id"]]
    await upload(world, campaign, people(1, first=7))
    assert await status(world, campaign) == "RUNNING", "at once, without anybody's help"
    assert not await held(world, campaign)


async def test_a_campaign_runs_again_when_one_of_its_leads_is_called_again(world: ApiWorld) -> None:
    campaign = await make(world)
    await act(world, campaign, "start")
    await upload(world, campaign, people(1))
    await finish(world, campaign)
    await keep(world)
    assert await status(world, campaign) == "COMPLETED"
    [lead] = await leads(world, campaign)
    order = {"reason": "once more", "request_id": "o1"}
    expect(await world.admin.post(f"/api/v1/leads/{lead['id']}/reopen", order), 200)
    assert await status(world, campaign) == "RUNNING"


async def test_a_lead_committed_while_its_campaign_completes_makes_it_run_again(world: ApiWorld) -> None:
    """Its transaction began before, and was committed after."""
    campaign = await make(world)
    await act(world, campaign, "start")
    await upload(world, campaign, people(2))
    await finish(world, campaign)
    again = "UPDATE leads SET status = 'BACKLOG', outcome = NULL, finished_at = NULL WHERE id = $1"
    [lead, _] = await leads(world, campaign)
    async with world.database.transaction() as tx:
        await tx.execute(again, UUID(lead["id"]))
        await keep(world)
        assert await status(world, campaign) == "COMPLETED"
    await keep(world)
    assert await status(world, campaign) == "RUNNING"


async def test_a_completed_campaign_can_be_paused_and_stopped_and_starting_it_changes_nothing(
    world: ApiWorld,
) -> None:
    campaign = await make(world)
    await act(world, campaign, "start")
    await upload(world, campaign, people(1))
    await finish(world, campaign)
    await keep(world)
    assert (await act(world, campaign, "start"))["status"] == "COMPLETED"
    assert (await act(world, campaign, "pause"))["status"] == "PAUSED"
    assert (await act(world, campaign, "resume"))["status"] == "RUNNING"
    await keep(world)
    assert await status(world, campaign) == "COMPLETED"
    assert (await act(world, campaign, "stop", 202))["status"] == "STOPPING"


async def test_a_campaigns_estimate_uses_its_running_time(world: ApiWorld) -> None:
    """Two seconds after its start, ten of thirty are done: the rest takes seconds, not half an hour."""
    campaign = await make(world)
    await upload(world, campaign, people(30))
    await act(world, campaign, "start")
    campaign_id = UUID(campaign["id"])
    async with world.database.connection() as connection:
        await connection.execute(
            "UPDATE campaigns SET running_since = clock_timestamp() - interval '2 seconds' WHERE id = $1",
            campaign_id,
        )
        await connection.execute(
            FINISH + " AND id IN (SELECT id FROM leads WHERE campaign_id = $1 LIMIT 10)", campaign_id
        )
    progress = expect(await world.admin.get(f"{ROOT}/{campaign['id']}/progress"), 200)
    ends_in = datetime.fromisoformat(progress["estimated_end_at"]) - datetime.fromisoformat(progress["as_of"])
    async with world.database.connection() as connection:
        since = await connection.fetchval("SELECT running_since FROM campaigns WHERE id = $1", campaign_id)
    passed_s = (datetime.fromisoformat(progress["as_of"]) - since).total_seconds()
    assert progress["finished_per_minute"] == pytest.approx(60 * 10 / passed_s, rel=0.01)
    assert ends_in.total_seconds() == pytest.approx(20 * passed_s / 10, rel=0.01), "20 are left"


async def test_a_row_without_a_phone_is_named_by_its_place_in_the_file(world: ApiWorld) -> None:
    campaign = await make(world)
    report = await upload(world, campaign, "Mobile,name\n+14155550101,a\n+14155550102,b\n")
    named = [row["request_id"] for row in report["results"]]
    assert named == [f"campaign/{campaign['id']}/row-{no}" for no in (1, 2)]


async def test_rows_with_phones_in_the_payload_are_separate_leads(world: ApiWorld) -> None:
    """They shared one id, and the second was taken for the first."""
    campaign = await make(world)
    rows = [{"payload": {"customer_mobile_number": f"+1415555010{n}"}} for n in (1, 2)]
    body = "\n".join(json.dumps(row) for row in rows).encode()
    report = expect(await send(world, campaign, body, "application/x-ndjson"), 200)
    assert (report["created"], report["existing"]) == (2, 0)
    assert {lead["request_id"] for lead in await leads(world, campaign)} == {
        f"campaign/{campaign['id']}/+1415555010{n}" for n in (1, 2)
    }


async def test_a_campaign_request_with_the_same_request_id_is_made_once(world: ApiWorld) -> None:
    first = await make(world, request_id="r")
    assert (await make(world, 200, request_id="r"))["id"] == first["id"]
    assert (await make(world, 409, request_id="r", priority=1))["code"] == "request_id_reused"


async def test_columns_are_mapped_and_the_others_are_the_payload(world: ApiWorld) -> None:
    campaign = await make(world, max_attempts=4)
    report = await upload(
        world,
        campaign,
        "Mobile;Full name;Plan;Ref;payload.city\n+1 415 555 0123;Ada;gold;4711;Paris\n",
        map=["phone:Mobile", "payload.name:Full name", "external_id:Ref"],
        results="all",
    )
    assert (report["rows"], report["created"]) == (1, 1)
    [lead] = await leads(world, campaign)
    assert (lead["phone"], lead["max_attempts"]) == ("+14155550123", 4)
    assert lead["payload"] == {"name": "Ada", "Plan": "gold", "city": "Paris", "external_id": "4711"}
    assert lead["campaign_id"] == campaign["id"]


async def test_unmapped_columns_are_ignored_or_refused_as_requested(world: ApiWorld) -> None:
    campaign = await make(world)
    await upload(world, campaign, "phone,Secret\n+14155550123,x\n", others="ignore")
    assert [lead["payload"] for lead in await leads(world, campaign)] == [{}]
    refused = expect(await send(world, campaign, b"phone,Secret\n+14155550124,x\n", others="refuse"), 400)
    assert "Secret" in refused["error"]


async def test_json_is_mapped_too(world: ApiWorld) -> None:
    campaign = await make(world)
    rows = [
        {"Mobile": "+14155550123", "n": 1, "payload": {"a": 2}},
        {"Mobile": "+14155550124", "priority": 3},
    ]
    body = json.dumps(rows).encode()
    expect(await send(world, campaign, body, "application/json", map=["phone:Mobile"]), 200)
    lines = b'{"phone": "+14155550125"}\n'
    expect(await send(world, campaign, lines, "application/x-ndjson"), 200)
    found = {lead["phone"][-1]: (lead["payload"], lead["priority"]) for lead in await leads(world, campaign)}
    assert found == {"3": ({"n": 1, "a": 2}, 50), "4": ({}, 3), "5": ({}, 50)}


async def test_a_phone_is_in_a_campaign_once_within_and_across_files(world: ApiWorld) -> None:
    campaign, other = await make(world), await make(world)
    first = await upload(world, campaign, "phone,n\n+14155550101,1\n+1 (415) 555-0101,2\n+14155550102,3\n")
    assert (first["created"], first["existing"], first["conflict"]) == (2, 1, 0)
    again = await upload(world, campaign, "phone,n\n+14155550102,other\n+14155550103,4\n", results="all")
    assert (again["created"], again["existing"]) == (1, 1)
    assert [row["result"] for row in again["results"]] == ["existing", "created"]
    assert len(await leads(world, campaign)) == 3
    assert (await upload(world, other, people(1)))["created"] == 1, "of another campaign"


async def test_every_bad_row_is_reported_and_the_others_are_taken(world: ApiWorld) -> None:
    expect(await world.admin.post("/api/v1/do-not-call", {"phone": "+14155550109", "merchant_id": "a1"}), 201)
    campaign = await make(world)
    report = await upload(
        world,
        campaign,
        "phone,priority\n12,\n+14155550109,\n+14155550101,100\n,5\n+14155550102\n+14155550103,5\n",
    )
    assert (report["rows"], report["created"], report["refused"]) == (6, 1, 5)
    codes = {row["row"]: row["code"] for row in report["results"]}
    assert codes == {
        1: "invalid_request",
        2: "do_not_call",
        3: "invalid_request",
        4: "invalid_request",
        5: "unreadable",
    }


async def test_with_atomic_one_bad_row_undoes_all(world: ApiWorld) -> None:
    campaign = await make(world)
    refused = expect(await send(world, campaign, b"phone\n+14155550101\n12\n", atomic="true"), 422)
    assert refused["code"] == "rows_refused"
    assert await leads(world, campaign) == []
    assert (await upload(world, campaign, "phone\n+14155550101\n+14155550101\n", atomic="true"))[
        "created"
    ] == 1


@pytest.mark.parametrize(
    ("body", "kind", "query", "code", "words"),
    [
        ("phone,name\n+14155550101,Ren\u00e9\n".encode("latin-1"), "text/csv", {}, "bad_encoding", "line 2"),
        ("phone\n+14155550101\n".encode("utf-16"), "text/csv", {}, "bad_encoding", "UTF-16"),
        (b"phone,phone\n+14155550101,1\n", "text/csv", {}, "bad_csv", "'phone' is there twice"),
        (b"Mobile,phone\n1,2\n", "text/csv", {"map": ["phone:Mobile"]}, "bad_csv", "'phone' is there twice"),
        (b"", "text/csv", {}, "bad_csv", "first line"),
        (b'[{"phone": "+14155550101"}, {"phone"', "application/json", {}, "bad_json", ""),
        (b'{"phone": "+14155550101"}', "application/json", {}, "bad_json", ""),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_whole(
    world: ApiWorld, body: bytes, kind: str, query: dict[str, Any], code: str, words: str
) -> None:
    campaign = await make(world)
    many = people(20).encode().partition(b"\n")[2]
    refused = expect(
        await send(world, campaign, body if code != "bad_encoding" else body + many, kind, **query), 400
    )
    assert refused["code"] == code
    assert words in refused["error"]
    assert await leads(world, campaign) == [], "nothing is half loaded"


async def test_a_file_with_a_broken_last_row_creates_no_lead(world: ApiWorld) -> None:
    campaign = await make(world)
    body = people(9000).encode() + "x,Ren\u00e9\n".encode("latin-1")
    assert expect(await send(world, campaign, body), 400)["code"] == "bad_encoding"
    assert await leads(world, campaign) == []


async def test_another_encoding_is_taken_when_it_is_named(world: ApiWorld) -> None:
    campaign = await make(world)
    body = "phone,name\n+14155550101,Ren\u00e9\n"
    for encoding in ("latin-1", "windows-1252", "utf-16"):
        expect(await send(world, campaign, body.encode(encoding), encoding=encoding), 200)
    [lead] = await leads(world, campaign)
    assert lead["payload"] == {"name": "Ren\u00e9"}


@pytest.mark.parametrize("pair", ["phone", "phone:", "nothing:x"])
async def test_a_wrong_mapping_is_refused(world: ApiWorld, pair: str) -> None:
    campaign = await make(world)
    assert expect(await send(world, campaign, b"phone\n", map=[pair]), 422)["fields"][0]["field"] == "map"


async def test_progress_counts_and_estimates(world: ApiWorld) -> None:
    campaign = await make(world)
    await upload(world, campaign, people(10))
    await act(world, campaign, "start")
    async with world.database.connection() as conn:
        await conn.execute("UPDATE campaigns SET running_since = now() - interval '100 s'")
        await conn.execute(
            "UPDATE leads SET status = 'FINISHED', attempt_count = 2, finished_at = now() - interval '100 s',"
            " outcome = CASE WHEN right(phone, 1) < '3' THEN 'ANSWERED' ELSE 'NO_ANSWER' END"
            " WHERE right(phone, 1) < '5'"
        )
        await conn.execute(
            "UPDATE leads SET status = 'PROCESSING', attempt_count = 1 WHERE right(phone, 1) = '5'"
        )
    found = expect(await world.tenant("a1").get(f"{ROOT}/{campaign['id']}/progress"), 200)
    assert (found["leads"], found["waiting"], found["calling"], found["finished"]) == (10, 4, 1, 5)
    assert (found["outcomes"], found["attempts"], found["share"]) == (
        {"ANSWERED": 3, "NO_ANSWER": 2},
        11,
        0.5,
    )
    assert found["finished_per_minute"] == pytest.approx(3, rel=0.2)
    in_s = datetime.fromisoformat(found["estimated_end_at"]) - datetime.fromisoformat(found["as_of"])
    assert in_s.total_seconds() == pytest.approx(100, rel=0.2)
    await act(world, campaign, "pause")
    paused = expect(await world.tenant("a1").get(f"{ROOT}/{campaign['id']}/progress"), 200)
    assert paused["estimated_end_at"] is None


async def test_results_are_exported_as_csv(world: ApiWorld) -> None:
    campaign = await make(world)
    await upload(world, campaign, people(3))
    answer = await world.tenant("a1", "read").get(f"{ROOT}/{campaign['id']}/results")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [row["phone"][-1] for row in rows] == ["2", "1", "0"]
    assert json.loads(rows[0]["payload"]) == {"name": "n2"}


async def test_campaigns_are_listed_newest_first(world: ApiWorld) -> None:
    made = [await make(world) for _ in range(3)]
    await act(world, made[1], "start")
    listed = expect(await world.tenant("a").get(ROOT), 200)["items"]
    assert [each["id"] for each in listed] == [each["id"] for each in reversed(made)]
    running = expect(await world.tenant("a").get(ROOT, {"status": "RUNNING"}), 200)["items"]
    assert [each["id"] for each in running] == [made[1]["id"]]
    assert expect(await world.tenant("b").get(ROOT), 200)["items"] == []


async def test_a_plan_obeys_all_policy_layers_and_stores_nothing(world: ApiWorld) -> None:
    nights = {"windows": [{"spans": [{"start": "22:00", "end": "23:00"}], "timezone": "UTC"}]}
    expect(await world.tenant("a1").request("PUT", "/api/v1/merchants/a1/policy", json=nights), 200)
    settings = {"policy": {"starts_per_s": 1}, "starts_at": "2030-05-01T00:00:00Z", "answer_rate": 1}
    answer = await world.tenant("a1", "leads").request(
        "POST",
        f"{ROOT}/plan",
        body=b"Mobile\n+14155550101\n12\n",
        headers=CSV,
        query={"settings": json.dumps(settings), "map": ["phone:Mobile"]},
    )
    plan = expect(answer, 200)
    assert plan["calls_per_hour"] == [{"hour": "2030-05-01T22:00:00Z", "calls": 1, "answered": 1}]
    assert plan["not_called"] == {"invalid_phone": 1}
    async with world.database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM leads") == 0


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ("{", "settings"),
        ('{"channels": 0}', "settings.channels"),
        ('{"starts_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}', "settings.ends_at"),
    ],
)
async def test_a_plan_for_wrong_settings_is_refused(world: ApiWorld, settings: str, field: str) -> None:
    answer = await world.tenant("a1").request(
        "POST", f"{ROOT}/plan", body=b"phone\n", headers=CSV, query={"settings": settings}
    )
    assert expect(answer, 422)["fields"][0]["field"] == field
