"""The platform queries a tenant's own system over HTTP before it dials the tenant's leads."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.world import ADMIN_KEY, World, open_world

WELCOME, UNWELCOME = "+15005551000", "+15005551001"


class Tenant:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        question: dict[str, Any] = await request.json()
        self.asked.append(question["phone"])
        return web.json_response({"consent": question["phone"] == WELCOME})


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    """The tenant is on this machine, which is private: allowed for development alone."""
    async with open_world(database_url, redis_url, key_prefix, WEBHOOK_ALLOW_INSECURE=True) as world:
        await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=3)
        yield world


async def test_only_leads_that_pass_the_tenants_pre_check_are_dialled(world: World) -> None:
    tenant = Tenant()
    app = web.Application()
    app.router.add_post("/consent", tenant.answer)
    async with TestServer(app) as server:
        condition = {"path": "body.consent", "value": True}
        policy = {"prechecks": [{"url": str(server.make_url("/consent")), "conditions": [condition]}]}
        await put(world, "/api/v1/merchants/m/policy", policy)
        welcome = await world.client.create_lead(merchant_id="m", phone=WELCOME)
        unwelcome = await world.client.create_lead(merchant_id="m", phone=UNWELCOME)
        assert (await world.finished(welcome.id)).outcome == "ANSWERED"
        assert (await world.finished(unwelcome.id)).outcome == "PRECHECK_FAILED"
    assert sorted(tenant.asked) == [WELCOME, UNWELCOME], "each once"
    assert [dial.to for dial in world.carrier.ledger.dials] == [WELCOME]
    await world.channels_are_free()


async def put(world: World, path: str, body: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with (
        aiohttp.ClientSession(world.platform.base_url, headers=headers) as session,
        session.put(path, json=body) as response,
    ):
        assert response.status == 200, await response.text()
