"""The console on a real database, and a visitor without a browser: cookies, redirects and forms, no script.

visitor = await world.visitor(ADMIN_KEY)
page = await visitor.open("/console/control")
await visitor.send(page, "/console/control/stop", scope="merchant", subject="a1", reason="complaints")
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from tests.support.api.asgi import Answer, AsgiClient
from tests.support.api.http_server import serve
from tests.support.api.world import ApiWorld, expect, open_api
from tests.support.bus.router_keys import RouterKeys
from tests.support.world import ALL_STANDARD
from trunkline.api.deps import HealthProbe
from trunkline.api.raw_routes import RawRoute
from trunkline.api.router_endpoints import RouterEndpoints
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import RouterBus
from trunkline.console.application import Console
from trunkline.control.flags import Flags
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.allocator import Allocator
from trunkline.router.config import RouterConfig
from trunkline.router.pods import Pods
from trunkline.router.tokens import StreamKeys
from trunkline.settings.tiers import parse_tiers
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database

if TYPE_CHECKING:
    from trunkline.testing.servers import Background

SECRET = "a secret of the tests of the console"
_HOLD = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, carrier_call_id, dialer, lead_due_at, answered_at)
SELECT gen_random_uuid(), l.id, 1, l.reseller_id, l.merchant_id, $2::uuid, 3, 'twilio', 'default', l.phone,
       '+14155550100', 'answered', $3, 'test', now(), now()
FROM leads AS l WHERE l.id = $1::uuid
"""
_CALLED = "UPDATE leads SET status = 'PROCESSING', attempt_count = 1 WHERE id = $1::uuid"
_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


@dataclass
class Visitor:
    client: AsgiClient
    cookies: dict[str, str] = field(default_factory=dict)

    async def open(self, address: str, **headers: str) -> Answer:
        path, _, query = address.partition("?")
        given = dict(pair.split("=", 1) for pair in query.split("&")) if query else None
        return self._remember(await self.client.get(unquote(path), given, headers=self.headers() | headers))

    async def send(self, page: Answer, path: str, **fields: str) -> Answer:
        """A form of this page."""
        token = _TOKEN.search(page.body.decode())
        assert token is not None, "the page has a form"
        return await self.send_raw(path, {"token": token[1], **fields})

    async def send_raw(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        form = {"content-type": "application/x-www-form-urlencoded"}
        return self._remember(
            await self.client.request(
                "POST", path, body=urlencode(fields).encode(), headers=self.headers() | form | headers
            )
        )

    async def sign_in(self, key: str) -> Answer:
        return await self.send_raw("/console/sign-in", {"key": key})

    def headers(self) -> dict[str, str]:
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}

    def _remember(self, answer: Answer) -> Answer:
        for header in answer.headers.getlist("set-cookie"):
            for name, morsel in SimpleCookie(header).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]
        return answer


@dataclass
class ConsoleWorld:
    api: ApiWorld
    console: Console

    def stranger(self) -> Visitor:
        return Visitor(AsgiClient(self.api.app))

    async def visitor(self, key: str) -> Visitor:
        visitor = self.stranger()
        answer = await visitor.sign_in(key)
        assert answer.status == 303, answer.body.decode()
        return visitor


def addresses(paths: Iterable[str], ids: Mapping[str, str]) -> list[str]:
    """Paths of the sitemap with ids in their places."""
    return [
        "/console" + re.sub(r"\{(\w+)(?::\w+)?\}", lambda place: quote(ids[place[1]], safe=""), path)
        for path in paths
    ]


@asynccontextmanager
async def open_console(
    database_url: str,
    *,
    router: "Router | None" = None,
    populate: bool = True,
    probes: Mapping[str, HealthProbe] | None = None,
    flags: Flags | None = None,
) -> AsyncIterator[ConsoleWorld]:
    raw_routes = tuple(router.raw_routes()) if router else ()
    async with open_api(
        database_url, populate=populate, probes=probes, raw_routes=raw_routes, flags=flags
    ) as api:
        console = Console(api.app, [SECRET])
        try:
            yield ConsoleWorld(api, console)
        finally:
            console.close()


@dataclass(frozen=True)
class Router:
    """The router's endpoints on a real Valkey, without its loops."""

    bus: Bus
    prefix: str
    database: Database

    def raw_routes(self) -> list[RawRoute]:
        bus = RouterBus(self.bus, RouterKeys(self.prefix))
        streams = StreamKeys.from_secrets([SECRET], "wss://voice.example.com")
        config = RouterConfig(tiers=parse_tiers(ALL_STANDARD), settle_s=0)
        allocator = Allocator(bus, config, self.database, AllocationNotes(self.database))
        return RouterEndpoints(allocator, Pods(bus, config, self.database), streams).raw_routes()


@asynccontextmanager
async def open_router(redis_url: str, prefix: str, database_url: str) -> AsyncIterator[Router]:
    bus = connect(redis_url, Keys(prefix=prefix))
    database = await connect_database(database_url, pool_size=3)
    try:
        yield Router(bus, prefix, database)
    finally:
        await bus.close()
        await database.close()


async def put_on_the_line(api: ApiWorld, lead_id: str, number_id: str, call: str) -> None:
    """The lead is being called: an answered call on the third channel of a number."""
    async with api.database.connection() as conn:
        await conn.execute(_HOLD, lead_id, number_id, call)
        await conn.execute(_CALLED, lead_id)


async def park(api: ApiWorld, name: str, call: str = "") -> str:
    """A pod that says it is there, and takes a call if one is named."""
    beat = {"ip": "10.0.0.7", "port": 8080, "version": "1.2.3", "calls": []}
    expect(await api.admin.post(f"/api/v1/pods/{name}/heartbeat", beat), 200)
    if call:
        allocated = await api.admin.post("/api/v1/allocate", {"call_sid": call, "merchant_id": "a1"})
        return str(expect(allocated, 200)["allocation"]["pod_name"])
    return name


@dataclass
class Site:
    """The console behind a real server, for tests that drive a browser and cannot await."""

    url: str
    world: ConsoleWorld
    background: "Background"

    def ask(self, query: str, *args: object) -> Any:
        """One value from the database, past everything that is tested."""

        async def fetch() -> Any:
            async with self.world.api.database.connection() as connection:
                return await connection.fetchval(query, *args)

        return self.background.run(fetch())

    def make_lead(self, merchant_id: str, request_id: str, **more: object) -> dict[str, Any]:
        return self.background.run(self.world.api.make_lead(merchant_id, request_id, **more))


@asynccontextmanager
async def served(database_url: str, redis_url: str, prefix: str) -> AsyncIterator[tuple[str, ConsoleWorld]]:
    """Its base URL, while it runs. Live pages are let go before the server waits for them."""
    async with (
        open_router(redis_url, prefix, database_url) as router,
        open_console(database_url, router=router) as world,
        serve(world.api.app) as url,
    ):
        yield url, world
        world.console.close()
