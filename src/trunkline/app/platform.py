"""The whole system: every component and every loop of one Trunkline process, in the order in which a call passes them.

    async with Platform.open(settings) as platform:
        …

A process runs the loops of its roles; `Platform.loops_by_role` is the table. Start: engines answer, ports are bound,
loops run. Stop is the reverse: begin no new work, finish running work within a limit, then close connections.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from trunkline.api.admin_key import ensure_admin_key
from trunkline.api.server import HttpServer, bind
from trunkline.api.status import create_status
from trunkline.app.components import (
    CallRouter,
    ConnectionPools,
    ControlPlane,
    Dispatch,
    Ingress,
    Maintenance,
    PostCall,
    Runtime,
)
from trunkline.app.http_surface import HttpSurface
from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.campaigns.maintenance import AbandonmentGauges, CampaignCounter, CampaignMaintenance
from trunkline.clock import SystemClock
from trunkline.control.alarm_loop import AlarmLoop
from trunkline.control.continuity import Heartbeat
from trunkline.dispatch.carrier_costs import CarrierCosts
from trunkline.dispatch.hang_ups import HangUps
from trunkline.dispatch.lapsed_leads import LapsedLeads
from trunkline.dispatch.live_calls import WebhookReception
from trunkline.dispatch.loader import Loader, Rebuilder, Refiller
from trunkline.jobs.platform.retention import FileRetention
from trunkline.loops.base import Loop
from trunkline.loops.leader import LeaderLoop
from trunkline.mailbox.maintenance import MailboxGauges, MailboxRetention
from trunkline.model import STREAMLESS
from trunkline.reminders.follower import ReminderFollower
from trunkline.router.pods import PodGauges
from trunkline.router.slots import SlotCheck
from trunkline.settings import Settings
from trunkline.store import agents
from trunkline.store.migrate import require_schema
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

GOODBYE_S = 1.0


# Rows of the table beside the roles.
EVERY_PROCESS = "every process"
ANSWERS_CALLS = "api or router"


@dataclass(frozen=True, slots=True)
class Loops:
    """`every`: run in every process of the role. `leader`: do their duty only in the leader."""

    every: Sequence[Loop]
    leader: Sequence[LeaderLoop] = ()


class Platform:
    """One process. Everything it can do is built here; its roles decide what of it runs."""

    def __init__(self, settings: Settings, pools: ConnectionPools, bus: Bus):
        self.settings = settings
        self.database = pools.common
        self.bus = bus
        self._listeners = {
            "HTTP_PORT": bind(settings.http.host, settings.http.port, "HTTP_PORT"),
            "METRICS_PORT": bind(settings.http.host, settings.http.metrics_port, "METRICS_PORT"),
        }
        secrets = [key.get_secret_value() for key in settings.secret_keys]
        runtime = Runtime(settings, pools, bus, SystemClock(), self.public_base_url, secrets)
        self.ingress = Ingress(runtime)
        self.control = ControlPlane(runtime)
        self.router = CallRouter(runtime, self.ingress)
        self.dispatch = Dispatch(runtime, self.ingress, self.control, self.router)
        self.post_call = PostCall(runtime, self.ingress, self.dispatch)
        self.maintenance = Maintenance(runtime, self.ingress, self.control, self.dispatch)
        parts = (self.ingress, self.control, self.router, self.dispatch, self.post_call, self.maintenance)
        self.http = HttpSurface(runtime, *parts)
        self.loops_by_role = self._loops_by_role()
        self._servers = [
            HttpServer(self.http.served, self._listeners["HTTP_PORT"], shutdown_timeout_s=5.0),
            HttpServer(
                create_status(self.http.api.state.api),
                self._listeners["METRICS_PORT"],
                shutdown_timeout_s=1.0,
            ),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> "AsyncIterator[Platform]":
        """Connect, start, and stop in order at the end."""
        assert settings.redis.url, "given, or filled in by the embedded engines"
        async with AsyncExitStack() as stack:
            pools = await ConnectionPools.open(settings, stack)
            metrics.watch_pool(pools.common.warm_pool)
            bus = bus_connection.connect(
                settings.redis.url,
                Keys(settings.domain),
                pool_size=settings.redis.pool_size,
                cluster=settings.redis.cluster,
            )
            stack.push_async_callback(bus.close)
            async with pools.common.connection() as conn:
                await require_schema(conn)
            if settings.admin_key is not None:
                await ensure_admin_key(pools.common, settings.admin_key.get_secret_value())
            platform = cls(settings, pools, bus)
            await platform.control.flags.open()
            await platform.ingress.accounts.refresh()
            await platform.warn_without_agents()
            platform.start()
            try:
                async with platform.post_call.running_jobs():
                    yield platform
            finally:
                await platform.stop()

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
        """An installation with dialers and without agents dials nothing: log that, and the remedy. Before the first
        carrier account is stored too: the operator who stores it reads this process's log."""
        carriers = {carrier for carrier, _ in self.ingress.carriers.names}
        needing = carriers - STREAMLESS
        if "dispatcher" not in self.settings.roles or self.dispatch.agents.are_elsewhere:
            return
        if carriers and not needing:
            return
        async with self.database.connection() as conn:
            if await agents.are_known(conn):
                return
        log.warning(
            "platform.no_agents_known",
            carriers=",".join(sorted(needing)),
            effect="no lead is dialled until an agent registers",
            action="start an agent (docs/reference/agent.md); for external agents set AGENTS=elsewhere",
        )

    async def stop(self) -> None:
        """Begin no new work, and finish running work within the limit."""
        log.info("platform.stopping")
        for loop in self.loops():
            loop.stop()
        try:  # first of all, because the process may be killed before it has finished
            async with asyncio.timeout(GOODBYE_S):
                await self.control.presence.leave()
        except Exception as error:
            log.warning("platform.leave_failed", error=str(error) or type(error).__name__)
        try:
            async with asyncio.timeout(self.settings.http.shutdown_timeout_s):
                await self._finish()
        except TimeoutError:
            log.warning("platform.drain_limit_reached")
        except Exception as error:
            log.warning("platform.stop_failed", error=str(error))
        for task in self._tasks:
            task.cancel()
        self.http.console.close()
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self.ingress.close_inbox()
        await self.control.notifier.close()
        await self.control.flags.close()
        await self.post_call.notifier.close()
        await self.ingress.carriers.aclose()
        await self.dispatch.to_tenants.close()
        log.info("platform.stopped")

    def loops(self) -> list[Loop]:
        """What this process runs."""
        answers = [ANSWERS_CALLS] if self.settings.answers_calls else []
        rows = [self.loops_by_role[row] for row in (EVERY_PROCESS, *answers, *self.settings.roles)]
        return [loop for row in rows for loop in (*row.every, *row.leader)]

    def _loops_by_role(self) -> dict[str, Loops]:
        """Every loop, by role. With the role `jobs`, `JobService` runs the loops of its queue beside these."""
        ingress, control, router, jobs = self.ingress, self.control, self.router, self.settings.jobs
        return {
            EVERY_PROCESS: Loops(
                [control.refresh, control.presence, control.notifier, ingress.accounts_refresh],
            ),
            ANSWERS_CALLS: Loops([router.notes, router.addresses]),
            "api": Loops([WebhookReception(self.database)]),
            "dispatcher": Loops([self.dispatch.dialer]),
            "mailbox": Loops([self.post_call.call_worker]),
            "jobs": Loops(
                [
                    FileRetention(
                        self.database,
                        self.post_call.jobs.files,
                        exports_s=jobs.history_s,
                        enrichments_s=jobs.enrichment_s,
                    )
                ]
            ),
            "router": Loops(
                [*router.election, router.registry, PodGauges(router.bus)],
                leader=[router.manager, *router.protection],
            ),
            "control": self._control_loops(),
        }

    def _control_loops(self) -> Loops:
        settings, database, bus = self.settings, self.database, self.bus
        ingress, control, router, dispatch = self.ingress, self.control, self.router, self.dispatch
        maintenance = self.maintenance
        return Loops(
            [
                maintenance.leadership,
                # Rebuild the schedule and the channels in Valkey from Postgres.
                Rebuilder(database, bus, control.controls, control.rollout),
                Loader(database, bus, jitter_max_s=settings.dispatch.loader_jitter_max_s),
                Refiller(database, bus),
                maintenance.channels,
                # Calls without webhooks, calls that should end, and calls without a price.
                maintenance.checker,
                maintenance.live_calls,
                HangUps(database, ingress.carriers),
                CarrierCosts(database, ingress.carriers),
                # Agents' slots whose attempts have ended.
                SlotCheck(database, router.slot_releaser, doubt_s=maintenance.check_limits.ring_over_s),
                # Leads: pre-checks ahead of their due time, creation, follow-up, end.
                dispatch.precheck_scanner,
                maintenance.reminders,
                ReminderFollower(database),
                LapsedLeads(database),
                CampaignMaintenance(database),
                CampaignCounter(database),
                AbandonmentGauges(database),
                # Mailboxes: retention and gauges.
                MailboxRetention(database, keep_s=settings.mailboxes.keep_s),
                MailboxGauges(database),
            ],
            leader=[
                Heartbeat(maintenance.leadership, database, bus, control.guardian),
                AlarmLoop(
                    maintenance.leadership,
                    database,
                    bus,
                    slots=router.slot_rule if dispatch.agents.are_ours else None,
                    includes=control.rollout.includes,
                ),
            ],
        )

    async def _finish(self) -> None:
        # First the dials: their requests are at the carriers, and a slow loop must not use up their time.
        dialer = self.dispatch.dialer
        await asyncio.gather(*(task for task in self._tasks if task.get_name() == dialer.name))
        await dialer.drain()
        await asyncio.gather(*self._tasks)
        await self.maintenance.checker.drain()
        await self.maintenance.live_calls.drain()
        await self.dispatch.precheck_scanner.drain()
        await self.maintenance.leadership.resign()
        await self.router.close()
        await self.control.presence.leave()
