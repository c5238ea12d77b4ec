"""The whole system: every part of one Trunkline process, in the order of a call's life.

    async with Platform.open(settings) as platform:
        …

A process does what its roles say. Starting: engines answer, ports are bound, loops run. Stopping is the other way
round: nothing new is begun, what was begun is finished within a limit, then connections close.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trunkline.api.admin_key import ensure_admin_key
from trunkline.api.server import HttpServer, bind
from trunkline.api.status import create_status
from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.clock import SystemClock
from trunkline.loops.base import Loop
from trunkline.parts.dialing import Dialing
from trunkline.parts.face import Face
from trunkline.parts.folding import call_worker
from trunkline.parts.following import Following
from trunkline.parts.ground import Ground
from trunkline.parts.keeping import Keeping
from trunkline.parts.routing import Routing
from trunkline.parts.steering import Steering
from trunkline.parts.way_in import WayIn
from trunkline.settings import Settings
from trunkline.store import agents
from trunkline.store import database as store_database
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.carriers import STREAMLESS

log = get_logger(__name__)

# An answer takes a millisecond of a connection: this many carry thousands a second.
ANSWER_CONNECTIONS = 3
ANSWER_COMMAND_S = 1.0


class Platform:
    """One process. Everything it can do is built here; its roles decide what of it runs."""

    def __init__(self, settings: Settings, database: Database, bus: Bus, answers_database: Database):
        self.settings = settings
        self.database = database
        self.bus = bus
        self._listeners = {
            "HTTP_PORT": bind(settings.http.host, settings.http.port, "HTTP_PORT"),
            "METRICS_PORT": bind(settings.http.host, settings.http.metrics_port, "METRICS_PORT"),
        }
        secrets = [key.get_secret_value() for key in settings.secret_keys]
        ground = Ground(
            settings, database, bus, SystemClock(), self.public_base_url, answers_database, secrets
        )
        self.way_in = WayIn(ground)
        self.routing = Routing(ground, self.way_in)
        self.steering = Steering(ground)
        self.dialing = Dialing(ground, self.way_in, self.routing, self.steering)
        self.following = Following(ground, self.way_in)
        self.call_worker = call_worker(ground, self.dialing, self.following)
        self.keeping = Keeping(ground, self.way_in, self.steering, self.routing, self.dialing, self.following)
        self.face = Face(ground, self.way_in, self.routing, self.dialing, self.following, self.keeping)
        self._loops: dict[str, list[Loop]] = {
            "api": [],
            "dispatcher": self.dialing.loops,
            "mailbox": [self.call_worker],
            "jobs": self.following.loops,
            "router": self.routing.loops,
            "control": self.keeping.loops,
        }
        self._servers = [
            HttpServer(self.face.express(), self._listeners["HTTP_PORT"], shutdown_timeout_s=5.0),
            HttpServer(
                create_status(self.face.api.state.api),
                self._listeners["METRICS_PORT"],
                shutdown_timeout_s=1.0,
            ),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> "AsyncIterator[Platform]":
        """Connect, start, and stop in order at the end."""
        assert settings.database.url, "given, or filled in by the embedded engines"
        assert settings.redis.url, "likewise"
        database = await store_database.connect(
            settings.database.url,
            pool_size=settings.database.pool_size,
            behind_pooler=settings.database.pooler == "transaction",
            application_name=f"trunkline {settings.identity}",
        )
        metrics.watch_pool(database.checkout)
        answers_database = database
        if settings.answers_calls:
            answers_database = await store_database.connect(
                settings.database.url,
                pool_size=ANSWER_CONNECTIONS,
                behind_pooler=settings.database.pooler == "transaction",
                command_timeout_s=ANSWER_COMMAND_S,
                application_name=f"trunkline {settings.identity} answers",
                session_settings={"lock_timeout": "400ms", "statement_timeout": "600ms"},
            )
        bus = bus_connection.connect(
            settings.redis.url,
            Keys(settings.domain),
            pool_size=settings.redis.pool_size,
            cluster=settings.redis.cluster,
        )
        try:
            if settings.admin_key is not None:
                await ensure_admin_key(database, settings.admin_key.get_secret_value())
            platform = cls(settings, database, bus, answers_database)
            await platform.steering.flags.open()
            await platform.way_in.accounts.refresh()
            await platform.warn_without_agents()
            platform.start()
            try:
                async with platform.following.running():
                    yield platform
            finally:
                await platform.stop()
        finally:
            await bus.close()
            if answers_database is not database:
                await answers_database.close()
            await database.close()

    @property
    def port(self) -> int:
        return int(self._listeners["HTTP_PORT"].getsockname()[1])

    @property
    def base_url(self) -> str:
        return f"http://{self.settings.http.host}:{self.port}"

    @property
    def public_base_url(self) -> str:
        return self.settings.http.public_base_url or self.base_url

    def start(self) -> None:
        for server in self._servers:
            server.start()
        for loop in self.loops():
            self._tasks.append(asyncio.create_task(loop.run(), name=loop.name))
        log.info("platform.started", roles=",".join(self.settings.roles), url=self.base_url)

    async def warn_without_agents(self) -> None:
        """An installation that dials, and knows no agent, dials nobody: say so, and what ends it."""
        needing = {carrier for carrier, _ in self.way_in.carriers.names} - STREAMLESS
        if "dispatcher" not in self.settings.roles or self.dialing.agents.are_elsewhere or not needing:
            return
        async with self.database.connection() as conn:
            if await agents.are_known(conn):
                return
        log.warning(
            "platform.no_agents_known",
            carriers=",".join(sorted(needing)),
            effect="nobody is dialled until an agent is known",
            action="start an agent (docs/agent.md); where other people's agents answer, set AGENTS=elsewhere",
        )

    async def stop(self) -> None:
        """Begin nothing new, finish what was begun, within the limit."""
        log.info("platform.stopping")
        for loop in self.loops():
            loop.stop()
        try:
            async with asyncio.timeout(self.settings.http.shutdown_timeout_s):
                await self._finish()
        except TimeoutError:
            log.warning("platform.drain_limit_reached")
        except Exception as error:
            log.warning("platform.stop_failed", error=str(error))
        for task in self._tasks:
            task.cancel()
        self.face.console.close()
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self.way_in.close_inbox()
        await self.steering.flags.close()
        await self.following.poker.close()
        await self.way_in.carriers.aclose()
        await self.dialing.to_tenants.close()
        log.info("platform.stopped")

    def loops(self) -> list[Loop]:
        """What this process runs."""
        own = [loop for role in self.settings.roles for loop in self._loops[role]]
        answers = self.routing.answer_loops if self.settings.answers_calls else []
        return [*self.steering.loops, self.way_in.accounts_refresh, *answers, *own]

    async def _finish(self) -> None:
        # First the dials: their requests are at the carriers, and no slow loop may use up their time.
        dialer = self.dialing.dialer
        await asyncio.gather(*(task for task in self._tasks if task.get_name() == dialer.name))
        await dialer.drain()
        await asyncio.gather(*self._tasks)
        await self.keeping.checker.drain()
        await self.dialing.precheck_walk.drain()
        await self.keeping.leadership.resign()
        await self.routing.management.close()
        await self.steering.presence.leave()
