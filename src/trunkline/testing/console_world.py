"""The console on a real database, and a visitor without a browser: cookies, redirects and forms, no script.

visitor = await world.visitor(ADMIN_KEY)
page = await visitor.open("/console/control")
await visitor.send(page, "/console/control/stop", scope="merchant", subject="a1", reason="complaints")
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trunkline.api.deps import Probe
from trunkline.api.hot_routes import HotRoute
from trunkline.console.application import Console
from trunkline.testing.api_world import ApiWorld, open_api
from trunkline.testing.asgi import Answer, AsgiClient
from trunkline.testing.http_server import serve

if TYPE_CHECKING:
    from trunkline.testing.servers import Background

SECRET = "a secret of the tests of the console"
_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


@dataclass
class Visitor:
    client: AsgiClient
    cookies: dict[str, str] = field(default_factory=dict)

    async def open(self, address: str, **headers: str) -> Answer:
        path, _, query = address.partition("?")
        given = dict(pair.split("=", 1) for pair in query.split("&")) if query else None
        return self._remember(await self.client.get(path, given, headers=self._headers() | headers))

    async def send(self, page: Answer, path: str, **fields: str) -> Answer:
        """A form of this page."""
        token = _TOKEN.search(page.body.decode())
        assert token is not None, "the page has a form"
        return await self.send_raw(path, {"token": token[1], **fields})

    async def send_raw(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        form = {"content-type": "application/x-www-form-urlencoded"}
        return self._remember(
            await self.client.request(
                "POST", path, body=urlencode(fields).encode(), headers=self._headers() | form | headers
            )
        )

    async def sign_in(self, key: str) -> Answer:
        return await self.send_raw("/console/sign-in", {"key": key})

    def _headers(self) -> dict[str, str]:
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


@asynccontextmanager
async def open_console(
    database_url: str,
    *,
    populate: bool = True,
    probes: Mapping[str, Probe] | None = None,
    hot_routes: tuple[HotRoute, ...] = (),
    **more: Any,
) -> AsyncIterator[ConsoleWorld]:
    async with open_api(database_url, populate=populate, probes=probes, hot_routes=hot_routes, **more) as api:
        console = Console(api.app, [SECRET])
        try:
            yield ConsoleWorld(api, console)
        finally:
            console.close()


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
async def served(database_url: str) -> AsyncIterator[tuple[str, ConsoleWorld]]:
    """Its base URL, while it runs. Live pages are let go before the server waits for them."""
    async with open_console(database_url) as world, serve(world.api.app) as url:
        yield url, world
        world.console.close()
