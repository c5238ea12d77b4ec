import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.api.deps import ApiDeps, ApiLimits
from trunkline.model import new_id

LEADS = "/api/v1/leads"
LEAD = {"request_id": "r1", "merchant_id": "a1", "phone": "+14155550123", "payload": {"name": "Ada"}}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def count_leads(world: ApiWorld) -> int:
    async with world.database.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM leads"))


async def test_a_new_lead_is_201_and_can_be_read(world: ApiWorld) -> None:
    lead = expect(await world.admin.post(LEADS, LEAD), 201)
    assert lead["status"] == "BACKLOG"
    assert (lead["reseller_id"], lead["merchant_id"], lead["pool"]) == ("a", "a1", "a1-pool")
    assert lead["payload"] == {"name": "Ada"}
    read = expect(await world.admin.get(f"{LEADS}/{lead['id']}"), 200)
    assert lead.items() <= read.items()
    assert (read["attempts"], read["decisions"]) == ([], [])
    assert [each["what"] for each in read["timeline"]] == ["created"]


async def test_the_same_request_again_is_200_with_the_same_lead(world: ApiWorld) -> None:
    first = expect(await world.admin.post(LEADS, LEAD), 201)
    again = expect(await world.admin.post(LEADS, LEAD | {"phone": "+1 (415) 555-0123", "priority": 50}), 200)
    assert again == first
    assert await count_leads(world) == 1
    assert len(world.accepted) == 1


async def test_the_same_request_id_with_other_content_is_409(world: ApiWorld) -> None:
    expect(await world.admin.post(LEADS, LEAD), 201)
    refused = expect(await world.admin.post(LEADS, LEAD | {"phone": "+14155550199"}), 409)
    assert refused["code"] == "request_id_reused"
    assert await count_leads(world) == 1


async def test_the_same_request_id_of_another_merchant_is_another_lead(world: ApiWorld) -> None:
    first = expect(await world.admin.post(LEADS, LEAD), 201)
    second = expect(await world.admin.post(LEADS, LEAD | {"merchant_id": "a2"}), 201)
    assert first["id"] != second["id"]


async def test_a_repeated_request_stays_the_same_when_the_default_pool_has_changed(world: ApiWorld) -> None:
    first = expect(await world.admin.post(LEADS, LEAD), 201)
    expect(await world.admin.patch("/api/v1/merchants/a1", {"default_pool": "shared"}), 200)
    assert expect(await world.admin.post(LEADS, LEAD), 200) == first


