"""What people send by mistake: a clear error each time, and nothing lost."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api

LEADS = "/api/v1/leads"
BULK = f"{LEADS}/bulk"
LEAD: dict[str, Any] = {"request_id": "r1", "merchant_id": "a1", "phone": "+14155550123"}
NEVER = {
    "windows": [
        {"spans": [{"start": "09:00", "end": "10:00"}], "timezone": "UTC"},
        {"spans": [{"start": "11:00", "end": "12:00"}], "timezone": "UTC"},
    ]
}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def kept(world: ApiWorld) -> list[str]:
    """The request ids of what was taken in."""
    async with world.database.connection() as connection:
        rows = await connection.fetch("SELECT request_id FROM leads ORDER BY request_id")
    return [row["request_id"] for row in rows]


async def bulk(world: ApiWorld, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    headers = {"content-type": "application/x-ndjson"}
    body = "\n".join(map(json.dumps, rows)).encode()
    results: list[dict[str, Any]] = expect(
        await world.admin.request("POST", BULK, body=body, headers=headers), 200
    )["results"]
    return results


@pytest.mark.parametrize(
    ("mistake", "status", "code", "field"),
    [
        ({"merchant_id": "nobody"}, 404, "unknown_merchant", "merchant_id"),
        ({"phone": "call me"}, 422, "invalid_request", "phone"),
        ({"phone": "+1415"}, 422, "invalid_request", "phone"),
        ({"phone": "+999123456789"}, 422, "invalid_request", "phone"),
        ({"priority": 0}, 422, "invalid_request", "priority"),
        ({"priority": 100}, 422, "invalid_request", "priority"),
    ],
)
async def test_a_wrong_lead_is_named_alone_and_among_others(
    world: ApiWorld, mistake: dict[str, Any], status: int, code: str, field: str
) -> None:
    refused = expect(await world.admin.post(LEADS, LEAD | mistake), status)
    assert (refused["code"], [each["field"] for each in refused["fields"]]) == (code, [field])
    assert refused["fields"][0]["error"]
    assert await kept(world) == []
    first, bad, last = await bulk(
        world, [LEAD, LEAD | {"request_id": "r2"} | mistake, LEAD | {"request_id": "r3"}]
    )
    assert (first["result"], bad["result"], last["result"]) == ("created", "refused", "created")
    assert (bad["code"], bad["fields"]) == (code, refused["fields"])
    assert await kept(world) == ["r1", "r3"]


async def test_a_window_that_never_opens_is_said_when_the_lead_comes(world: ApiWorld) -> None:
    async with world.database.connection() as connection:
        await connection.execute(
            "INSERT INTO policies (scope, subject, policy, reseller_id, merchant_id, updated_by) "
            "VALUES ('merchant', 'a1', $1, 'a', 'a1', 'test')",
            NEVER,
        )
    refused = expect(await world.admin.post(LEADS, LEAD), 422)
    assert "never open" in refused["fields"][0]["error"]
    bad, good = await bulk(world, [LEAD, LEAD | {"merchant_id": "a2"}])
    assert (bad["result"], good["result"]) == ("refused", "created")
    assert await kept(world) == ["r1"]


async def test_a_csv_with_a_broken_row_keeps_the_others(world: ApiWorld) -> None:
    body = b'request_id,merchant_id,phone\nr1,a1,+14155550001\nr2,"a1,+14155550002\nr3,a1,+14155550003\n'
    answer = await world.admin.request("POST", BULK, body=body, headers={"content-type": "text/csv"})
    report = expect(answer, 200)
    assert (report["created"], report["refused"]) == (2, 1)
    assert [each["row"] for each in report["results"] if each["result"] == "refused"] == [2]
    assert await kept(world) == ["r1", "r3"]


@pytest.mark.parametrize("path", [LEADS, BULK])
async def test_a_body_of_200_megabytes_is_refused_before_it_is_read(world: ApiWorld, path: str) -> None:
    was_read = False

    async def never() -> AsyncIterator[bytes]:
        nonlocal was_read
        was_read = True
        yield b""

    headers = {"content-type": "application/json", "content-length": "200000000"}
    answer = await world.admin.request("POST", path, body=never(), headers=headers)
    refused = expect(answer, 413)
    assert refused["code"] == "body_too_large"
    assert "At most" in refused["error"]
    assert answer.headers["connection"] == "close"
    assert not was_read


async def test_a_cursor_of_another_filter_is_refused(world: ApiWorld) -> None:
    for number in range(3):
        await world.make_lead("a1", f"r{number}")
    query = {"merchant_id": "a1", "status": "BACKLOG", "limit": 1}
    cursor = expect(await world.admin.get(LEADS, query), 200)["next_cursor"]
    others: list[dict[str, object]] = [
        {"merchant_id": "a2", "status": "BACKLOG"},
        {"merchant_id": "a1"},
        {"merchant_id": "a1", "status": "FINISHED"},
        {"merchant_id": "a1", "status": "BACKLOG", "phone": "+14155550123"},
    ]
    for other in others:
        assert expect(await world.admin.get(LEADS, other | {"cursor": cursor}), 400)["code"] == "bad_cursor"
    assert (
        expect(await world.tenant("a1").get(LEADS, query | {"cursor": cursor}), 400)["code"] == "bad_cursor"
    )
    seen = expect(await world.admin.get(LEADS, query | {"cursor": cursor}), 200)
    assert len(seen["items"]) == 1
