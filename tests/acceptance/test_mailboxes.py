"""Mailboxes of a whole platform: appended to over HTTP, handled by an application, counted and tidied by us."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World, open_world
from trunkline.app import Platform
from trunkline.errors import StoreUnavailable
from trunkline.mailbox import Mailbox, Mailboxes, NewEvent, mailbox
from trunkline.store.database import connect


async def test_an_event_appended_over_http_is_handled_by_an_application(
    world: World, database_url: str, redis_url: str, key_prefix: str
) -> None:
    api = AsgiClient(world.platform.http.api, ADMIN_KEY)
    assert (await api.post("/api/v1/mailbox-kinds", {"kind": "issue", "merchant_id": "m"})).status == 201
    handled: asyncio.Queue[tuple[str, list[str]]] = asyncio.Queue()

    @mailbox("issue")
    async def triage(issue: Mailbox) -> None:
        handled.put_nowait((issue.key, [event.type for event in issue.events]))

    async with Mailboxes.open(database_url, redis_url, [triage], domain=key_prefix):
        sent = await api.post("/api/v1/mailboxes/issue/acme/site#12/events", {"type": "opened"})
        assert sent.status == 201
        assert await asyncio.wait_for(handled.get(), 20) == ("acme/site#12", ["opened"])

        async def is_idle() -> bool:
            box = (await api.get("/api/v1/mailboxes/issue/acme/site#12")).json()
            return bool(box["processing_status"] == "idle")

        await eventually(is_idle)


async def test_the_control_role_runs_mailbox_gauges_and_retention(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_world(
        database_url,
        redis_url,
        key_prefix,
        pods=0,
        TRUNKLINE_ROLES="api,mailbox,control",
        MAILBOX_RETENTION="1ms",
    ) as world:
        running = {loop.name for loop in world.platform.loops()}
        assert {"mailbox", "mailbox_gauges", "mailbox_retention"} <= running
        [retention] = [loop for loop in world.platform.loops() if loop.name == "mailbox_retention"]
        # No attempt has this key, so the fold sets it aside at once.
        await world.platform.ingress.inbox.append(NewEvent("call", "nobody", "1", "ended", {}))

        async def is_gone() -> bool:
            await retention.run_once()
            async with world.platform.database.connection() as conn:
                return not await conn.fetchval("SELECT count(*) FROM mailboxes")

        await eventually(is_gone)


async def test_a_stopping_platform_writes_accepted_events_and_refuses_new_ones(
    world: World, database_url: str, redis_url: str, key_prefix: str
) -> None:
    settings = world.platform.settings
    async with Platform.open(settings) as platform:
        taken = asyncio.ensure_future(
            platform.ingress.inbox.append(NewEvent("issue", "1", "1", "opened", {}))
        )
        await asyncio.sleep(0)
    assert (await taken).created
    with pytest.raises(StoreUnavailable):
        await platform.ingress.inbox.append(NewEvent("issue", "1", "2", "opened", {}))


async def test_the_example_of_the_page_runs(database_url: str, redis_url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "mailboxes.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    example: dict[str, Any] = {}
    exec(found[1], example)
    database = await connect(database_url)
    try:
        async with database.connection() as conn:
            await conn.execute("CREATE TABLE replies (issue text, reply text)")
            await example["run"](database_url, redis_url)
            assert (
                await conn.fetchval("SELECT appended FROM trunkline.mailboxes WHERE key = 'acme/site#12'")
                == 1
            )
        async with Mailboxes.open(database_url, redis_url, [example["triage"]]):

            async def has_reply() -> bool:
                async with database.connection() as conn:
                    reply = await conn.fetchval("SELECT reply FROM replies WHERE issue = 'acme/site#12'")
                return bool(reply == "1 news: comment.created")

            await eventually(has_reply)
    finally:
        await database.close()
