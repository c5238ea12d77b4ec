"""Controls over the API: who may stop what, who may lift it, and what is written down."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.control.raising import raise_alarm

ROOT = "/api/v1/controls"
WHY = {"reason": "complaints"}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def put(client: AsgiClient, path: str, body: Any, status: int = 200) -> dict[str, Any]:
    return expect(await client.request("PUT", f"{ROOT}/{path}", json=body), status)


async def lift(client: AsgiClient, path: str, status: int = 200, **query: object) -> dict[str, Any]:
    return expect(
        await client.delete(f"{ROOT}/{path}", query={"reason": "solved", "ramp_s": 0, **query}), status
    )


async def get(client: AsgiClient, path: str) -> dict[str, Any]:
    return expect(await client.get(f"{ROOT}/{path}"), 200)


async def audit(client: AsgiClient, **query: object) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = expect(await client.get("/api/v1/audit", query), 200)["items"]
    return items


@pytest.mark.parametrize("path", ["kill-switch", "promoter", "reseller/a", "merchant/a1", "carrier/twilio"])
async def test_the_platform_stops_and_resumes_with_who_when_and_why(world: ApiWorld, path: str) -> None:
    assert (await get(world.admin, path))["state"] == "running"
    stopped = await put(world.admin, path, WHY)
    assert (stopped["state"], stopped["share"]) == ("stopped", 0)
    [stop] = stopped["stops"]
    assert (stop["reason"], stop["set_by"], stop["expires_at"]) == ("complaints", "platform", None)
    assert stop["changed_by"].startswith("key:")
    assert (await get(world.admin, path)) == stopped
    assert (await lift(world.admin, path))["state"] == "running"
    lines = await audit(world.admin, action="control")
    assert [(line["action"], line["reason"]) for line in lines] == [
        ("control.resumed", "solved"),
        ("control.stopped", "complaints"),
    ]
    assert lines[0]["actor"] == stop["changed_by"]
    assert lines[0]["subject"] == path.replace("-", "_").replace("/", " ")


async def test_a_lifted_stop_ramps_up(world: ApiWorld) -> None:
    await put(world.admin, "merchant/a1", WHY)
    lifted = await lift(world.admin, "merchant/a1", ramp_s=3600)
    assert lifted["state"] == "ramping"
    assert 0 <= lifted["share"] < 0.1
    assert lifted["stops"][0]["ramp_until"] is not None


@pytest.mark.parametrize(
    "body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "x" * 501}, {"reason": "a\nb"}]
)
async def test_nothing_is_stopped_without_a_reason(world: ApiWorld, body: dict[str, str]) -> None:
    problem = await put(world.admin, "kill-switch", body, 422)
    assert problem["fields"][0]["field"] == "reason"
    assert (await get(world.admin, "kill-switch"))["state"] == "running"


@pytest.mark.parametrize("query", [{}, {"reason": ""}, {"reason": " "}, {"reason": "a\nb"}])
async def test_nothing_is_resumed_without_a_reason(world: ApiWorld, query: dict[str, str]) -> None:
    await put(world.admin, "kill-switch", WHY)
    answer = await world.admin.delete(f"{ROOT}/kill-switch", query=query)
    assert (answer.status, answer.json()["fields"][0]["field"]) == (422, "reason")
    assert (await get(world.admin, "kill-switch"))["state"] == "stopped"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2090-01-01T00:00:00Z", "duration_s": 5}, "duration_s"),
        ({"duration_s": 0}, "duration_s"),
        ({"ramp_s": -1}, "ramp_s"),
        ({"ramp_s": 86_401}, "ramp_s"),
        ({"until": "tomorrow"}, "until"),
    ],
)
async def test_an_end_that_makes_no_sense_is_refused(
    world: ApiWorld, more: dict[str, Any], field: str
) -> None:
    problem = await put(world.admin, "merchant/a1", WHY | more, 422)
    assert problem["fields"][0]["field"] == field
    assert (await get(world.admin, "merchant/a1"))["stops"] == []
    assert await audit(world.admin, action="control") == []


async def test_a_stops_end_is_given_as_a_moment_or_a_duration(world: ApiWorld) -> None:
    stopped = await put(world.admin, "merchant/a1", WHY | {"expires_at": "2090-01-01T00:00:00+02:00"})
    assert stopped["stops"][0]["expires_at"] == "2089-12-31T22:00:00Z"
    stopped = await put(world.admin, "merchant/a1", WHY | {"duration_s": 3600})
    assert stopped["stops"][0]["expires_at"] > stopped["stops"][0]["changed_at"]
    assert stopped["stops"][0]["stopped_at"] < stopped["stops"][0]["changed_at"], (
        "stopped since the first time"
    )


@pytest.mark.parametrize("path", ["kill-switch", "promoter", "carrier/twilio"])
@pytest.mark.parametrize("tenant", ["a", "a1"])
async def test_a_tenant_cannot_stop_or_lift_platform_scopes(world: ApiWorld, path: str, tenant: str) -> None:
    client = world.tenant(tenant)
    assert (await put(client, path, WHY, 403))["code"] == "platform_only"
    await put(world.admin, path, WHY)
    assert (await lift(client, path, 403))["code"] == "platform_only"
    assert (await get(client, path))["state"] == "stopped", "they may know that they are stopped"


async def test_tenants_stop_their_own_merchants_campaigns_and_numbers(world: ApiWorld) -> None:
    own = await world.objects_of("a1")
    for tenant in ("a", "a1"):
        for path in ("merchant/a1", f"campaign/{own['subject']}", f"number/{own['number_id']}"):
            assert (await put(world.tenant(tenant), path, WHY))["state"] == "stopped", (tenant, path)
    assert (await put(world.tenant("a"), "reseller/a", WHY))["state"] == "stopped"


async def test_tenants_cannot_stop_subjects_of_others_or_unknown_ones(world: ApiWorld) -> None:
    theirs = await world.objects_of("b1")
    paths = [
        "reseller/b",
        "merchant/b1",
        f"campaign/{theirs['subject']}",
        f"number/{theirs['number_id']}",
        f"campaign/{uuid4()}",
        "campaign/no-uuid",
        "number/no-uuid",
        "merchant/nobody",
        "planet/earth",
    ]
    for tenant in ("a", "a1"):
        for path in paths:
            assert (await put(world.tenant(tenant), path, WHY, 404))["code"] == "not_found", (tenant, path)
    await put(world.tenant("a1"), "merchant/a2", WHY, 404)
    await put(world.tenant("a1"), "reseller/a", WHY, 404)


async def test_a_shared_number_cannot_be_stopped_by_tenants_below_its_owner(world: ApiWorld) -> None:
    shared, resellers = world.numbers["shared"], world.numbers["a-pool"]
    assert (await put(world.tenant("a"), f"number/{shared}", WHY, 403))["code"] == "platform_only"
    assert (await put(world.tenant("a1"), f"number/{resellers}", WHY, 403))["code"] == "not_owner"
    assert (await put(world.tenant("a"), f"number/{resellers}", WHY))["state"] == "stopped"


async def test_a_stop_of_a_campaign_id_holds_for_the_stopping_tenant_only(world: ApiWorld) -> None:
    """Ids of campaigns are the callers' own: a copied one must not be a way to stop somebody else."""
    campaign = str(uuid4())
    await world.make_lead("a1", "of-a1", campaign_id=campaign)
    await world.make_lead("b1", "of-b1", campaign_id=campaign)
    stopped = await put(world.tenant("b1"), f"campaign/{campaign}", WHY)
    assert stopped["subject"] == f"b1/{campaign}"
    assert (await get(world.tenant("a1"), f"campaign/{campaign}"))["state"] == "running"


