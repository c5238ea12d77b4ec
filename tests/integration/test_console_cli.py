"""`trunkline top`, `pods`, `keys` and `console` against a platform over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from trunkline.cli.main import app
from trunkline.testing.api_world import ADMIN_KEY
from trunkline.testing.console_world import ConsoleWorld, open_console, open_router, park
from trunkline.testing.http_server import serve

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[ConsoleWorld]:
    async with (
        open_router(redis_url, key_prefix) as router,
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


async def test_top_shows_what_goes_on(run: Run, world: ConsoleWorld) -> None:
    await world.api.make_lead("a1", "waits")
    await world.api.admin.request("PUT", "/api/v1/controls/merchant/a2", json={"reason": "complaints"})
    seen = answer(await run("top", "--once"))
    assert [queue["merchant_id"] for queue in seen["overview"]["queues"]] == ["a1"]
    shown = (await run("top", "--once", as_json=False)).stdout
    assert "STOPPED merchant a2: complaints" in shown
    assert "NOBODY LEADS" in shown
    assert "a1-pool" in shown


async def test_a_call_is_found_on_its_pod(run: Run, world: ConsoleWorld) -> None:
    await park(world.api, "agent-0", "CA-1")
    assert answer(await run("pods", "find", "CA-1"))["pod_name"] == "agent-0"
    nowhere = await run("pods", "find", "CA-2")
    assert nowhere.exit_code == 1
    assert "No pod has the call CA-2" in str(nowhere.exception)
    assert answer(await run("pods", "drain", "agent-0"))["is_draining"]
    assert [pod["pod_name"] for pod in answer(await run("pods", "list"))["items"]] == ["agent-0"]


async def test_a_key_is_made_used_and_revoked(run: Run) -> None:
    made = answer(await run("keys", "create", "shop", "--scope", "read", "--merchant", "a1"))
    assert answer(await run("keys", "me", key=made["key"]))["merchant_id"] == "a1"
    assert made["id"] in [each["id"] for each in answer(await run("keys", "list", "--limit", "200"))["items"]]
    assert answer(await run("keys", "revoke", made["id"]))["revoked_at"]
    assert (await run("keys", "me", key=made["key"])).exit_code == 1


async def test_a_link_to_the_console_is_printed(run: Run, world: ConsoleWorld) -> None:
    link = answer(await run("console"))["link"]
    assert "/console/enter?link=" in link
    refused = await run("console", key="not-a-key-of-anybody")
    assert refused.exit_code == 1
