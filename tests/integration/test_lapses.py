"""Leads that are no longer to be called: they expire, or their sender ends them by his own ids."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.cli.leads import app
from trunkline.dispatch.lapsed_leads import LapsedLeads
from trunkline.model import RefusalReason

LEADS = "/api/v1/leads"
LEAD = {"request_id": "r1", "merchant_id": "a1", "phone": "+14155550123"}
HOUR = timedelta(hours=1)


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


def moment(ahead: timedelta) -> str:
    return (datetime.now(UTC) + ahead).isoformat()


async def leads_of(world: ApiWorld, *request_ids: str, merchant: str = "a1") -> list[str]:
    made = []
    for n, request_id in enumerate(request_ids):
        lead = {"request_id": request_id, "merchant_id": merchant, "phone": f"+1415555{n + 2000:04}"}
        made.append(expect(await world.admin.post(LEADS, lead), 201)["id"])
    return made


async def test_the_intent_ends_a_lead_that_has_expired(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.run("UPDATE leads SET expires_at = now() WHERE id = $1", lead)
    (refusal,) = (await dialing.intend(dialing.grant(lead))).refused.values()
    assert refusal.reason is RefusalReason.EXPIRED
    row = await dialing.lead_row(lead)
    assert (row["status"], row["outcome"]) == ("FINISHED", "EXPIRED")


async def test_a_lead_that_has_not_expired_is_dialled(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.run("UPDATE leads SET expires_at = now() + interval '1 hour' WHERE id = $1", lead)
    assert len((await dialing.intend(dialing.grant(lead))).committed) == 1


async def test_a_call_that_would_leave_after_the_expiry_is_not_made(dialing: Dialing) -> None:
    """It is made ready ahead of its time, and that is too late."""
    lead = await dialing.lead(due_in_s=0.5)
    await dialing.run("UPDATE leads SET expires_at = due_at - interval '1 ms' WHERE id = $1", lead)
    (refusal,) = (await dialing.intend(dialing.grant(lead))).refused.values()
    assert refusal.reason is RefusalReason.EXPIRED


async def test_the_lapse_loop_ends_expired_waiting_leads_only(dialing: Dialing) -> None:
    over, waits, calling = await dialing.leads(3)
    await dialing.run("UPDATE leads SET expires_at = now() - interval '1 second' WHERE id = $1", over)
    await dialing.run("UPDATE leads SET expires_at = now() + interval '1 hour' WHERE id = $1", waits)
    await dialing.run("UPDATE leads SET expires_at = now(), status = 'PROCESSING' WHERE id = $1", calling)
    async with asyncio.timeout(30):
        assert await LapsedLeads(dialing.database, page=1).run_once() == 1
    rows = [await dialing.lead_row(lead) for lead in (over, waits, calling)]
    assert [row["outcome"] for row in rows] == ["EXPIRED", None, None]


async def test_the_lapse_loop_skips_a_locked_lead(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.run("UPDATE leads SET expires_at = now() WHERE id = $1", lead)
    changing = await dialing.open_transaction()
    await changing.execute("SELECT FROM leads WHERE id = $1 FOR UPDATE", lead)
    assert await LapsedLeads(dialing.database).run_once() == 0
    await dialing.commit(changing)
    assert await LapsedLeads(dialing.database).run_once() == 1


async def test_an_expiry_is_taken_in_shown_changed_and_part_of_the_request(world: ApiWorld) -> None:
    expires = moment(HOUR)
    lead = expect(await world.admin.post(LEADS, LEAD | {"expires_at": expires}), 201)
    assert datetime.fromisoformat(lead["expires_at"]) == datetime.fromisoformat(expires)
    expect(await world.admin.post(LEADS, LEAD | {"expires_at": expires}), 200)
    other = expect(await world.admin.post(LEADS, LEAD | {"expires_at": moment(2 * HOUR)}), 409)
    assert other["code"] == "request_id_reused"
    changed = expect(await world.admin.patch(f"{LEADS}/{lead['id']}", {"expires_at": None}), 200)
    assert changed["expires_at"] is None


async def test_an_expiry_before_the_call_is_refused(world: ApiWorld) -> None:
    body = LEAD | {"scheduled_at": moment(2 * HOUR), "expires_at": moment(HOUR)}
    refused = expect(await world.admin.post(LEADS, body), 422)
    assert refused["fields"][0]["field"] == "expires_at"


async def test_a_request_that_is_repeated_after_its_expiry_has_the_same_answer(world: ApiWorld) -> None:
    body = LEAD | {"expires_at": moment(-HOUR)}
    lead = expect(await world.admin.post(LEADS, body), 201)
    await LapsedLeads(world.database).run_once()
    again = expect(await world.admin.post(LEADS, body), 200)
    assert (again["id"], again["outcome"]) == (lead["id"], "EXPIRED")


async def test_uploaded_leads_may_expire(world: ApiWorld) -> None:
    body = f"request_id,merchant_id,phone,expires_at\nr1,a1,+14155550123,{moment(HOUR)}\n"
    headers = {"content-type": "text/csv"}
    expect(await world.admin.request("POST", f"{LEADS}/bulk", body=body.encode(), headers=headers), 200)
    [lead] = expect(await world.admin.get(LEADS, {"request_id": "r1"}), 200)["items"]
    assert lead["expires_at"] is not None


async def test_a_lead_ends_by_its_request_id(world: ApiWorld) -> None:
    async def end(merchant_id: str | None, request_id: str, status: int) -> dict[str, Any]:
        query = {"request_id": request_id, "reason": "called elsewhere"}
        query |= {"merchant_id": merchant_id} if merchant_id else {}
        return expect(await world.admin.delete(LEADS, query=query), status)

    kept, ended = await leads_of(world, "one/with a slash", "two")
    lead = await end("a1", "two", 200)
    assert (lead["id"], lead["outcome"], lead["outcome_reason"]) == (ended, "ABORTED", "called elsewhere")
    assert await end("a1", "two", 200) == lead, "safe to repeat"
    await end("a1", "three", 404)
    await end("a2", "one/with a slash", 404)
    await end(None, "two", 422)
    assert expect(await world.admin.get(f"{LEADS}/{kept}"), 200)["status"] == "BACKLOG"


async def test_many_leads_end_by_their_request_ids(world: ApiWorld) -> None:
    one, two, three = await leads_of(world, "one", "two", "three")
    [another] = await leads_of(world, "one", merchant="a2")
    body: dict[str, Any] = {"request_ids": ["one", "two", "nobody's"], "merchant_id": "a1", "reason": "done"}
    answer = expect(await world.admin.post(f"{LEADS}/abort", body), 200)
    assert (answer["aborted"], answer["complete"]) == (2, True)
    assert answer["results"] == [
        {"id": one, "request_id": "one", "result": "aborted"},
        {"id": two, "request_id": "two", "result": "aborted"},
        {"id": None, "request_id": "nobody's", "result": "not_found"},
    ]
    for untouched in (three, another):
        assert expect(await world.admin.get(f"{LEADS}/{untouched}"), 200)["status"] == "BACKLOG"
    expect(await world.admin.post(f"{LEADS}/abort", body | {"merchant_id": None}), 422)
    expect(await world.admin.post(f"{LEADS}/abort", body | {"phone": "+14155552000"}), 422)


async def test_the_command_ends_leads_by_a_file_of_request_ids(world: ApiWorld, tmp_path: Path) -> None:
    await leads_of(world, "one", "two", "three")
    file = tmp_path / "called.txt"
    file.write_text("one\n\ntwo\nfour\n")
    async with serve(world.app) as url:

        async def run(*arguments: str) -> str:
            command = ["--url", url, "--key", ADMIN_KEY, "--json", "abort", "--merchant", "a1", *arguments]
            result = await asyncio.to_thread(
                CliRunner().invoke, app, [*command, "--reason", "called elsewhere"]
            )
            assert result.exit_code == 0, result.output
            return result.output

        assert '"aborted": 2' in await run("--request-ids", str(file))
        file.write_text("")
        assert '"aborted": 0' in await run("--request-ids", str(file)), "an empty file ends nobody"
        assert '"not_found": 1' in await run("--request-id", "five")
    [left] = expect(await world.admin.get(LEADS, {"status": "BACKLOG"}), 200)["items"]
    assert left["request_id"] == "three"