async def test_a_tenant_cannot_lift_a_stop_set_above_it(world: ApiWorld) -> None:
    await put(world.admin, "merchant/a1", {"reason": "fraud"})
    for tenant in ("a", "a1"):
        assert (await lift(world.tenant(tenant), "merchant/a1"))["state"] == "stopped"
        refused = await lift(world.tenant(tenant), "merchant/a1", 403, set_by="platform")
        assert refused["code"] == "not_owner"
        await put(world.tenant(tenant), "merchant/a1", {"reason": "mine", "duration_s": 1})
    states = {stop["set_by"]: stop["reason"] for stop in (await get(world.admin, "merchant/a1"))["stops"]}
    assert states == {"platform": "fraud", "reseller": "mine", "merchant": "mine"}


async def test_lifting_one_levels_stop_leaves_those_of_other_levels(world: ApiWorld) -> None:
    await put(world.tenant("a1"), "merchant/a1", {"reason": "our agents are on holiday"})
    await put(world.admin, "merchant/a1", {"reason": "maintenance"})
    lifted = await lift(world.admin, "merchant/a1")
    assert lifted["state"] == "stopped"
    assert [stop["set_by"] for stop in lifted["stops"]] == ["merchant"]
    assert (await lift(world.admin, "merchant/a1", set_by="merchant"))["state"] == "running"


