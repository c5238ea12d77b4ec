"""Uploads of many leads: each row its own fate, none lost, none twice."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.asgi import Answer, AsgiClient
from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.api.body_guard import BodyRule
from trunkline.api.deps import ApiLimits
from trunkline.leads import bulk
from trunkline.store import leads

LEADS = "/api/v1/leads"
BULK = f"{LEADS}/bulk"
JSON, NDJSON, CSV = "application/json", "application/x-ndjson", "text/csv"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"request_id": f"r{number}", "merchant_id": "a1", "phone": f"+1415555{number:04}", **more}


def written(rows: Sequence[Any], kind: str) -> bytes:
    if kind == JSON:
        return json.dumps(rows).encode()
    if kind == NDJSON:
        return "\n".join(map(json.dumps, rows)).encode()
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for each in rows for name in each)))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


async def pieces(body: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def upload(
    client: AsgiClient, body: bytes | AsyncIterator[bytes], kind: str = JSON, **query: object
) -> Answer:
    accept = {"accept": NDJSON} if query.pop("lines", False) else {}
    return await client.request(
        "POST", BULK, body=body, query=query, headers={"content-type": kind, **accept}
    )


async def taken(world: ApiWorld, rows: Sequence[Any], kind: str = JSON, **query: object) -> dict[str, Any]:
    return expect(await upload(world.admin, written(rows, kind), kind, **query), 200)


def sums(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in ("rows", "created", "existing", "conflict", "refused"))


def fates(report: dict[str, Any]) -> list[str]:
    return [f"{each['row']} {each['result']}" for each in report["results"]]


async def stored(world: ApiWorld) -> list[Any]:
    async with world.database.connection() as connection:
        return await connection.fetch("SELECT * FROM leads ORDER BY request_id")


@pytest.mark.parametrize("kind", [JSON, NDJSON, CSV])
async def test_a_row_of_an_upload_becomes_the_same_lead_as_a_single_request(
    world: ApiWorld, kind: str
) -> None:
    rows = [
        row(1, priority=7, max_attempts=3, timezone="Asia/Tokyo"),
        row(2, scheduled_at="2031-05-01T09:30:00+02:00", pool="shared"),
        row(3, reporting_webhook_url="https://acme.example/hook", campaign_id=str(UUID(int=5))),
    ]
    report = await taken(world, rows, kind)
    assert sums(report) == (3, 3, 0, 0, 0)
    for each, result in zip(rows, report["results"], strict=True):
        given = {name: value for name, value in each.items() if value != ""}
        alone = expect(await world.admin.post(LEADS, given), 200)
        assert result == {
            "row": result["row"],
            "result": "created",
            "request_id": each["request_id"],
            "id": alone["id"],
        }
        assert alone["scheduled_at"] >= alone["created_at"]
        assert alone["version"] == 1


async def test_columns_of_a_csv_become_the_payload(world: ApiWorld) -> None:
    body = b'request_id,merchant_id,phone,payload,payload.name\nr1,a1,+14155550123,"{""order"": 7}","Ada, Countess"\n'
    assert sums(expect(await upload(world.admin, body, CSV), 200)) == (1, 1, 0, 0, 0)
    [lead] = await stored(world)
    assert lead["payload"] == {"order": 7, "name": "Ada, Countess"}


async def test_the_phone_may_be_in_the_payload_and_without_its_country(world: ApiWorld) -> None:
    expect(await world.admin.patch("/api/v1/merchants/a1", {"default_region": "US"}), 200)
    lead = {"request_id": "r1", "merchant_id": "a1", "payload": {"customer_mobile_number": "(415) 555-0123"}}
    assert sums(await taken(world, [lead])) == (1, 1, 0, 0, 0)
    assert [each["phone"] for each in await stored(world)] == ["+14155550123"]


async def test_a_bad_row_is_refused_alone(world: ApiWorld) -> None:
    rows = [
        row(1),
        row(2, phone="+112"),
        row(3, priority=0),
        row(4, merchant_id="nobody"),
        row(5, pool="nowhere"),
        "not an object",
        row(7, colour="blue"),
        {"phone": "+14155550123"},
        row(9),
    ]
    report = await taken(world, rows)
    assert sums(report) == (9, 2, 0, 0, 7)
    assert fates(report) == ["1 created", *(f"{n} refused" for n in range(2, 9)), "9 created"]
    told = {each["row"]: each for each in report["results"]}
    assert told[2]["fields"] == [{"field": "phone", "error": "The number is too short for its country."}]
    assert [told[n]["fields"][0]["field"] for n in (3, 4, 5, 7)] == [
        "priority",
        "merchant_id",
        "pool",
        "colour",
    ]
    assert [told[n]["code"] for n in (2, 4)] == ["invalid_request", "unknown_merchant"]
    assert [told[n].get("request_id") for n in (2, 6, 8)] == ["r2", None, None]
    assert [each["request_id"] for each in await stored(world)] == ["r1", "r9"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (NDJSON, b'%b\n{"request_id": "r2", \n%b\n'),
        (CSV, b'request_id,merchant_id,phone\nr1,a1,+14155550001\nr2,a1,"+14155550002\nr3,a1,+14155550003\n'),
        (CSV, b"request_id,merchant_id,phone\nr1,a1,+14155550001\nr2,a1\nr3,a1,+14155550003\n"),
        (CSV, b"request_id,merchant_id,phone\nr1,a1,+14155550001\n\xff\xfe,a1,1\nr3,a1,+14155550003\n"),
    ],
)
async def test_an_unreadable_row_is_refused_alone(world: ApiWorld, kind: str, body: bytes) -> None:
    if kind == NDJSON:
        body %= (json.dumps(row(1)).encode(), json.dumps(row(3)).encode())
    report = expect(await upload(world.admin, body, kind), 200)
    assert fates(report) == ["1 created", "2 refused", "3 created"]
    assert report["results"][1]["code"] == "unreadable"
    assert report["results"][1]["error"]
    assert [each["request_id"] for each in await stored(world)] == ["r1", "r3"]


async def test_a_json_array_that_breaks_keeps_the_rows_before(world: ApiWorld) -> None:
    body = json.dumps([row(1), row(2)]).encode()[:-1] + b', {"request_id": ]'
    answer = expect(await upload(world.admin, body), 400)
    assert answer["code"] == "bad_json"
    assert "Row 3" in answer["error"]
    assert "2 rows before it were taken in" in answer["error"]
    assert sums(answer["report"]) == (2, 2, 0, 0, 0)
    assert len(await stored(world)) == 2


async def test_the_same_upload_again_makes_nothing_new(world: ApiWorld) -> None:
    rows = [row(n) for n in range(5)]
    first = await taken(world, rows)
    again = await taken(world, [*rows, row(5)])
    assert sums(again) == (6, 1, 5, 0, 0)
    assert [each["id"] for each in again["results"][:5]] == [each["id"] for each in first["results"]]
    assert len(world.accepted) == 6


async def test_a_request_id_with_other_content_is_a_conflict(world: ApiWorld) -> None:
    alone = expect(await world.admin.post(LEADS, row(1)), 201)
    report = await taken(world, [row(1, phone="+14155550199"), row(1), row(2)])
    assert fates(report) == ["1 conflict", "2 existing", "3 created"]
    assert report["results"][0]["code"] == "request_id_reused"
    assert report["results"][1]["id"] == alone["id"]
    assert [each["phone"] for each in await stored(world)] == ["+14155550001", "+14155550002"]


async def test_within_an_upload_the_first_row_of_a_request_id_counts(world: ApiWorld) -> None:
    rows = [row(1), row(2), row(1), row(1, priority=9), row(1, merchant_id="a2")]
    report = await taken(world, rows)
    assert fates(report) == ["1 created", "2 created", "3 existing", "4 conflict", "5 created"]
    assert report["results"][2]["id"] == report["results"][0]["id"]


async def test_duplicates_are_found_across_batches(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH_ROWS", 2)
    monkeypatch.setattr("trunkline.api.routes.leads_bulk.BLOCK_BYTES", 64)
    rows = [row(n % 4) for n in range(8)]
    report = expect(await upload(world.admin, pieces(written(rows, NDJSON), 40), NDJSON), 200)
    assert fates(report) == [f"{n} {'created' if n <= 4 else 'existing'}" for n in range(1, 9)]


async def test_a_row_with_a_phone_on_a_do_not_call_list_is_refused(world: ApiWorld) -> None:
    async with world.database.connection() as connection:
        await connection.execute(
            "INSERT INTO do_not_call (id, phone, reseller_id, merchant_id, reason, created_by, expires_at) VALUES "
            "(gen_random_uuid(), '+14155550001', NULL, NULL, 'asked', 'test', NULL), "
            "(gen_random_uuid(), '+14155550002', 'a', NULL, 'asked', 'test', NULL), "
            "(gen_random_uuid(), '+14155550003', 'a', 'a2', 'asked', 'test', NULL), "
            "(gen_random_uuid(), '+14155550004', NULL, NULL, 'asked', 'test', now() - interval '1 day')"
        )
    report = await taken(world, [row(n) for n in range(1, 5)])
    assert fates(report) == ["1 refused", "2 refused", "3 created", "4 created"]
    assert {each.get("code") for each in report["results"][:2]} == {"do_not_call"}
    refused = expect(await world.admin.post(LEADS, row(1)), 403)
    assert refused["code"] == "do_not_call"
    expect(await world.admin.post(LEADS, row(2, merchant_id="b1")), 201)


async def test_an_uploaded_lead_whose_window_is_closed_is_due_at_its_opening(world: ApiWorld) -> None:
    window = {
        "windows": [{"spans": [{"start": "00:00", "end": "24:00"}], "closed_on": []}],
        "timezone": "UTC",
    }
    async with world.database.transaction() as tx:
        today = await tx.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date::text")
        window["windows"][0]["closed_on"] = [today]  # type: ignore[index]
        await tx.execute(
            "INSERT INTO policies (scope, subject, policy, reseller_id, merchant_id, updated_by) "
            "VALUES ('merchant', 'a1', $1, 'a', 'a1', 'test')",
            window,
        )
    await taken(world, [row(1), row(2, scheduled_at="2031-01-01T12:00:00Z"), row(3, merchant_id="a2")])
    expect(await world.admin.post(LEADS, row(4)), 201)
    async with world.database.connection() as connection:
        told = await connection.fetch(
            "SELECT request_id, until = due_at AS is_due, (due_at AT TIME ZONE 'UTC')::date - $1::text::date AS days, "
            "due_at > scheduled_at AS is_later FROM leads LEFT JOIN decisions ON lead_id = leads.id ORDER BY 1",
            today,
        )
    assert [(each["request_id"], each["is_due"], each["is_later"]) for each in told] == [
        ("r1", True, True), ("r2", None, False), ("r3", None, False), ("r4", True, True)
    ]  # fmt: skip
    assert told[0]["days"] == 1


@pytest.mark.parametrize("kind", [JSON, NDJSON])
async def test_all_or_nothing_takes_all(world: ApiWorld, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH_ROWS", 3)
    monkeypatch.setattr("trunkline.api.routes.leads_bulk.BLOCK_BYTES", 128)
    rows = [row(n) for n in range(10)]
    report = await taken(world, rows, kind, atomic="true")
    assert sums(report) == (10, 10, 0, 0, 0)
    assert len(await stored(world)) == len(world.accepted) == 10
    again = await taken(world, [*rows, row(10), row(10)], kind, atomic="true")
    assert sums(again) == (12, 1, 11, 0, 0)


@pytest.mark.parametrize(
    "bad",
    [row(99, phone="+112"), row(99, merchant_id="nobody"), row(0, priority=9), row(1, priority=8), {"x": 1}],
)
async def test_all_or_nothing_takes_nothing_if_a_row_is_refused(world: ApiWorld, bad: dict[str, Any]) -> None:
    expect(await world.admin.post(LEADS, row(0)), 201)
    rows = [row(1), row(2), bad, row(3)]
    answer = expect(await upload(world.admin, written(rows, JSON), atomic="true"), 422)
    assert answer["code"] == "rows_refused"
    assert answer["error"].startswith("1 of 4 rows")
    assert [each["row"] for each in answer["report"]["results"]] == [3]
    assert [each["request_id"] for each in await stored(world)] == ["r0"]
    assert len(world.accepted) == 1


async def test_all_or_nothing_takes_nothing_of_an_upload_that_breaks(world: ApiWorld) -> None:
    body = written([row(1), row(2)], JSON)[:-1]
    answer = expect(await upload(world.admin, body, atomic="true"), 400)
    assert answer["code"] == "bad_json"
    assert sums(answer["report"]) == (0, 0, 0, 0, 0)
    assert await stored(world) == []


async def test_results_are_returned_as_ndjson_when_requested(world: ApiWorld) -> None:
    answer = await upload(world.admin, written([row(1), row(2, phone="+112")], NDJSON), NDJSON, lines=True)
    assert answer.headers["content-type"] == NDJSON
    first, second, last = map(json.loads, answer.body.splitlines())
    assert (first["result"], second["result"]) == ("created", "refused")
    assert last == {"summary": {"rows": 2, "created": 1, "existing": 0, "conflict": 0, "refused": 1}}


async def test_only_problem_rows_are_returned_when_requested(world: ApiWorld) -> None:
    report = await taken(world, [row(1), row(2, phone="+112"), row(1)], results="problems")
    assert (sums(report), fates(report)) == ((3, 1, 1, 0, 1), ["2 refused"])


@pytest.mark.parametrize("kind", [JSON, NDJSON])
async def test_an_upload_without_rows_makes_none(world: ApiWorld, kind: str) -> None:
    assert sums(await taken(world, [], kind)) == (0, 0, 0, 0, 0)
    assert sums(await taken(world, [], kind, atomic="true")) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "more", "status", "code"),
    [
        ("application/xml", {}, 415, "unsupported_media_type"),
        ("", {}, 415, "unsupported_media_type"),
        (NDJSON, {"content-encoding": "gzip"}, 415, "unsupported_media_type"),
        (CSV, {}, 400, "bad_csv"),
    ],
)
async def test_an_upload_of_an_unreadable_kind_is_refused_at_once(
    world: ApiWorld, kind: str, more: dict[str, str], status: int, code: str
) -> None:
    answer = await world.admin.request("POST", BULK, body=b"[]", headers={"content-type": kind, **more})
    assert expect(answer, status)["code"] == code


async def test_a_body_that_is_announced_as_too_large_is_not_read(world: ApiWorld) -> None:
    was_read = False

    async def never() -> AsyncIterator[bytes]:
        nonlocal was_read
        was_read = True
        yield b""

    answer = await world.admin.request(
        "POST", BULK, body=never(), headers={"content-type": JSON, "content-length": str(200_000_000)}
    )
    assert expect(answer, 413)["code"] == "body_too_large"
    assert answer.headers["connection"] == "close"
    assert not was_read


async def test_a_body_that_grows_too_large_is_read_no_further(database_url: str) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for number in range(200_000):
            sent += 1
            yield written([row(number)], NDJSON) + b"\n"

    limits = ApiLimits(body_exceptions={BULK: BodyRule(100_000, 60)})
    async with open_api(database_url, limits=limits) as world:
        answer = expect(await upload(world.admin, endless(), NDJSON), 413)
        assert answer["code"] == "body_too_large"
        assert sent < 3000, "it was read to its end"
        report = answer["report"]
        assert report["created"] == len(await stored(world)) > 0
        assert str(report["created"]) in answer["error"]


async def test_an_upload_may_be_larger_than_other_bodies(world: ApiWorld) -> None:
    rows = [row(n, payload={"note": "x" * 40_000}) for n in range(50)]
    assert sums(await taken(world, rows)) == (50, 50, 0, 0, 0)
    assert expect(await world.admin.post(LEADS, row(99, payload={"note": "x" * 2_000_000})), 413)


async def test_one_row_more_than_allowed_ends_the_upload(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ROWS_MAX", 3)
    answer = expect(await upload(world.admin, written([row(n) for n in range(5)], JSON)), 413)
    assert answer["code"] == "too_many_rows"
    assert sums(answer["report"]) == (3, 3, 0, 0, 0)


async def test_a_key_reaches_no_other_tenant(world: ApiWorld) -> None:
    rows = [row(1), row(2, merchant_id="a2"), row(3, merchant_id="b1"), row(4, pool="b1-pool")]
    report = expect(await upload(world.tenant("a1", "leads"), written(rows, JSON)), 200)
    assert fates(report) == ["1 created", "2 refused", "3 refused", "4 refused"]
    own = [{name: value for name, value in row(5).items() if name != "merchant_id"}]
    assert expect(await upload(world.tenant("a1", "leads"), written(own, JSON)), 200)["created"] == 1
    refused = expect(await upload(world.tenant("a", "leads"), written(own, JSON)), 200)
    assert refused["results"][0]["fields"][0]["field"] == "merchant_id"


async def test_the_first_leads_are_brought_to_the_schedule(world: ApiWorld) -> None:
    report = await taken(world, [row(n) for n in range(300)])
    assert [str(lead_id) for lead_id in world.accepted] == [each["id"] for each in report["results"][:100]]


async def test_a_schedule_that_fails_does_not_fail_the_upload(world: ApiWorld) -> None:
    async def fail(_ids: Sequence[UUID]) -> None:
        raise RuntimeError("no Valkey")

    object.__setattr__(world.app.state.api.deps, "on_leads_accepted", fail)
    assert sums(await taken(world, [row(1)])) == (1, 1, 0, 0, 0)


async def test_two_uploads_of_the_same_rows_in_another_order_do_not_wait_for_each_other(
    world: ApiWorld,
) -> None:
    rows = [row(n) for n in range(3000)]
    for _ in range(3):
        async with world.database.connection() as connection:
            await connection.execute("DELETE FROM leads")
        first, second = await asyncio.gather(taken(world, rows), taken(world, rows[::-1]))
        assert first["created"] + second["created"] == 3000
        assert first["existing"] + second["existing"] == 3000


async def test_a_lead_that_is_inserted_meanwhile_is_found(world: ApiWorld) -> None:
    """The upload waits for the other's commit, and its own snapshot is older than that."""
    expect(await world.admin.post(LEADS, row(1)), 201)
    [lead] = await stored(world)
    async with world.database.transaction() as tx:
        await tx.execute("DELETE FROM leads")
        columns = [name for name in lead.keys()]  # noqa: C416, SIM118 (a record iterates over values)
        await tx.execute(
            f"INSERT INTO leads ({', '.join(columns)}) VALUES ({', '.join(f'${n + 1}' for n in range(len(columns)))})",
            *lead.values(),
        )
        uploading = asyncio.create_task(taken(world, [row(1), row(1, priority=9), row(2)]))
        await world.somebody_waits_for_a_lock()
    report = await uploading
    assert fates(report) == ["1 existing", "2 conflict", "3 created"]
    assert report["results"][0]["id"] == str(lead["id"])