async def test_one_request_sent_many_times_at_once_makes_one_lead(world: ApiWorld) -> None:
    answers = await asyncio.gather(*(world.admin.post(LEADS, LEAD) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await count_leads(world) == 1


async def test_a_lead_is_handed_to_the_schedule_after_its_commit(database_url: str) -> None:
    seen: list[int] = []
    async with open_api(database_url, limits=ApiLimits(schedule_timeout_s=30)) as opened:

        async def look(_ids: Sequence[UUID]) -> None:
            seen.append(await count_leads(opened))

        replace_callback(opened, look)
        expect(await opened.admin.post(LEADS, LEAD), 201)
    assert seen == [1]


@pytest.mark.parametrize("error", [RuntimeError("no Valkey"), TimeoutError()])
async def test_a_schedule_that_fails_does_not_fail_the_request(world: ApiWorld, error: Exception) -> None:
    async def fail(_ids: Sequence[UUID]) -> None:
        raise error

    replace_callback(world, fail)
    expect(await world.admin.post(LEADS, LEAD), 201)
    assert await count_leads(world) == 1


async def test_a_hanging_schedule_does_not_delay_the_response(database_url: str) -> None:
    cancelled = asyncio.Event()

    async def hang(_ids: Sequence[UUID]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with open_api(database_url, limits=ApiLimits(schedule_timeout_s=0.01)) as world:
        replace_callback(world, hang)
        expect(await world.admin.post(LEADS, LEAD), 201)
        assert cancelled.is_set()


def replace_callback(world: ApiWorld, callback: Any) -> None:
    deps: ApiDeps = world.app.state.api.deps
    object.__setattr__(deps, "on_leads_accepted", callback)


async def test_a_key_of_a_merchant_may_leave_the_merchant_out(world: ApiWorld) -> None:
    body = {name: value for name, value in LEAD.items() if name != "merchant_id"}
    assert expect(await world.tenant("a1", "leads").post(LEADS, body), 201)["merchant_id"] == "a1"
    refused = expect(await world.tenant("a").post(LEADS, body), 422)
    assert refused["fields"][0]["field"] == "merchant_id"


async def test_a_merchant_that_the_key_cannot_see_is_unknown(
    world: ApiWorld, subtests: pytest.Subtests
) -> None:
    for tenant, merchant_id in [("a", "b1"), ("a1", "a2"), ("a1", "b1"), ("a1", "nobody")]:
        with subtests.test(tenant=tenant, merchant_id=merchant_id):
            refused = expect(await world.tenant(tenant).post(LEADS, LEAD | {"merchant_id": merchant_id}), 404)
            assert refused["code"] == "unknown_merchant"
            assert await count_leads(world) == 0


@pytest.mark.parametrize("pool", ["a1-pool", "a-pool", "shared"])
async def test_a_lead_may_use_its_merchants_its_resellers_and_the_platforms_pool(
    world: ApiWorld, pool: str
) -> None:
    assert expect(await world.tenant("a1").post(LEADS, LEAD | {"pool": pool}), 201)["pool"] == pool


async def test_no_key_whatever_can_put_a_lead_into_another_tenants_pool(
    world: ApiWorld, subtests: pytest.Subtests
) -> None:
    for pool in ["a2-pool", "b-pool", "b1-pool", "no-such"]:
        with subtests.test(pool=pool):
            for client in (world.tenant("a1"), world.tenant("a"), world.admin):
                refused = expect(await client.post(LEADS, LEAD | {"pool": pool}), 422)
                assert refused["fields"] == [
                    {"field": "pool", "error": f"This merchant has no pool {pool!r}."}
                ]
            assert await count_leads(world) == 0


async def test_a_pool_that_is_removed_at_the_same_moment_is_a_clear_error(world: ApiWorld) -> None:
    expect(await world.admin.post("/api/v1/pools", {"id": "p", "name": "P"}), 201)
    async with world.database.transaction() as removal:
        await removal.execute("DELETE FROM pools WHERE id = 'p'")
        request = asyncio.create_task(world.admin.post(LEADS, LEAD | {"pool": "p"}))
        await world.somebody_waits_for_a_lock()
    assert expect(await request, 409)["code"] == "changed_meanwhile"
    assert await count_leads(world) == 0


async def test_a_merchant_without_a_default_pool_must_name_one(world: ApiWorld) -> None:
    expect(await world.admin.patch("/api/v1/merchants/a1", {"default_pool": None}), 200)
    refused = expect(await world.admin.post(LEADS, LEAD), 422)
    assert refused["fields"][0]["field"] == "pool"


async def test_the_merchants_region_reads_a_national_phone(world: ApiWorld) -> None:
    national = LEAD | {"phone": "0171 2345678"}
    refused = expect(await world.admin.post(LEADS, national), 422)
    assert "country is missing" in refused["fields"][0]["error"]
    expect(await world.admin.patch("/api/v1/merchants/a1", {"default_region": "DE"}), 200)
    assert expect(await world.admin.post(LEADS, national), 201)["phone"] == "+491712345678"


async def test_a_moment_in_the_past_is_now_and_one_in_the_future_is_kept(world: ApiWorld) -> None:
    started = datetime.now(UTC) - timedelta(minutes=5)
    past = expect(await world.admin.post(LEADS, LEAD | {"scheduled_at": "2001-01-01T00:00:00Z"}), 201)
    assert datetime.fromisoformat(past["due_at"]) > started
    later = LEAD | {"request_id": "r2", "scheduled_at": "2090-01-01T01:00:00+01:00"}
    future = expect(await world.admin.post(LEADS, later), 201)
    assert future["due_at"] == future["scheduled_at"] == "2090-01-01T00:00:00Z"


async def test_a_payload_over_the_limit_is_refused(world: ApiWorld) -> None:
    refused = expect(await world.admin.post(LEADS, LEAD | {"payload": {"a": "x" * 70_000}}), 422)
    assert refused["fields"][0]["field"] == "payload"


async def test_a_broken_body_is_answered_4xx(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for body, status, code in [
        (b"{", 400, "bad_json"),
        (b"[" * 100_000, 400, "bad_body"),
        (b'{"request_id": "\xff"}', 400, "bad_body"),
        (b"1" * 5000, 400, "bad_body"),
        (b"[]", 422, "invalid_request"),
        (b"null", 422, "invalid_request"),
        (b"", 422, "invalid_request"),
        (b'{"request_id": "\\ud800", "merchant_id": "a1", "phone": "+14155550123"}', 422, "invalid_request"),
        (b'{"\\ud800": 1}', 422, "invalid_request"),
        (
            b'{"request_id":"r","merchant_id":"a1","phone":"+14155550123","payload":{"a":NaN}}',
            422,
            "invalid_request",
        ),
        (
            b'{"request_id":"r","merchant_id":"a1","phone":"+14155550123","payload":{"a":1e999}}',
            422,
            "invalid_request",
        ),
    ]:
        with subtests.test(body=body, status=status, code=code):
            answer = await world.admin.request(
                "POST", LEADS, body=body, headers={"content-type": "application/json"}
            )
            assert expect(answer, status)["code"] == code


async def test_a_body_that_is_not_said_to_be_json_is_415(world: ApiWorld) -> None:
    for headers in ({"content-type": "text/plain"}, {}):
        answer = await world.admin.request("POST", LEADS, body=b'{"request_id": "r1"}', headers=headers)
        assert expect(answer, 415)["code"] == "unsupported_media_type"


async def test_a_list_is_newest_first_and_can_be_walked_while_leads_arrive(world: ApiWorld) -> None:
    ids = [(await world.make_lead("a1", f"r{i}"))["id"] for i in range(7)]
    seen: list[str] = []
    cursor: dict[str, object] = {}
    while True:
        page = expect(await world.tenant("a1").get(LEADS, {"limit": 3, **cursor}), 200)
        seen += [lead["id"] for lead in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
        await world.make_lead("a1", f"late-{len(seen)}")
    assert seen == ids[::-1]


async def test_every_filter_narrows_the_list(world: ApiWorld) -> None:
    campaign = str(uuid4())
    one = await world.make_lead("a1", "r1", campaign_id=campaign)
    two = await world.make_lead("a2", "r2", phone="+14155550199")
    await finish(world, two["id"])
    filters: list[tuple[dict[str, object], str]] = [
        ({"merchant_id": "a1"}, one["id"]),
        ({"campaign_id": campaign}, one["id"]),
        ({"phone": "+14155550199"}, two["id"]),
        ({"phone": " 1 415 555 0199"}, two["id"]),
        ({"phone": "14155550199"}, two["id"]),
        ({"status": "BACKLOG"}, one["id"]),
        ({"status": "FINISHED"}, two["id"]),
        ({"status": "FINISHED", "merchant_id": "a2", "phone": "+14155550199"}, two["id"]),
    ]
    for client in (world.admin, world.tenant("a")):
        for query, expected in filters:
            items = expect(await client.get(LEADS, query), 200)["items"]
            assert [lead["id"] for lead in items] == [expected], query
        assert (
            expect(await client.get(LEADS, {"status": "FINISHED", "merchant_id": "a1"}), 200)["items"] == []
        )


async def finish(world: ApiWorld, lead_id: str) -> None:
    async with world.database.connection() as connection:
        await connection.execute(
            "UPDATE leads SET status = 'FINISHED', outcome = 'ANSWERED', finished_at = now() WHERE id = $1",
            lead_id,
        )


@pytest.mark.parametrize(
    "other",
    [{"merchant_id": "a1"}, {"status": "BACKLOG"}, {"phone": "+14155550123"}, {"campaign_id": str(uuid4())}],
)
async def test_a_cursor_of_another_filter_is_a_clear_error(world: ApiWorld, other: dict[str, object]) -> None:
    for i in range(3):
        await world.make_lead("a1", f"r{i}")
    cursor = expect(await world.admin.get(LEADS, {"limit": 1}), 200)["next_cursor"]
    refused = expect(await world.admin.get(LEADS, {"limit": 1, "cursor": cursor, **other}), 400)
    assert refused["code"] == "bad_cursor"
    refused = expect(await world.tenant("a").get(LEADS, {"limit": 1, "cursor": cursor}), 400)
    assert refused["code"] == "bad_cursor"
    expect(await world.admin.get(LEADS, {"limit": 2, "cursor": cursor}), 200)


WRONG_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit"),
    ({"limit": 201}, "limit"),
    ({"state": "BACKLOG"}, "state"),
    ({"status": "DONE"}, "status"),
    ({"phone": "12"}, "phone"),
    ({"phone": "\x00"}, "phone"),
    ({"merchant_id": "\x00"}, "merchant_id"),
    ({"campaign_id": "x"}, "campaign_id"),
]


async def test_a_wrong_filter_is_named(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for query, field in WRONG_FILTERS:
        with subtests.test(query=query, field=field):
            refused = expect(await world.admin.get(LEADS, query), 422)
            assert [problem["field"] for problem in refused["fields"]] == [field]


async def test_a_lead_shows_its_attempts_in_order(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    for attempt_no, state in ((1, "rejected"), (2, "ringing")):
        await add_attempt(world, lead["id"], attempt_no, state)
    attempts = expect(await world.tenant("a1").get(f"{LEADS}/{lead['id']}"), 200)["attempts"]
    assert [(attempt["attempt_no"], attempt["state"]) for attempt in attempts] == [
        (1, "rejected"),
        (2, "ringing"),
    ]
    assert attempts[0]["from_phone"] == "+14155550100"
    assert "dialer" not in attempts[0]


async def add_attempt(world: ApiWorld, lead_id: str, attempt_no: int, state: str) -> None:
    async with world.database.connection() as connection:
        await connection.execute(
            """INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no,
                                     carrier, account, to_phone, from_phone, state, dialer, holds_channel)
               VALUES ($1, $2, $3, 'a', 'a1', $4, 1, 'twilio', 'default', '+14155550123', '+14155550100', $5, 'd',
                       false)""",
            new_id(),
            lead_id,
            attempt_no,
            world.numbers["a1-pool"],
            state,
        )


async def test_an_id_of_no_lead_is_404(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for lead_id in ["x", "00000000-0000-0000-0000-000000000000", "%00", "1" * 500]:
        with subtests.test(lead_id=lead_id):
            assert expect(await world.admin.get(f"{LEADS}/{lead_id}"), 404)["code"] == "not_found"
