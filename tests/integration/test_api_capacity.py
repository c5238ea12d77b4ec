"""What numbers, pools and merchants may carry: limits, paces, overflow, and what happens to them while calls are on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.model import new_id

NUMBERS, POOLS, MERCHANTS = "/api/v1/numbers", "/api/v1/pools", "/api/v1/merchants"
CALL = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer)
VALUES ($1, $2, 1, 'a', 'a1', $3, 1, 'twilio', 'default', '+14155550123', '+14155550100', 'test')
"""


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def call_on(world: ApiWorld, pool_id: str) -> str:
    """A live call on the number of this pool; the number's id."""
    lead = await world.make_lead("a1")
    async with world.database.connection() as connection:
        await connection.execute(CALL, new_id(), lead["id"], world.numbers[pool_id])
    return world.numbers[pool_id]


async def hang_up(world: ApiWorld) -> None:
    async with world.database.connection() as connection:
        await connection.execute(
            "UPDATE attempts SET state = 'ended', holds_channel = false, next_check_at = NULL"
        )


async def test_starts_per_s_of_a_number_is_set_changed_and_cleared(world: ApiWorld) -> None:
    body = {
        "e164": "+14155550190",
        "pool": "shared",
        "carrier": "twilio",
        "max_channels": 3,
        "starts_per_s": 0.5,
    }
    number = expect(await world.admin.post(NUMBERS, body), 201)
    assert (number["starts_per_s"], number["channels_held"]) == (0.5, 0)
    path = f"{NUMBERS}/{number['id']}"
    assert expect(await world.admin.patch(path, {"max_channels": 4}), 200)["starts_per_s"] == 0.5
    assert expect(await world.admin.patch(path, {"starts_per_s": 10}), 200)["starts_per_s"] == 10
    assert expect(await world.admin.patch(path, {"starts_per_s": None}), 200)["starts_per_s"] is None


@pytest.mark.parametrize("pace", [0, -1, 1001, "fast"])
async def test_an_invalid_starts_per_s_is_refused(world: ApiWorld, pace: Any) -> None:
    path = f"{NUMBERS}/{world.numbers['shared']}"
    refused = expect(await world.admin.patch(path, {"starts_per_s": pace}), 422)
    assert refused["fields"][0]["field"] == "starts_per_s"


async def test_while_a_call_is_live_only_limits_and_pace_of_its_number_change(world: ApiWorld) -> None:
    path = f"{NUMBERS}/{await call_on(world, 'a1-pool')}"
    changed = expect(await world.admin.patch(path, {"max_channels": 0, "starts_per_s": 1}), 200)
    assert (changed["max_channels"], changed["channels_held"]) == (0, 1)
    for change in ({"pool": "shared"}, {"carrier": "plivo"}, {"account": "other"}):
        assert (
            expect(await world.admin.patch(path, change | {"max_channels": 5}), 409)["code"] == "calls_live"
        )
    assert expect(await world.admin.get(path), 200)["max_channels"] == 0
    await hang_up(world)
    moved = expect(await world.admin.patch(path, {"pool": "shared"}), 200)
    assert (moved["pool"], moved["reseller_id"], moved["channels_held"]) == ("shared", None, 0)


async def test_a_number_with_a_call_on_it_is_drained_and_then_removed(world: ApiWorld) -> None:
    path = f"{NUMBERS}/{await call_on(world, 'a1-pool')}"
    assert expect(await world.admin.delete(path), 409)["code"] == "calls_live"
    assert expect(await world.admin.get(path), 200)["status"] == "active"
    draining = expect(await world.admin.delete(path, query={"drain": "true"}), 202)
    assert (draining["status"], draining["channels_held"]) == ("draining", 1)
    await hang_up(world)
    expect(await world.admin.delete(path, query={"drain": "true"}), 204)
    expect(await world.admin.get(path), 404)


async def test_channels_held_of_a_shared_number_is_shown_to_its_owner_only(world: ApiWorld) -> None:
    path = f"{NUMBERS}/{await call_on(world, 'a-pool')}"
    for tenant, held in (("a", 1), ("a1", None), ("a2", None)):
        assert expect(await world.tenant(tenant).get(path), 200)["channels_held"] == held
        listed = expect(await world.tenant(tenant).get(NUMBERS, {"pool": "a-pool"}), 200)["items"]
        assert [each["channels_held"] for each in listed] == [held]
    assert expect(await world.admin.get(path), 200)["channels_held"] == 1


