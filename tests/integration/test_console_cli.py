"""`trunkline top`, `pods`, `keys` and `console` against a platform over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY
from tests.support.console.world import ConsoleWorld, open_console, open_router, park, put_on_the_line
from trunkline.cli.main import app
from trunkline.errors import TrunklineError

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[ConsoleWorld]:
    async with (
        open_router(redis_url, key_prefix, database_url) as router,
        open_console(database_url, router=router) as world,
    ):
        yield world


@pytest.fixture
async def run(world: ConsoleWorld) -> AsyncIterator[Run]:
    async with serve(world.api.app) as url:

        async def invoke(command: str, *arguments: str, key: str = ADMIN_KEY, as_json: bool = True) -> Result:
            options = ["--url", url, "--key", key, *(["--json"] if as_json else [])]
            return await asyncio.to_thread(CliRunner().invoke, app, [command, *options, *arguments])

        yield invoke


def answer(result: Result, status: int = 0) -> Any:
    assert result.exit_code == status, result.output + str(result.exception)
    return json.loads(result.stdout)


async def test_top_shows_queues_stops_and_a_missing_leader(run: Run, world: ConsoleWorld) -> None:
    await world.api.make_lead("a1", "waits")
    await world.api.admin.request("PUT", "/api/v1/controls/merchant/a2", json={"reason": "complaints"})
    seen = answer(await run("top", "--once"))
    assert [queue["merchant_id"] for queue in seen["overview"]["queues"]] == ["a1"]
    shown = (await run("top", "--once", as_json=False)).stdout
    assert "STOPPED merchant a2: complaints" in shown
    assert "NO LEADER" in shown
    assert "a1-pool" in shown


async def test_pods_find_names_the_pod_of_a_call(run: Run, world: ConsoleWorld) -> None:
    await park(world.api, "agent-0", "CA-1")
    assert answer(await run("pods", "find", "CA-1"))["pod_name"] == "agent-0"
    nowhere = await run("pods", "find", "CA-2")
    assert nowhere.exit_code == 1
    assert "No pod has the call CA-2" in str(nowhere.exception)
    assert answer(await run("pods", "drain", "agent-0"))["is_draining"]
    assert [pod["pod_name"] for pod in answer(await run("pods", "list"))["items"]] == ["agent-0"]


async def test_keys_makes_and_revokes_a_key(run: Run) -> None:
    made = answer(await run("keys", "create", "shop", "--scope", "read", "--merchant", "a1"))
    assert answer(await run("keys", "me", key=made["key"]))["merchant_id"] == "a1"
    assert made["id"] in [each["id"] for each in answer(await run("keys", "list", "--limit", "200"))["items"]]
    assert answer(await run("keys", "revoke", made["id"]))["revoked_at"]
    assert (await run("keys", "me", key=made["key"])).exit_code == 1


async def test_console_prints_a_sign_in_link(run: Run, world: ConsoleWorld) -> None:
    link = answer(await run("console"))["link"]
    assert "/console/enter?link=" in link
    refused = await run("console", key="not-a-key-of-anybody")
    assert refused.exit_code == 1


async def test_numbers_channels_lists_the_holder_of_each_channel(run: Run, world: ConsoleWorld) -> None:
    lead = await world.api.make_lead("a1", "on-the-line")
    number_id = world.api.numbers["a1-pool"]
    await put_on_the_line(world.api, lead["id"], number_id, "CA-of-the-third")
    async with world.api.database.connection() as conn:
        e164 = await conn.fetchval("SELECT e164 FROM numbers WHERE id = $1::uuid", number_id)
    for which in (number_id, e164):
        [holder] = answer(await run("numbers", "channels", which))["holders"]
        assert (holder["channel_no"], holder["lead_id"]) == (3, lead["id"])
    assert "CA-of-the-third" in (await run("numbers", "channels", e164, as_json=False)).stdout
    assert (await run("numbers", "channels", "+19995550100")).exit_code == 1


async def test_a_pool_says_whether_it_prefers_the_region_of_the_callee(run: Run) -> None:
    made = answer(await run("pools", "create", "near", "--region-affinity"))
    assert made["region_affinity"] is True
    assert answer(await run("pools", "change", "near", "--no-region-affinity"))["region_affinity"] is False
    assert "region_affinity" in (await run("pools", "show", "near", as_json=False)).stdout
    assert answer(await run("pools", "remove", "near")) == {"items": []}


async def test_clear_alarm_never_call_and_reminders_change_take_effect(run: Run, world: ConsoleWorld) -> None:
    ids = await world.api.objects_of("a1")
    cleared = answer(await run("control", "clear-alarm", ids["alarm_id"], "--reason", "looked at it"))
    assert cleared["cleared_at"]
    entry = answer(await run("leads", "never-call", ids["lead_id"], "--reason", "asked us to"))
    assert (entry["merchant_id"], entry["reason"]) == ("a1", "asked us to")
    changed = answer(await run("reminders", "change", ids["reminder_id"], "--message", "Both of them."))
    assert changed["message"] == "Both of them."


GROUPS = {
    "campaigns": "list", "control": "show", "jobs": "list", "keys": "list", "leads": "list", "mailbox": "summary",
    "merchants": "list", "numbers": "list", "pods": "list", "pools": "list", "queues": "list", "reminders": "list",
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
async def test_every_command_group_prints_a_table_or_json(run: Run, world: ConsoleWorld, group: str) -> None:
    await world.api.objects_of("a1")
    await park(world.api, "agent-0")
    assert "items" in answer(await run(group, GROUPS[group]))
    shown = await run(group, GROUPS[group], as_json=False)
    assert shown.exit_code == 0
    assert "│" in shown.stdout or "None." in shown.stdout
    assert (await run(group, "no-such-word")).exit_code == 2
    refused = await run(group, GROUPS[group], key="not-a-key-of-anybody")
    assert refused.exit_code == 1
    assert "\n" not in str(refused.exception)


@pytest.mark.parametrize("group", GROUPS)
def test_an_unreachable_platform_is_reported_in_one_line_with_status_1(group: str) -> None:
    away = CliRunner().invoke(app, [group, "--url", "http://127.0.0.1:9", "--key", "any", GROUPS[group]])
    assert away.exit_code == 1
    assert isinstance(away.exception, TrunklineError)
    assert "\n" not in str(away.exception)
