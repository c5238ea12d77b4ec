"""Flags through the OpenFeature API, by our provider and by another one; and over the HTTP API."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import Reason
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider

from tests.support.api.asgi import AsgiClient
from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.api.routes import flags as flag_routes
from trunkline.control import flags
from trunkline.control.flags import (
    EVENT_DISPATCH,
    FlagBoard,
    FlagDefinition,
    FlagProviderError,
    Flags,
    StoreProvider,
    load_provider,
)
from trunkline.schema.flags import Flag


def flag(**more: Any) -> Flag:
    values: dict[str, Any] = {
        "name": EVENT_DISPATCH.name,
        "enabled": True,
        "percentage": 0,
        "resellers": {},
        "merchants": {},
        "reason": "r",
        "changed_by": "key:1",
        "changed_at": datetime(2030, 1, 1, tzinfo=UTC),
    }
    return Flag(**values | more)


def board_of(*flags: Flag) -> FlagBoard:
    board = FlagBoard()
    board.read(flags)
    return board


def everything_off() -> InMemoryProvider:
    """What an operator's own module would offer."""
    return InMemoryProvider({EVENT_DISPATCH.name: InMemoryFlag("off", {"on": True, "off": False})})


def broken() -> InMemoryProvider:
    raise RuntimeError("no route to the flag service")


@pytest.mark.parametrize(
    ("stored", "context", "value", "reason"),
    [
        (flag(enabled=False), {}, False, Reason.DISABLED),
        (flag(merchants={"shop": True}), {"merchant_id": "shop"}, True, Reason.TARGETING_MATCH),
        (flag(resellers={"acme": True}), {"reseller_id": "acme"}, True, Reason.TARGETING_MATCH),
        (flag(percentage=100), {"reseller_id": "acme"}, True, Reason.SPLIT),
    ],
)
def test_the_store_provider_returns_value_and_reason(
    stored: Flag, context: dict[str, str], value: bool, reason: Reason
) -> None:
    details = StoreProvider(board_of(stored)).resolve_boolean_details(
        EVENT_DISPATCH.name, not value, EvaluationContext(attributes=context)
    )
    assert (details.value, details.reason) == (value, reason)


def test_an_unset_flag_has_its_default() -> None:
    details = StoreProvider(board_of()).resolve_boolean_details("unheard_of", True)
    assert (details.value, details.reason) == (True, Reason.DEFAULT)


def test_a_reseller_in_an_old_flag_name_is_evaluated_for_that_reseller() -> None:
    provider = StoreProvider(board_of(flag(resellers={"acme": True})))
    for reseller, value in (("acme", True), ("another", False)):
        name = f"bb_dispatch_use_event_path_for_reseller_{reseller}"
        assert provider.resolve_boolean_details(name, not value).value is value
    assert provider.resolve_boolean_details("bb_dispatch_enabled", True).value is False


def test_resolving_a_flag_as_another_type_is_a_type_mismatch() -> None:
    provider = StoreProvider(board_of(flag()))
    for details in (
        provider.resolve_string_details(EVENT_DISPATCH.name, "x"),
        provider.resolve_integer_details(EVENT_DISPATCH.name, 7),
        provider.resolve_float_details(EVENT_DISPATCH.name, 0.5),
        provider.resolve_object_details(EVENT_DISPATCH.name, {}),
    ):
        assert details.error_code == ErrorCode.TYPE_MISMATCH


async def test_a_configured_flag_service_replaces_the_stored_flags() -> None:
    asked = Flags(board_of(flag(percentage=100)), f"{__name__}:everything_off")
    await asked.open()
    try:
        assert asked.is_on(EVENT_DISPATCH, reseller_id="acme") is False
    finally:
        await asked.close()


@pytest.mark.parametrize("path", ["nowhere:factory", f"{__name__}:nothing", f"{__name__}:broken", "no_colon"])
def test_a_flag_provider_that_cannot_be_loaded_raises_with_its_variable(path: str) -> None:
    with pytest.raises(FlagProviderError, match="FEATURE_FLAG_PROVIDER="):
        load_provider(path)


async def test_flags_of_two_platforms_in_one_process_are_separate() -> None:
    one, two = Flags(board_of(flag(percentage=100))), Flags(board_of(flag(enabled=False)))
    await one.open()
    await two.open()
    try:
        assert (one.is_on(EVENT_DISPATCH), two.is_on(EVENT_DISPATCH)) == (True, False)
        assert api.get_client().get_boolean_value(EVENT_DISPATCH.name, True) is True, "nor for others"
    finally:
        await one.close()
        await two.close()


