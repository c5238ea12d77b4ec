"""Shares of abandoned calls through the API and on the console: measured, and what follows from them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from tests.support.console.world import ConsoleWorld, open_console
from trunkline.leads.rule_packs import PACKS

ROOT = "/api/v1/campaigns"
NOBODY = {"answered_by_person": 0, "abandoned": 0, "share": None}
_COUNT = """
INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, at, grain, ended, answered, by_person, abandoned)
VALUES ('a', $1, $2::uuid, now() - make_interval(hours => $3), 'call', $4, $5, $5, $6)
"""


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


@pytest.fixture
async def console(database_url: str) -> AsyncIterator[ConsoleWorld]:
    async with open_console(database_url) as world:
        yield world


async def campaign(world: ApiWorld, **policy: object) -> str:
    body = {"name": "May", "merchant_id": "a1", "policy": policy}
    return str(expect(await world.tenant("a1").post(ROOT, body), 201)["id"])


async def counted(
    world: ApiWorld, campaign_id: str, *, by_person: int, abandoned: int, ended: int = 0, hours_ago: int = 0
) -> None:
    async with world.database.connection() as conn:
        await conn.execute(_COUNT, "a1", campaign_id, hours_ago, max(ended, by_person), by_person, abandoned)


async def shares(world: ApiWorld, campaign_id: str) -> dict[str, Any]:
    progress = expect(await world.tenant("a1").get(f"{ROOT}/{campaign_id}/progress"), 200)
    found: dict[str, Any] = progress["abandonment"]
    return found


async def test_a_campaign_shows_its_own_and_its_merchants_abandonment_rate(world: ApiWorld) -> None:
    one, other = await campaign(world), await campaign(world, abandon_max=0.03)
    assert await shares(world, one) == {
        "last_10m": NOBODY,
        "last_24h": NOBODY,
        "last_30d": NOBODY,
        "merchant_last_30d": NOBODY,
        "abandon_max": 0.0,
        "overdialling": "off",
        "answer_rate": 1.0,
    }
    await counted(world, one, by_person=100, abandoned=1, ended=400)
    await counted(world, one, by_person=100, abandoned=3, hours_ago=20)
    await counted(world, one, by_person=300, abandoned=0, hours_ago=24 * 20)
    await counted(world, other, by_person=500, abandoned=0, hours_ago=24 * 20)
    found = await shares(world, one)
    assert found["last_10m"] == {"answered_by_person": 100, "abandoned": 1, "share": 0.01}
    assert found["last_24h"] == {"answered_by_person": 200, "abandoned": 4, "share": 0.02}
    assert found["last_30d"] == {"answered_by_person": 500, "abandoned": 4, "share": 0.008}
    assert found["merchant_last_30d"] == {"answered_by_person": 1000, "abandoned": 4, "share": 0.004}
    assert found["answer_rate"] == 0.2882, "100 of 400"
    assert (await shares(world, other))["overdialling"] == "on"


@pytest.mark.parametrize(
    ("own", "others", "policy", "overdialling"),
    [
        (23, 0, {}, "on"),
        (24, 0, {}, "ended_by_campaign"),
        (0, 48, {}, "ended_by_merchant"),
        (23, 0, {"abandon_window_h": 1}, "on"),
    ],
)
async def test_overdialling_ends_at_four_fifths_of_the_maximum(
    world: ApiWorld, own: int, others: int, policy: dict[str, int], overdialling: str
) -> None:
    one, other = await campaign(world, abandon_max=0.03, **policy), await campaign(world)
    await counted(world, one, by_person=1000, abandoned=own, hours_ago=100)
    await counted(world, other, by_person=1000, abandoned=others, hours_ago=100)
    assert (await shares(world, one))["overdialling"] == overdialling


async def test_a_policys_window_of_hours_ends_overdialling_before_the_30_day_rate(world: ApiWorld) -> None:
    with_window = await campaign(world, abandon_max=0.03, abandon_window_h=2)
    await counted(world, with_window, by_person=10_000, abandoned=0, hours_ago=100)
    await counted(world, with_window, by_person=100, abandoned=3)
    assert (await shares(world, with_window))["overdialling"] == "ended_by_campaign"


async def test_the_overview_shows_each_tenant_its_own_abandonment_rate(world: ApiWorld) -> None:
    await counted(world, await campaign(world), by_person=50, abandoned=2)
    for who, expected in (("a1", 0.04), ("a", 0.04), ("b", None), ("b1", None)):
        overview = expect(await world.tenant(who).get("/api/v1/overview"), 200)
        for span in ("last_10m", "last_24h", "last_30d"):
            assert overview["abandonment"][span]["share"] == expected, who
    platform = expect(await world.admin.get("/api/v1/overview"), 200)
    assert platform["abandonment"]["last_30d"] == {"answered_by_person": 50, "abandoned": 2, "share": 0.04}


async def test_a_share_that_a_layer_above_does_not_allow_is_refused(world: ApiWorld) -> None:
    expect(await world.admin.request("PUT", "/api/v1/policy", json={"abandon_max": 0.02}), 200)
    body = {"name": "May", "merchant_id": "a1", "policy": {"abandon_max": 0.03}}
    refused = expect(await world.tenant("a1").post(ROOT, body), 422)
    assert "At most 0.02" in str(refused)
    percent = expect(await world.tenant("a1").post(ROOT, body | {"policy": {"abandon_max": 3}}), 422)
    assert "0.03 is 3 %" in str(percent)


async def test_every_response_that_names_an_old_rule_pack_warns_about_it(world: ApiWorld) -> None:
    today = datetime.now(UTC).date()
    old, fresh = today - timedelta(days=400), today
    for as_of, warned in ((old, True), (fresh, False)):
        body = {"as_of": as_of.isoformat(), "note": "Ours", "abandoned_calls": {"max_share": 0.01}}
        pack = expect(await world.admin.request("PUT", "/api/v1/policy/packs/ours", json=body), 200)
        assert (pack["is_old"], pack["abandoned_calls"]) == (warned, {"max_share": 0.01})
        path = "/api/v1/merchants/a1/policy"
        put = expect(await world.tenant("a1").request("PUT", path, json={"packs": ["ours"]}), 200)
        got = expect(await world.tenant("a1").get(path), 200)
        assert put["warnings"] == got["warnings"]
        assert [as_of.isoformat() in told for told in got["warnings"]] == ([True] if warned else [])
    listed = expect(await world.tenant("a1").get("/api/v1/policy/packs"), 200)["packs"]
    assert {pack["name"]: pack["is_old"] for pack in listed} == {
        name: pack.is_old(today) for name, pack in PACKS.items()
    } | {"ours": False}


async def test_the_console_shows_the_shares_and_what_they_lead_to(console: ConsoleWorld) -> None:
    operator = await console.visitor(ADMIN_KEY)
    form = await operator.open("/console/campaigns")
    made = await operator.send(
        form, "/console/campaigns/make", name="May", merchant_id="a1", abandon_percent="3"
    )
    campaign_id = made.headers["location"].rsplit("/", 1)[1]
    await counted(console.api, campaign_id, by_person=1000, abandoned=24)
    page = (await operator.open(f"/console/campaigns/{campaign_id}")).body.decode()
    assert "<strong>2.4 %</strong> <small>24 of 1,000</small>" in page
    assert "this campaign has reached 80 % of 3.0 %" in page
    assert "<strong>2.4 %</strong>" in (await operator.open("/console")).body.decode()