async def test_tenants_see_a_stop_set_above_them_without_its_reason(world: ApiWorld) -> None:
    await put(world.admin, "kill-switch", {"reason": "because of b"})
    await put(world.admin, "merchant/a1", {"reason": "fraud"})
    await put(world.tenant("a"), "merchant/a1", {"reason": "unpaid"})
    seen = {
        (stop["scope"], stop["set_by"]): stop["reason"]
        for stop in expect(await world.tenant("a").get(ROOT), 200)["items"]
    }
    assert seen == {
        ("kill_switch", "platform"): None,
        ("merchant", "platform"): None,
        ("merchant", "reseller"): "unpaid",
    }
    for stop in (await get(world.tenant("a1"), "merchant/a1"))["stops"]:
        assert (stop["reason"], stop["changed_by"]) == (None, None)
    for tenant, reasons in (("a", {"unpaid"}), ("a1", set())):
        lines = await audit(world.tenant(tenant), action="control")
        assert {line["reason"] for line in lines} == reasons


async def test_a_tenant_sees_only_the_stops_that_concern_it(world: ApiWorld) -> None:
    for path in ("merchant/a1", "merchant/a2", "merchant/b1", "reseller/a", "reseller/b", "carrier/twilio"):
        await put(world.admin, path, WHY)
    expected = {
        "a1": {"merchant a1", "reseller a", "carrier twilio"},
        "a": {"merchant a1", "merchant a2", "reseller a", "carrier twilio"},
    }
    for tenant, subjects in expected.items():
        items = expect(await world.tenant(tenant).get(ROOT), 200)["items"]
        assert {f"{item['scope']} {item['subject']}" for item in items} == subjects
    only = expect(await world.admin.get(ROOT, {"scope": "reseller"}), 200)["items"]
    assert [item["subject"] for item in only] == ["a", "b"]


async def test_stops_are_listed_in_pages(world: ApiWorld) -> None:
    for path in ("kill-switch", "merchant/a1", "merchant/a2", "promoter", "reseller/a"):
        await put(world.admin, path, WHY)
    await put(world.tenant("a"), "merchant/a1", WHY)
    seen, cursor = [], None
    while True:
        page = expect(
            await world.admin.get(ROOT, {"limit": 2, **({"cursor": cursor} if cursor else {})}), 200
        )
        seen += [(item["scope"], item["subject"], item["set_by"]) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 6


async def test_lifting_without_a_stop_changes_nothing(world: ApiWorld) -> None:
    assert (await lift(world.admin, "merchant/a1"))["state"] == "running"
    assert await audit(world.admin, action="control") == []


async def test_lifting_the_kill_switch_clears_the_store_restored_alarm(world: ApiWorld) -> None:
    await raise_alarm(world.database, "store_restored")
    await put(world.admin, "kill-switch", WHY)
    await lift(world.admin, "kill-switch")
    assert expect(await world.admin.get("/api/v1/alarms"), 200)["items"] == []
    [alarm] = expect(await world.admin.get("/api/v1/alarms", {"state": "cleared"}), 200)["items"]
    assert alarm["cleared_by"].startswith("key:")


async def test_a_carrier_that_is_not_configured_cannot_be_stopped(database_url: str) -> None:
    async with open_api(database_url) as world:
        object.__setattr__(world.app.state.api.deps, "carriers", frozenset({"twilio"}))
        await put(world.admin, "carrier/twilio", WHY)
        await put(world.admin, "carrier/another", WHY, 404)


async def test_the_audit_log_is_filtered_and_paged(world: ApiWorld) -> None:
    for merchant in ("a1", "a2", "b1"):
        await put(world.admin, f"merchant/{merchant}", WHY)
        await put(world.tenant(merchant), f"merchant/{merchant}", {"reason": f"own of {merchant}"})
    assert len(await audit(world.admin, action="control.stopped")) == 6
    assert len(await audit(world.admin, action="control", subject="merchant a2")) == 2
    assert await audit(world.admin, action="contro") == []
    assert {line["reason"] for line in await audit(world.tenant("a"), action="control")} == {
        "own of a1",
        "own of a2",
    }
    actor = (await audit(world.admin, subject="merchant b1"))[0]["actor"]
    assert len(await audit(world.admin, actor=actor)) == 1
    assert await audit(world.admin, action="control", since="2090-01-01T00:00:00Z") == []
    assert await audit(world.admin, action="control", until="2020-01-01T00:00:00Z") == []
    first = expect(await world.admin.get("/api/v1/audit", {"limit": 4, "action": "control"}), 200)
    query = {"limit": 4, "action": "control", "cursor": first["next_cursor"]}
    rest = expect(await world.admin.get("/api/v1/audit", query), 200)
    ids = [line["id"] for line in first["items"] + rest["items"]]
    assert ids == sorted(set(ids), reverse=True)
    assert len(ids) == 6
    for wrong in ({"cursor": first["next_cursor"]}, {"cursor": "bm8"}, {"action": "control", "limit": 0}):
        assert (await world.admin.get("/api/v1/audit", wrong)).status in (400, 422)
