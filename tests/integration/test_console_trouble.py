"""Every page with nothing to show, and with an engine cut off: it can be read, and says what is the matter."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tests.support.api.asgi import Answer
from tests.support.api.world import ADMIN_KEY
from tests.support.console.world import (
    ConsoleWorld,
    Router,
    Visitor,
    addresses,
    open_console,
    open_router,
    park,
)
from tests.support.faults.proxy import TcpProxy
from trunkline.api.deps import HealthProbe
from trunkline.console import layout
from trunkline.console.sitemap import PAGES

NOBODY = {
    **dict.fromkeys(
        ("lead_id", "campaign_id", "reminder_id", "number_id", "job_id"),
        "01900000-0000-7000-8000-000000000001",
    ),
    "name": "agent-0",
    "kind": "call",
    "key": "nothing",
}
_NO_LEADER = """
INSERT INTO alarms (id, name, severity) VALUES (gen_random_uuid(), 'no_leader', 'page');
INSERT INTO processes (id, roles) VALUES ('host/1/abcdefgh', '{api}');
"""
# How long an answer about the engines is good for, and more.
STALE_S = 5.0


def text(answer: Answer) -> str:
    return answer.body.decode()


@asynccontextmanager
async def opened(database_url: str, router: Router) -> AsyncIterator[ConsoleWorld]:
    """With probes that ask the engines themselves."""

    async def ask_postgres() -> None:
        connection = await asyncpg.connect(database_url, timeout=30)
        await connection.close()

    probes = {
        "postgres": HealthProbe(ask_postgres, required=True),
        "valkey": HealthProbe(lambda: router.bus.server_time_s(), required=False),
    }
    async with open_console(database_url, router=router, probes=probes) as world:
        yield world


async def seen(world: ConsoleWorld, visitor: Visitor, pages: list[str]) -> dict[str, Answer]:
    world.api.clock.advance(STALE_S)
    return {page: await visitor.open(page) for page in pages}


def is_readable(answer: Answer) -> bool:
    """And does not say beside a banner that nothing is wrong."""
    page = text(answer)
    if 'class="banner' in page and "nothing is wrong" in page.lower():
        return False
    return "<h1>" in page and 'aria-label="Console"' in page and "Traceback" not in page


async def test_every_page_is_readable_with_an_empty_database(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with (
        open_router(redis_url, key_prefix, database_url) as router,
        open_console(database_url, router=router, populate=False) as world,
    ):
        visitor = await world.visitor(ADMIN_KEY)
        for path in PAGES:
            [address] = addresses([path], NOBODY)
            answer = await visitor.open(address)
            # A kind of mailbox is a filter, not an object.
            is_one = "{" in path and path != "/mailboxes/{kind}"
            assert answer.status == (404 if is_one else 200), address
            assert is_readable(answer), address
            assert ("Not there" in text(answer)) == is_one, address


async def test_every_page_is_readable_while_an_engine_is_down_and_after(
    database_url: str, redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PATIENCE_S", 30.0)  # one that is cut off refuses, and does so at once
    async with (
        TcpProxy.before(database_url) as postgres,
        TcpProxy.before(redis_url) as valkey,
        open_router(valkey.url, key_prefix, postgres.url) as router,
        opened(postgres.url, router) as world,
    ):
        ids = await world.api.objects_of("a1") | {"name": await park(world.api, "agent-0")}
        pages = addresses(PAGES, ids)
        visitor = await world.visitor(ADMIN_KEY)
        for page, answer in (await seen(world, visitor, pages)).items():
            assert (answer.status, "is away" in text(answer)) == (200, False), page

        valkey.refuse()
        valkey.cut()
        for page, answer in (await seen(world, visitor, pages)).items():
            assert answer.status == (503 if "/pods" in page else 200), page
            assert "Valkey is away" in text(answer), page
            assert is_readable(answer), page
        await valkey.heal()

        postgres.refuse()
        postgres.cut()
        for page, answer in (await seen(world, visitor, pages)).items():
            assert answer.status == (200 if "/pods" in page else 503), "Valkey knows of the pods"
            assert "Postgres is away" in text(answer), page
            assert is_readable(answer), page
        stranger = await world.stranger().sign_in("a-key-that-nobody-asked-about")
        assert (stranger.status, "sign-in is not possible" in text(stranger)) == (503, True)
        await postgres.heal()

        for page, answer in (await seen(world, visitor, pages)).items():
            assert (answer.status, "is away" in text(answer)) == (200, False), page


async def test_the_console_says_nothing_is_wrong_only_while_no_banner_is_shown(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with (
        open_router(redis_url, key_prefix, database_url) as router,
        opened(database_url, router) as world,
    ):
        async with world.api.database.connection() as conn:
            await conn.execute("DELETE FROM alarms")
            await conn.execute(
                "INSERT INTO processes (id, roles) VALUES ('host/1/abcdefgh', '{control}');"
                "INSERT INTO leaders (name, holder, term, expires_at)"
                " VALUES ('control', 'host/1/hgfedcba', 1, now() + interval '1 hour')"
            )
        visitor = await world.visitor(ADMIN_KEY)
        both = ["/console", "/console/control"]
        for page, answer in (await seen(world, visitor, both)).items():
            assert "nothing is wrong" in text(answer).lower(), page
        stopped = await world.api.admin.request(
            "PUT", "/api/v1/controls/kill-switch", json={"reason": "a drill"}
        )
        assert stopped.status < 300
        for page, answer in (await seen(world, visitor, both)).items():
            assert "The kill switch is on" in text(answer), page
            assert is_readable(answer), page


async def test_every_page_shows_that_no_process_leads(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with (
        open_router(redis_url, key_prefix, database_url) as router,
        opened(database_url, router) as world,
    ):
        ids = await world.api.objects_of("a1") | {"name": await park(world.api, "agent-0")}
        async with world.api.database.connection() as conn:
            await conn.execute(_NO_LEADER)
        visitor = await world.visitor(ADMIN_KEY)
        for page, answer in (await seen(world, visitor, addresses(PAGES, ids))).items():
            assert answer.status == 200, page
            assert "no leader" in text(answer).lower(), page
        assert "No leader" in text(await visitor.open("/console"))
