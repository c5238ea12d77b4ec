"""`trunkline router` and the merchants' tiers behind it, on a whole platform."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import SAMPLE, StoredWorld
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, SECRET_KEY
from trunkline.app import Platform
from trunkline.cli.main import app
from trunkline.router.config import RouterConfig
from trunkline.routing import Allocation
from trunkline.settings import load_settings
from trunkline.settings.tiers import parse_tiers
from trunkline.store import router as store

Run = Callable[..., Awaitable[Any]]


@pytest.fixture
async def platform(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Platform]:
    settings = load_settings(
        {},
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        TRUNKLINE_DOMAIN=key_prefix,
        ROUTER_KEY_PREFIX=key_prefix,
        TIER_CONFIG=SAMPLE,
        TRUNKLINE_ROLES="router",
        TRUNKLINE_SECRET_KEY=SECRET_KEY,
        TRUNKLINE_ADMIN_KEY=ADMIN_KEY,
        HTTP_PORT=0,
        METRICS_PORT=0,
    )
    async with Platform.open(settings) as platform:
        manager = platform.router.manager
        await eventually(lambda: manager.is_in_order, what="the manager has begun")
        yield platform


@pytest.fixture
def run(platform: Platform) -> Run:
    async def invoke(*arguments: str) -> Any:
        options = ["--url", platform.base_url, "--key", ADMIN_KEY, "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, app, ["router", *options, *arguments])
        assert result.exit_code == 0, result.output + str(result.exception)
        return json.loads(result.stdout) if result.stdout.lstrip().startswith(("{", "[")) else result.stdout

    return invoke


async def allocate(platform: Platform, call: str, merchant: str) -> str:
    answer = await platform.router.allocator.allocate(call, merchant)
    return answer.pod if isinstance(answer, Allocation) else "none"


async def test_a_merchant_is_given_a_tier_and_loses_it_again(
    platform: Platform, run: Run, key_prefix: str
) -> None:
    config = RouterConfig(tiers=parse_tiers(SAMPLE))
    world = StoredWorld(platform.bus, RouterKeys(key_prefix), platform.database, config)
    await world.pods(3)
    assert await allocate(platform, "call-1", "acme-corp") == "agent-2"

    assert (await run("tier", "acme-corp", "gold"))["tier"] == "gold"
    assert await allocate(platform, "call-2", "acme-corp") == "agent-0"
    dedicated = await run("tier", "9shines", "dedicated")
    assert (dedicated["tier"], dedicated["pool"]) == ("dedicated", "9shines")
    listed = (await run("tiers"))["items"]
    assert {item["merchant_id"]: item["tier"] for item in listed} == {
        "acme-corp": "gold",
        "9shines": "dedicated",
    }
    async with platform.database.connection() as conn:
        assert set(await store.merchants(conn)) == {"acme-corp", "9shines"}

    await run("tier", "acme-corp", "--remove")
    await world.release("call-2")
    assert await allocate(platform, "call-3", "acme-corp") == "agent-1"
    assert [item["merchant_id"] for item in (await run("tiers"))["items"]] == ["9shines"]


async def test_pods_and_calls_are_shown_and_a_pod_is_drained(
    platform: Platform, run: Run, key_prefix: str
) -> None:
    config = RouterConfig(tiers=parse_tiers(SAMPLE))
    world = StoredWorld(platform.bus, RouterKeys(key_prefix), platform.database, config)
    await world.pods(3)
    await allocate(platform, "call-1", "")
    status = await run("status")
    assert (status["active_calls"], status["is_leader"], status["pools"]["gold:assigned"]) == (1, True, 1)
    assert [pod["pod_name"] for pod in (await run("pods"))["items"]] == ["agent-0", "agent-1", "agent-2"]
    assert [call["call_sid"] for call in (await run("calls"))["items"]] == ["call-1"]
    assert (await run("drain", "agent-1"))["is_draining"] is True
    assert (await run("undrain", "agent-1"))["is_draining"] is False
    freed = await run("reset", "agent-2")
    assert (freed["ended_calls"], freed["still_named"], freed["status"]) == (["call-1"], [], "available")
    await world.beat("agent-2", hanging=["call-1"])
    assert [pod["hanging"] for pod in (await run("pods"))["items"]] == [[], [], ["call-1"]]
    freed = await run("reset", "agent-2")
    assert (freed["hanging"], freed["status"]) == (["call-1"], "ending")