async def test_a_pools_overflow_is_set_changed_and_cleared(world: ApiWorld) -> None:
    body = {
        "id": "own",
        "merchant_id": "a1",
        "name": "Own",
        "overflow_pool": "shared",
        "overflow_after_s": 2.5,
    }
    pool = expect(await world.tenant("a1").post(POOLS, body), 201)
    assert (pool["overflow_pool"], pool["overflow_after_s"]) == ("shared", 2.5)
    path = f"{POOLS}/own"
    assert expect(await world.tenant("a1").patch(path, {"name": "Mine"}), 200)["overflow_pool"] == "shared"
    both = {"overflow_pool": "a-pool", "overflow_after_s": 0}
    assert both.items() <= expect(await world.tenant("a1").patch(path, both), 200).items()
    none = {"overflow_pool": None, "overflow_after_s": None}
    assert none.items() <= expect(await world.tenant("a1").patch(path, none), 200).items()


@pytest.mark.parametrize(
    ("overflow", "field"),
    [
        ({"overflow_pool": "shared"}, "overflow_after_s"),
        ({"overflow_after_s": 1}, "overflow_pool"),
        ({"overflow_pool": "a-pool", "overflow_after_s": 1}, "overflow_pool"),
        ({"overflow_pool": "nowhere", "overflow_after_s": 1}, "overflow_pool"),
        ({"overflow_pool": "b-pool", "overflow_after_s": 1}, "overflow_pool"),
        ({"overflow_pool": "a1-pool", "overflow_after_s": 1}, "overflow_pool"),
        ({"overflow_pool": "shared", "overflow_after_s": -1}, "overflow_after_s"),
    ],
)
async def test_an_overflow_that_not_every_lead_of_the_pool_may_use_is_refused(
    world: ApiWorld, overflow: dict[str, Any], field: str
) -> None:
    refused = expect(await world.admin.patch(f"{POOLS}/a-pool", overflow), 422)
    assert [each["field"] for each in refused["fields"]] == [field]
    body = {"id": "new", "reseller_id": "a", "name": "New", **overflow}
    if overflow.get("overflow_pool") != "a-pool":
        expect(await world.admin.post(POOLS, body), 422)
        expect(await world.admin.get(f"{POOLS}/new"), 404)


async def test_a_pool_named_by_a_pool_or_lead_cannot_be_deleted(world: ApiWorld) -> None:
    for pool_id in ("plain", "target"):
        expect(await world.admin.post(POOLS, {"id": pool_id, "name": pool_id}), 201)
    both = {"overflow_pool": "target", "overflow_after_s": 1}
    expect(await world.admin.patch(f"{POOLS}/plain", both), 200)
    refused = expect(await world.admin.delete(f"{POOLS}/target"), 409)
    assert (refused["code"], "pools name it" in refused["error"]) == ("in_use", True)
    await world.make_lead("a1", pool="plain")
    refused = expect(await world.admin.delete(f"{POOLS}/plain"), 409)
    assert (refused["code"], "leads name it" in refused["error"]) == ("in_use", True)
    none = {"overflow_pool": None, "overflow_after_s": None}
    expect(await world.admin.patch(f"{POOLS}/plain", none), 200)
    expect(await world.admin.delete(f"{POOLS}/target"), 204)


async def test_max_concurrent_of_a_merchant_is_set_by_its_reseller_or_the_platform(world: ApiWorld) -> None:
    path = f"{MERCHANTS}/a1"
    assert expect(await world.tenant("a").patch(path, {"max_concurrent": 3}), 200)["max_concurrent"] == 3
    assert expect(await world.tenant("a1").patch(path, {"name": "One"}), 200)["max_concurrent"] == 3
    for limit in (4, None):
        refused = expect(await world.tenant("a1").patch(path, {"max_concurrent": limit}), 403)
        assert refused["code"] == "not_owner"
    assert expect(await world.admin.patch(path, {"max_concurrent": None}), 200)["max_concurrent"] is None
    made = {"id": "c1", "reseller_id": "a", "name": "C", "max_concurrent": 0}
    assert expect(await world.admin.post(MERCHANTS, made), 201)["max_concurrent"] == 0
    expect(await world.admin.patch(path, {"max_concurrent": -1}), 422)