async def test_an_upload_cut_by_a_store_failure_is_503_with_a_report_of_stored_rows(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_ROWS", 10)
    monkeypatch.setattr("trunkline.api.routes.leads_bulk.BLOCK_BYTES", 64)
    load, loads = leads.load, iter(range(10))

    async def load_once(*args: Any, **more: Any) -> Any:
        if next(loads):
            raise ConnectionResetError("gone")
        return await load(*args, **more)

    monkeypatch.setattr(leads, "load", load_once)
    rows = [row(n) for n in range(40)]
    answer = await upload(world.admin, pieces(written(rows, NDJSON)), NDJSON)
    told = expect(answer, 503)
    assert (told["code"], answer.headers["retry-after"]) == ("store_unavailable", "2")
    taken_in = told["report"]["created"]
    assert taken_in == told["report"]["rows"] == len(await stored(world)) < 40
    monkeypatch.undo()
    again = await taken(world, rows)
    assert sums(again) == (40, 40 - taken_in, taken_in, 0, 0)


async def test_an_upload_yields_the_event_loop_while_it_is_parsed(world: ApiWorld) -> None:
    """No single turn of the upload may hold the event loop for long: counted in turns, not in time."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    body = written([row(n) for n in range(5000)], JSON)
    before = turns
    expect(await upload(world.admin, body), 200)
    counting.cancel()
    assert turns - before > 20


async def test_only_two_uploads_are_processed_at_once(world: ApiWorld) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        reached.set()
        yield b"["
        await go_on.wait()
        yield b"]"

    slow_ones = [asyncio.create_task(upload(world.admin, slow())) for _ in range(2)]
    await reached.wait()
    third = asyncio.create_task(taken(world, [row(1)]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not third.done()
    assert await stored(world) == []
    go_on.set()
    assert sums(await third) == (1, 1, 0, 0, 0)
    assert [(await one).status for one in slow_ones] == [200, 200]
