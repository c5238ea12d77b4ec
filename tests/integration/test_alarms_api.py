"""Alarms over the API."""

from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.client.decoding import decode
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.schema.alarms import Alarm, AuditLine
from trunkline.store.tenants import Tenant

PATH = "/api/v1/alarms"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def listed(world: ApiWorld, tenant: str | None = None, **query: object) -> list[dict[str, Any]]:
    client = world.tenant(tenant) if tenant else world.admin
    items: list[dict[str, Any]] = expect(await client.get(PATH, query), 200)["items"]
    return items


async def test_alarms_are_listed_by_state(world: ApiWorld) -> None:
    await raise_alarm(world.database, "late_fact", "adopted", {"attempt": "1"})
    await raise_alarm(world.database, "no_leader")
    await clear_alarm(world.database, "no_leader")
    [opened] = await listed(world)
    assert (opened["name"], opened["subject"], opened["detail"]) == ("late_fact", "adopted", {"attempt": "1"})
    assert opened["meaning"].startswith("A call reappeared")
    assert opened["action"]
    assert [alarm["name"] for alarm in await listed(world, state="all")] == ["no_leader", "late_fact"]
    assert [alarm["name"] for alarm in await listed(world, state="cleared")] == ["no_leader"]
    assert [alarm["name"] for alarm in await listed(world, state="all", severity="page")] == ["no_leader"]
    assert await listed(world, name="no_leader") == []


async def test_a_tenant_sees_only_its_own_alarms(world: ApiWorld) -> None:
    await raise_alarm(world.database, "dead_jobs", "of a1", tenant=Tenant("a", "a1"))
    await raise_alarm(world.database, "dead_jobs", "of a", tenant=Tenant("a"))
    await raise_alarm(world.database, "dead_jobs", "of all")
    assert {alarm["subject"] for alarm in await listed(world, "a1")} == {"of a1"}
    assert {alarm["subject"] for alarm in await listed(world, "a")} == {"of a1", "of a"}
    assert await listed(world, "b") == []


async def test_the_platform_clears_an_alarm_by_hand_with_a_reason(world: ApiWorld) -> None:
    await raise_alarm(world.database, "store_restored")
    [alarm] = await listed(world)
    path = f"{PATH}/{alarm['id']}/clear"
    assert expect(await world.admin.post(path, {}), 422)["fields"][0]["field"] == "reason"
    cleared = expect(await world.admin.post(path, {"reason": "looked at it"}), 200)
    assert cleared["cleared_by"].startswith("key:")
    assert await listed(world) == []
    assert expect(await world.admin.post(path, {"reason": "again"}), 409)["code"] == "already_cleared"
    [line] = expect(await world.admin.get("/api/v1/audit", {"action": "alarm"}), 200)["items"]
    assert (line["subject"], line["reason"]) == ("store_restored", "looked at it")
    shown, audited = decode(Alarm, cleared), decode(AuditLine, line)
    assert (shown.name, shown.severity, audited.action) == ("store_restored", "page", "alarm.cleared")
    assert cleared.keys() == {field.name for field in fields(Alarm)}, "what is stored beside is not shown"


async def test_a_tenant_cannot_clear_an_alarm(world: ApiWorld) -> None:
    await raise_alarm(world.database, "dead_jobs", "export", tenant=Tenant("a", "a1"))
    [alarm] = await listed(world)
    path = f"{PATH}/{alarm['id']}/clear"
    assert expect(await world.tenant("a1").post(path, {"reason": "r"}), 403)["code"] == "platform_only"
    assert expect(await world.tenant("b").post(path, {"reason": "r"}), 404)["code"] == "not_found"
    assert len(await listed(world)) == 1


async def test_alarms_are_listed_in_pages(world: ApiWorld) -> None:
    for number in range(5):
        await raise_alarm(world.database, "dead_jobs", f"type-{number}")
    first = expect(await world.admin.get(PATH, {"limit": 3}), 200)
    rest = expect(await world.admin.get(PATH, {"limit": 3, "cursor": first["next_cursor"]}), 200)
    subjects = [alarm["subject"] for alarm in first["items"] + rest["items"]]
    assert subjects == [f"type-{number}" for number in (4, 3, 2, 1, 0)]
    other = await world.admin.get(PATH, {"state": "all", "cursor": first["next_cursor"]})
    assert other.status == 400
