"""Resellers, merchants, pools and numbers: made, read, changed, removed, and by whom."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.model import new_id


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def audited(world: ApiWorld, subject: str) -> list[str]:
    async with world.database.connection() as connection:
        rows = await connection.fetch("SELECT action FROM audit_log WHERE subject = $1 ORDER BY id", subject)
    return [row["action"] for row in rows]


NEW: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("resellers", {"id": "c", "name": "C"}, {"name": "See"}),
    ("merchants", {"id": "c1", "reseller_id": "a", "name": "C1"}, {"name": "See", "weight": 7}),
    ("pools", {"id": "c-pool", "name": "C"}, {"name": "See"}),
    (
        "numbers",
        {"e164": "+14155550190", "pool": "shared", "carrier": "twilio", "max_channels": 3},
        {"max_channels": 9, "status": "draining", "pool": "a-pool", "account": "other", "carrier": "plivo"},
    ),
]


@pytest.mark.parametrize(("kind", "body", "change"), NEW)
async def test_each_resource_is_created_read_changed_and_removed_with_audit_entries(
    world: ApiWorld, kind: str, body: dict[str, Any], change: dict[str, Any]
) -> None:
    made = expect(await world.admin.post(f"/api/v1/{kind}", body), 201)
    assert body.items() <= made.items()
    path = f"/api/v1/{kind}/{made['id']}"
    assert expect(await world.admin.get(path), 200) == made
    changed = expect(await world.admin.patch(path, change), 200)
    assert change.items() <= changed.items()
    assert expect(await world.admin.patch(path, {}), 200)["id"] == made["id"]
    expect(await world.admin.delete(path), 204)
    expect(await world.admin.get(path), 404)
    expect(await world.admin.delete(path), 404)
    word = kind.removesuffix("s")
    expected = [f"{word}.created", f"{word}.changed", f"{word}.changed", f"{word}.removed"]
    assert await audited(world, made["id"]) == expected


OF_AGENTS = [("merchants", "a1"), ("pools", "a1-pool")]


@pytest.mark.parametrize(("kind", "name"), OF_AGENTS)
async def test_the_agents_field_is_set_by_the_reseller_or_platform_not_by_the_merchant(
    world: ApiWorld, kind: str, name: str
) -> None:
    path = f"/api/v1/{kind}/{name}"
    assert expect(await world.admin.get(path), 200)["agents"] == "ours"
    assert expect(await world.tenant("a").patch(path, {"agents": "elsewhere"}), 200)["agents"] == "elsewhere"
    refused = expect(await world.tenant("a1").patch(path, {"agents": "ours"}), 403)
    assert refused["code"] == "not_owner"
    assert expect(await world.tenant("a1").get(path), 200)["agents"] == "elsewhere"
    assert expect(await world.admin.patch(path, {"agents": "ours"}), 200)["agents"] == "ours"
    expect(await world.tenant("b").patch(path, {"agents": "elsewhere"}), 404)


async def test_a_merchant_cannot_make_a_pool_with_external_agents(world: ApiWorld) -> None:
    body = {"id": "own", "name": "Own", "agents": "elsewhere"}
    assert expect(await world.tenant("a1").post("/api/v1/pools", body), 403)["code"] == "not_owner"
    assert expect(await world.tenant("a").post("/api/v1/pools", body), 201)["agents"] == "elsewhere"


@pytest.mark.parametrize(("kind", "name"), OF_AGENTS)
@pytest.mark.parametrize("value", ["theirs", "", 1, ["ours"]])
async def test_the_agents_field_takes_only_its_two_values(
    world: ApiWorld, kind: str, name: str, value: object
) -> None:
    problem = expect(await world.admin.patch(f"/api/v1/{kind}/{name}", {"agents": value}), 422)
    assert [each["field"] for each in problem["fields"]] == ["agents"]


async def test_creating_an_existing_resource_is_409(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for kind, body, _ in NEW:
        with subtests.test(kind=kind, body=body):
            expect(await world.admin.post(f"/api/v1/{kind}", body), 201)
            assert expect(await world.admin.post(f"/api/v1/{kind}", body), 409)["code"] == "already_exists"


async def test_an_unknown_field_is_named(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for kind, body, _ in NEW:
        with subtests.test(kind=kind, body=body):
            refused = expect(await world.admin.post(f"/api/v1/{kind}", body | {"nmae": "x"}), 422)
            assert refused["fields"][0]["field"] == "nmae"


async def test_a_list_can_be_walked_by_its_cursor(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for kind in ["resellers", "merchants", "pools", "numbers", "keys"]:
        with subtests.test(kind=kind):
            everything = [
                item["id"] for item in expect(await world.admin.get(f"/api/v1/{kind}"), 200)["items"]
            ]
            seen: list[str] = []
            query: dict[str, object] = {"limit": 1}
            while True:
                page = expect(await world.admin.get(f"/api/v1/{kind}", query), 200)
                seen += [item["id"] for item in page["items"]]
                if page["next_cursor"] is None:
                    break
                query = {"limit": 1, "cursor": page["next_cursor"]}
            assert seen == everything == sorted(seen)
            assert len(seen) >= 2


async def test_a_resource_in_use_cannot_be_removed(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for path, _ in [
        ("resellers/a", "merchants"),
        ("merchants/a1", "pools"),
        ("pools/a1-pool", "merchants"),
        ("pools/shared", "numbers"),
    ]:
        with subtests.test(path=path):
            refused = expect(await world.admin.delete(f"/api/v1/{path}"), 409)
            assert refused["code"] == "in_use"
            expect(await world.admin.get(f"/api/v1/{path}"), 200)


async def test_a_pool_named_by_a_lead_cannot_be_removed(world: ApiWorld) -> None:
    expect(await world.admin.post("/api/v1/pools", {"id": "p", "name": "P"}), 201)
    await world.make_lead("a1", pool="p")
    refused = expect(await world.admin.delete("/api/v1/pools/p"), 409)
    assert "leads" in refused["error"]


async def test_a_tenant_with_a_usable_key_cannot_be_removed(world: ApiWorld) -> None:
    expect(await world.admin.post("/api/v1/merchants", {"id": "m", "reseller_id": "a", "name": "M"}), 201)
    secret = await world.make_key("read", merchant_id="m")
    refused = expect(await world.admin.delete("/api/v1/merchants/m"), 409)
    assert "api keys" in refused["error"]
    me = expect(await world.anybody.with_key(secret).get("/api/v1/me"), 200)
    expect(await world.admin.delete(f"/api/v1/keys/{me['key_id']}"), 200)
    expect(await world.admin.delete("/api/v1/merchants/m"), 204)


async def test_a_reseller_makes_and_changes_its_own_merchants(world: ApiWorld) -> None:
    reseller = world.tenant("a")
    made = expect(await reseller.post("/api/v1/merchants", {"id": "a3", "name": "A3"}), 201)
    assert made["reseller_id"] == "a"
    expect(await reseller.patch("/api/v1/merchants/a3", {"name": "Three"}), 200)
    expect(await reseller.delete("/api/v1/merchants/a3"), 204)
    refused = expect(
        await reseller.post("/api/v1/merchants", {"id": "b2", "reseller_id": "b", "name": "B2"}), 404
    )
    assert refused["code"] == "unknown_reseller"
    refused = expect(await world.admin.post("/api/v1/merchants", {"id": "x", "name": "X"}), 422)
    assert refused["fields"][0]["field"] == "reseller_id"


async def test_a_tenant_cannot_change_resources_that_it_does_not_own(
    world: ApiWorld, subtests: pytest.Subtests
) -> None:
    for tenant, method, path, body, code in [
        ("a", "POST", "resellers", {"id": "c", "name": "C"}, "platform_only"),
        ("a", "PATCH", "resellers/a", {"name": "New"}, "platform_only"),
        ("a", "DELETE", "resellers/a", None, "platform_only"),
        ("a", "POST", "merchants", {"id": "a3", "name": "A3", "weight": 1000}, "platform_only"),
        ("a", "PATCH", "merchants/a1", {"weight": 1000}, "platform_only"),
        ("a1", "PATCH", "merchants/a1", {"weight": 1000}, "platform_only"),
        ("a1", "POST", "merchants", {"id": "a3", "name": "A3"}, "not_owner"),
        ("a1", "DELETE", "merchants/a1", None, "not_owner"),
        ("a1", "PATCH", "pools/a-pool", {"name": "Mine"}, "not_owner"),
        ("a1", "DELETE", "pools/a-pool", None, "not_owner"),
        ("a1", "PATCH", "pools/shared", {"name": "Mine"}, "platform_only"),
        ("a", "DELETE", "pools/shared", None, "platform_only"),
    ]:
        with subtests.test(tenant=tenant, method=method, path=path, body=body, code=code):
            refused = expect(await world.tenant(tenant).request(method, f"/api/v1/{path}", json=body), 403)
            assert refused["code"] == code


async def test_only_the_platform_writes_numbers(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for tenant in ["a", "a1"]:
        with subtests.test(tenant=tenant):
            client, path = world.tenant(tenant), f"/api/v1/numbers/{world.numbers['a1-pool']}"
            body = {"e164": "+14155550190", "pool": "a1-pool", "carrier": "twilio", "max_channels": 100}
            for answer in (
                await client.post("/api/v1/numbers", body),
                await client.patch(path, {"max_channels": 100}),
                await client.delete(path),
            ):
                assert expect(answer, 403)["code"] == "platform_only"
            assert expect(await client.get(path), 200)["max_channels"] == 5


async def test_a_number_belongs_to_the_owner_of_its_pool(world: ApiWorld) -> None:
    path = f"/api/v1/numbers/{world.numbers['shared']}"
    moved = expect(await world.admin.patch(path, {"pool": "b1-pool"}), 200)
    assert (moved["reseller_id"], moved["merchant_id"]) == ("b", "b1")
    expect(await world.tenant("a1").get(path), 404)
    expect(await world.tenant("b1").get(path), 200)
    moved = expect(await world.admin.patch(path, {"pool": "shared"}), 200)
    assert (moved["reseller_id"], moved["merchant_id"]) == (None, None)
    assert moved["version"] == 3


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"e164": "415"}, "e164"),
    ({"e164": "4155550190"}, "e164"),
    ({"pool": "no-such"}, "pool"),
    ({"max_channels": -1}, "max_channels"),
    ({"max_channels": 10_001}, "max_channels"),
    ({"max_channels": "5"}, "max_channels"),
    ({"carrier": "Not A Carrier"}, "carrier"),
    ({"status": "sleeping"}, "status"),
]


async def test_a_wrong_field_of_a_number_is_named(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for body, field in WRONG_FIELDS:
        with subtests.test(body=body, field=field):
            right = {"e164": "+14155550190", "pool": "shared", "carrier": "twilio", "max_channels": 3}
            refused = expect(await world.admin.post("/api/v1/numbers", right | body), 422)
            assert [problem["field"] for problem in refused["fields"]] == [field]


async def hold_channel(world: ApiWorld, number_id: str) -> None:
    lead = await world.make_lead("a1")
    async with world.database.connection() as connection:
        await connection.execute(
            """INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no,
                                     carrier, account, to_phone, from_phone, dialer)
               VALUES ($1, $2, 1, 'a', 'a1', $3, 1, 'twilio', 'default', '+14155550123', '+14155550100', 'd')""",
            new_id(),
            lead["id"],
            number_id,
        )


async def test_a_number_with_a_call_on_it_can_be_drained_but_not_moved_or_removed(world: ApiWorld) -> None:
    number_id = world.numbers["a1-pool"]
    path = f"/api/v1/numbers/{number_id}"
    await hold_channel(world, number_id)
    for answer in (
        await world.admin.delete(path),
        await world.admin.patch(path, {"pool": "shared"}),
        await world.admin.patch(path, {"carrier": "plivo"}),
        await world.admin.patch(path, {"account": "other"}),
    ):
        assert expect(answer, 409)["code"] == "calls_live"
    expect(await world.admin.patch(path, {"max_channels": 0, "status": "draining"}), 200)
    async with world.database.connection() as connection:
        await connection.execute("UPDATE attempts SET state = 'ended', holds_channel = false")
    expect(await world.admin.delete(path), 204)


async def test_removing_a_number_waits_for_a_dial_that_is_being_committed(world: ApiWorld) -> None:
    number_id = world.numbers["a1-pool"]
    lead = await world.make_lead("a1")
    async with world.database.transaction() as intent:
        await intent.execute("SELECT 1 FROM numbers WHERE id = $1 FOR SHARE", number_id)
        removal = asyncio.create_task(world.admin.delete(f"/api/v1/numbers/{number_id}"))
        await world.somebody_waits_for_a_lock()
        await intent.execute(
            """INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no,
                                     carrier, account, to_phone, from_phone, dialer)
               VALUES ($1, $2, 1, 'a', 'a1', $3, 1, 'twilio', 'default', '+14155550123', '+14155550100', 'd')""",
            new_id(),
            lead["id"],
            number_id,
        )
    assert expect(await removal, 409)["code"] == "calls_live"


async def test_a_default_pool_must_be_one_that_the_merchant_may_use(
    world: ApiWorld, subtests: pytest.Subtests
) -> None:
    for pool in ["a2-pool", "b-pool", "no-such"]:
        with subtests.test(pool=pool):
            refused = expect(await world.admin.patch("/api/v1/merchants/a1", {"default_pool": pool}), 422)
            assert refused["fields"][0]["field"] == "default_pool"


async def test_null_empties_a_field_and_leaving_it_out_keeps_it(world: ApiWorld) -> None:
    path = "/api/v1/merchants/a1"
    expect(await world.admin.patch(path, {"default_region": "US"}), 200)
    kept = expect(await world.admin.patch(path, {"name": "Renamed"}), 200)
    assert (kept["default_region"], kept["default_pool"]) == ("US", "a1-pool")
    emptied = expect(await world.admin.patch(path, {"default_region": None, "default_pool": None}), 200)
    assert (emptied["default_region"], emptied["default_pool"], emptied["name"]) == (None, None, "Renamed")


async def test_lists_of_numbers_and_merchants_can_be_filtered(world: ApiWorld) -> None:
    numbers = expect(await world.admin.get("/api/v1/numbers", {"pool": "a-pool"}), 200)["items"]
    assert [number["id"] for number in numbers] == [world.numbers["a-pool"]]
    merchants = expect(await world.admin.get("/api/v1/merchants", {"reseller_id": "b"}), 200)["items"]
    assert [merchant["id"] for merchant in merchants] == ["b1"]
