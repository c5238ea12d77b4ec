"""Which connections of a process are separate: an exhausted common pool delays neither appends nor leases."""

import asyncio
from contextlib import AsyncExitStack

import asyncpg

from tests.support.waiting import eventually
from trunkline.app import Platform
from trunkline.settings import load_settings
from trunkline.store.mailboxes import NewEvent

POOL_SIZE = 2


async def test_an_exhausted_pool_delays_neither_appends_nor_lease_renewals(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    settings = load_settings(
        {},
        DATABASE_URL=database_url,
        DATABASE_POOL_SIZE=POOL_SIZE,
        REDIS_URL=redis_url,
        TRUNKLINE_DOMAIN=key_prefix,
        ROUTER_KEY_PREFIX=key_prefix,
        TRUNKLINE_ROLES="api,mailbox",
        TRUNKLINE_SECRET_KEY="k" * 40,
        HTTP_PORT=0,
        METRICS_PORT=0,
    )
    async with Platform.open(settings) as platform, AsyncExitStack() as full:
        platform.database.warm_pool._timeout_s = 600.0
        for _ in range(POOL_SIZE):
            await full.enter_async_context(platform.database.connection())
        async with asyncio.timeout(60):
            receipt = await platform.ingress.inbox.append(
                NewEvent("call", "11111111-1111-7111-8111-111111111111", "1", "ringing", {})
            )
        assert receipt.created
        outside = await asyncpg.connect(database_url)
        full.push_async_callback(outside.close)

        async def is_claimed() -> bool:
            return bool(await outside.fetchval("SELECT processing_status <> 'queued' FROM mailboxes"))

        await eventually(is_claimed, what="the mailbox claimed by the worker")