async def test_before_the_flag_provider_is_open_the_default_holds() -> None:
    assert Flags(board_of(flag(enabled=False))).is_on(EVENT_DISPATCH) is EVENT_DISPATCH.default


@pytest.fixture(autouse=True)
def trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that decides nothing, beside the one that does."""
    known = {**flags.DEFINITIONS, "trial": FlagDefinition("trial", True, "A flag of these tests.")}
    for module in (flags, flag_routes):
        monkeypatch.setattr(module, "DEFINITIONS", known)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def put(client: AsgiClient, name: str, status: int = 200, **body: object) -> dict[str, Any]:
    answer = await client.request("PUT", f"/api/v1/flags/{name}", json={"reason": "trial", **body})
    return expect(answer, status)


async def listed(world: ApiWorld) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in expect(await world.admin.get("/api/v1/flags"), 200)["items"]}


async def test_a_flag_is_set_and_unset_with_who_when_and_why(world: ApiWorld) -> None:
    assert (await listed(world))["event_dispatch"]["is_set"] is False
    stored = await put(
        world.admin, "event_dispatch", enabled=True, percentage=10, resellers={"a": True, "b": False}
    )
    assert (stored["percentage"], stored["resellers"], stored["merchants"]) == (
        10,
        {"a": True, "b": False},
        {},
    )
    assert (await listed(world))["event_dispatch"] == stored
    unset = expect(
        await world.admin.delete(
            "/api/v1/flags/event_dispatch", query={"reason": "done", "version": stored["version"]}
        ),
        200,
    )
    assert (unset["is_set"], unset["enabled"]) == (False, True)
    lines = expect(await world.admin.get("/api/v1/audit", {"action": "flag"}), 200)["items"]
    assert [(line["action"], line["subject"], line["reason"]) for line in lines] == [
        ("flag.unset", "event_dispatch", "done"),
        ("flag.set", "event_dispatch", "trial"),
    ]
    assert lines[1]["details"]["percentage"] == 10
    assert lines[1]["actor"] == stored["changed_by"]


async def test_setting_a_flag_sets_all_of_it(world: ApiWorld) -> None:
    first = await put(world.admin, "trial", enabled=True, percentage=0, merchants={"a1": True})
    assert (await put(world.admin, "trial", enabled=True, version=first["version"]))["merchants"] == {}


async def test_a_flag_change_with_a_stale_version_is_refused(world: ApiWorld) -> None:
    read = await put(world.admin, "trial", enabled=True)
    first = await put(world.admin, "trial", enabled=True, percentage=10, version=read["version"])
    refused = await put(world.admin, "trial", 409, enabled=True, percentage=20, version=read["version"])
    assert refused["code"] == "version_changed"
    assert (await put(world.admin, "trial", 409, enabled=False))["code"] == "version_changed", (
        "nor without one"
    )
    for stale in ({"version": read["version"]}, {}):
        query = {"reason": "r", **stale}
        expect(await world.admin.delete("/api/v1/flags/trial", query=query), 409)
    assert (await listed(world))["trial"] == first


async def test_a_version_is_not_used_again_after_a_flag_was_unset(world: ApiWorld) -> None:
    read = await put(world.admin, "trial", enabled=True)
    query = {"reason": "r", "version": read["version"]}
    expect(await world.admin.delete("/api/v1/flags/trial", query=query), 200)
    await put(world.admin, "trial", enabled=True)
    assert (await put(world.admin, "trial", 409, enabled=False, version=read["version"]))["code"] == (
        "version_changed"
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bb_dispatch_enabled", "set event_dispatch"),
        ("bb_dispatch_use_event_path_for_reseller_acme-2", 'event_dispatch with resellers {"acme-2"'),
    ],
)
async def test_setting_an_old_flag_name_is_refused_with_the_name_to_use(
    world: ApiWorld, name: str, says: str
) -> None:
    refused = await put(world.admin, name, 422, enabled=False)
    assert refused["fields"][0]["field"] == "flag"
    assert says in refused["fields"][0]["error"]
    expect(await world.admin.post(f"/api/v1/flags/{name}/preview", {"enabled": False}), 422)


async def test_a_misspelt_flag_is_refused_with_the_names_that_there_are(world: ApiWorld) -> None:
    refused = await put(world.admin, "event_dispach", 422, enabled=False)
    assert refused["fields"][0] == {
        "field": "flag",
        "error": "No such flag. There are: event_dispatch, trial.",
    }
    expect(await world.admin.post("/api/v1/flags/event_dispach/preview", {"enabled": False}), 422)
    assert "event_dispach" not in await listed(world)


async def test_a_flag_can_be_evaluated_by_its_old_names(world: ApiWorld) -> None:
    async def is_on(name: str, **query: str) -> bool:
        answer = expect(await world.admin.get(f"/api/v1/flags/{name}/evaluation", query), 200)
        assert answer["flag"] == "event_dispatch"
        return bool(answer["is_on"])

    assert await is_on("bb_dispatch_enabled") is True, "nobody has set it"
    await put(
        world.admin,
        "event_dispatch",
        enabled=True,
        percentage=0,
        resellers={"a": True},
        merchants={"a2": False},
    )
    assert await is_on("bb_dispatch_use_event_path_for_reseller_a") is True
    assert await is_on("bb_dispatch_use_event_path_for_reseller_b") is False
    assert await is_on("event_dispatch", reseller_id="a", merchant_id="a1") is True
    assert await is_on("event_dispatch", reseller_id="a", merchant_id="a2") is False
    expect(await world.admin.get("/api/v1/flags/unheard_of/evaluation"), 404)
    expect(await world.tenant("a").get("/api/v1/flags/event_dispatch/evaluation"), 404)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "enabled"),
        ({"enabled": "yes"}, "enabled"),
        ({"enabled": True, "percentage": 101}, "percentage"),
        ({"enabled": True, "percentage": 1.5}, "percentage"),
        ({"enabled": True, "reason": " "}, "reason"),
        ({"enabled": True, "resellers": {"a": "perhaps"}}, "resellers.a"),
        ({"enabled": True, "tenants": {}}, "tenants"),
    ],
)
async def test_a_flag_that_makes_no_sense_is_refused(
    world: ApiWorld, body: dict[str, Any], field: str
) -> None:
    problem = await put(world.admin, "trial", 422, **body)
    assert problem["fields"][0]["field"] == field
    assert (await listed(world))["trial"]["is_set"] is False


async def test_flags_are_the_platforms_alone(world: ApiWorld) -> None:
    await put(world.admin, "trial", enabled=True)
    for tenant in ("a", "a1"):
        assert expect(await world.tenant(tenant).get("/api/v1/flags"), 200)["items"] == []
        await put(world.tenant(tenant), "trial", 404, enabled=False)
        expect(await world.tenant(tenant).delete("/api/v1/flags/trial", query={"reason": "r"}), 404)
        expect(await world.tenant(tenant).post("/api/v1/flags/trial/preview", {"enabled": True}), 404)
    assert (await listed(world))["trial"]["enabled"] is True


async def test_unsetting_needs_a_set_flag_and_a_reason(world: ApiWorld) -> None:
    expect(await world.admin.delete("/api/v1/flags/trial", query={"reason": "r"}), 404)
    expect(await world.admin.delete("/api/v1/flags/trial"), 422)
    expect(await world.admin.delete("/api/v1/flags/No-Flag", query={"reason": "r"}), 404)


# A hosted service decides


@pytest.fixture
async def hosted(database_url: str) -> AsyncIterator[ApiWorld]:
    service = Flags(board_of(), f"{__name__}:everything_off")
    async with open_api(database_url, populate=False, flags=service) as world:
        yield world


async def test_flags_cannot_be_set_while_a_flag_service_decides(hosted: ApiWorld) -> None:
    async with hosted.database.connection() as conn:
        await conn.execute(
            "INSERT INTO flags (name, enabled, percentage, resellers, merchants, reason, changed_by)"
            " VALUES ('event_dispatch', true, 10, '{}', '{}', 'before', 'ada')"
        )
    before = (await listed(hosted))["event_dispatch"]
    path, version = "/api/v1/flags/event_dispatch", before["version"]
    refused = [
        await put(hosted.admin, "event_dispatch", 409, enabled=False, version=version),
        expect(await hosted.admin.delete(path, query={"reason": "r", "version": version}), 409),
        expect(await hosted.admin.post(f"{path}/preview", {"enabled": False}), 409),
    ]
    assert {answer["code"] for answer in refused} == {"flags_hosted"}
    assert (await listed(hosted))["event_dispatch"] == before
    assert expect(await hosted.admin.get("/api/v1/audit", {"action": "flag"}), 200)["items"] == []


async def test_a_flag_shows_whether_store_or_service_decides(world: ApiWorld, hosted: ApiWorld) -> None:
    assert (await listed(world))["event_dispatch"]["decided_by"] == "platform"
    assert (await put(world.admin, "trial", enabled=True))["decided_by"] == "platform"
    assert {name: flag["decided_by"] for name, flag in (await listed(hosted)).items()} == {
        "event_dispatch": "flag_service",
        "trial": "flag_service",
    }
