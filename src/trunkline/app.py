"""The whole system: every part of one Trunkline process, wired in the order of a call's life.

    async with Platform.open(settings) as platform:
        await platform.run(until=stop)

A process does what its roles say. Starting: engines answer, ports are bound, loops run. Stopping is the other way
round: nothing new is begun, what was begun is finished within a limit, then connections close.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from uuid import UUID

from fastapi import FastAPI

from trunkline.api import router_face
from trunkline.api.admin_key import ensure_admin_key
from trunkline.api.agent_face import AgentFace
from trunkline.api.application import create_api
from trunkline.api.body_guard import BodyRule
from trunkline.api.deps import ApiDeps, ApiLimits, Probe, ReminderRules
from trunkline.api.express import Express
from trunkline.api.hot_routes import HotRoute
from trunkline.api.router_carriers import CarrierFace
from trunkline.api.router_merchants import MerchantFace
from trunkline.api.server import HttpServer, bind
from trunkline.api.status import create_status
from trunkline.api.store import Store
from trunkline.api.webhooks import PublicView, Stream, WebhookDeps, Webhooks
from trunkline.bus import connection as bus_connection
from trunkline.bus import epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.probe import server_time_s
from trunkline.bus.router_keys import RouterKeys
from trunkline.campaigns.keeper import CampaignKeeper
from trunkline.clock import Clock, SystemClock
from trunkline.console.application import Console
from trunkline.control.controls import Controls
from trunkline.control.flags import FlagBoard
from trunkline.control.guardian import Guardian, Heartbeat
from trunkline.control.presence import Presence
from trunkline.control.provider import Flags
from trunkline.control.refresh import ControlRefresh
from trunkline.control.webhook import ANNOUNCE_ALARM, AlarmAnnouncer, AlarmDelivery
from trunkline.dispatch.accounts import AccountDesk, AccountsRefresh
from trunkline.dispatch.call_tokens import CallKeys
from trunkline.dispatch.calls import LIMITS as CALL_LIMITS
from trunkline.dispatch.calls import CallFold
from trunkline.dispatch.checks import CheckLimits
from trunkline.dispatch.configuration import DialStops
from trunkline.dispatch.dialer import Dialer, DialerLimits
from trunkline.dispatch.gates_windows import reopen
from trunkline.dispatch.hangups import HangUps
from trunkline.dispatch.inbound import Inbound
from trunkline.dispatch.intent import is_cancelled
from trunkline.dispatch.intent_batch import Rules
from trunkline.dispatch.policies import Policies
from trunkline.dispatch.prechecks import Prechecks
from trunkline.dispatch.results import ResultWriter
from trunkline.dispatch.rollout import Rollout
from trunkline.dispatch.sender import Callbacks, Sender, SenderLimits
from trunkline.dispatch.settlement import Settler
from trunkline.jobs.application import load_enricher, load_modules
from trunkline.jobs.face import JobFace
from trunkline.jobs.platform.catalogue import PlatformParts, job_files, platform_registry
from trunkline.jobs.platform.enrichment import EnrichmentDesk
from trunkline.jobs.platform.outgoing import Outgoing
from trunkline.jobs.poker import Poker
from trunkline.jobs.recurring import declared_schedules
from trunkline.jobs.service import JobConfig, JobService
from trunkline.leads.retries import Retries
from trunkline.loops.alarms import AlarmLoop, Announce
from trunkline.loops.base import Loop
from trunkline.loops.channels import ChannelReconciler
from trunkline.loops.checker import Checker
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.loops.loader import Loader, Refiller
from trunkline.loops.pod_room import PodCount, PodRoomWatch
from trunkline.loops.pods import PodGauges
from trunkline.loops.prechecks import PrecheckWalk
from trunkline.loops.rebuilder import Rebuilder
from trunkline.mailbox.gauges import MailboxGauges
from trunkline.mailbox.inbox import Inbox
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.retention import MailboxRetention
from trunkline.mailbox.worker import MailboxWorker
from trunkline.reminders.follower import ReminderFollower
from trunkline.reminders.scheduler import ReminderScheduler
from trunkline.router.allocator import Allocated, Allocator, NoneFree, Waiting
from trunkline.router.assembly import router_config
from trunkline.router.carriers import CarrierWord
from trunkline.router.config import COMMON
from trunkline.router.journal_writer import JournalWriter
from trunkline.router.management import manage
from trunkline.router.pods import Pods
from trunkline.router.streams import StreamKeys
from trunkline.settings import Settings
from trunkline.store import database as store_database
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carriers import CARRIERS
from trunkline.telephony.directory import CarrierDirectory
from trunkline.telephony.environment import accounts_of
from trunkline.telephony.vault import Vault

log = get_logger(__name__)

# The name under which one of many processes does what only one may do.
LEADER = "control"
# A batch of appends takes milliseconds.
INBOX_CLOSE_S = 5.0
# Their own agents talk: no pod of ours is needed.
_PODLESS = frozenset({"vapi"})


class Platform:
    """One process. Everything it can do is built here; its roles decide what of it runs."""

    def __init__(self, settings: Settings, database: Database, bus: Bus):
        secrets = [key.get_secret_value() for key in settings.secret_keys]
        clock: Clock = SystemClock()
        self.settings = settings
        self.database = database
        self.bus = bus
        self._listeners = {
            "HTTP_PORT": bind(settings.http.host, settings.http.port, "HTTP_PORT"),
            "METRICS_PORT": bind(settings.http.host, settings.http.metrics_port, "METRICS_PORT"),
        }

        # The way in: the API takes leads, and webhooks tell what became of calls.
        callback_keys = CallbackKeys.from_secrets(secrets)
        self.carriers = CarrierDirectory(accounts_of(settings, callback_keys))
        self.accounts = AccountDesk(
            database,
            self.carriers,
            Vault.from_secrets(secrets),
            callback_keys,
            self.public_base_url,
            settings.carrier.request_timeout_s,
        )
        self.inbox = Inbox(database, bus)

        # Calls get pods, and their agents a key to them.
        self.call_keys = CallKeys.from_secrets(secrets)
        config = router_config(settings)
        router_keys = RouterKeys(settings.router_key_prefix)
        stream_keys = StreamKeys.from_secrets(secrets)
        self.journal = JournalWriter(database)
        self.allocator = Allocator(bus, router_keys, stream_keys, config, self.journal)
        self.pods = Pods(bus, router_keys, stream_keys, config, self.journal)
        self.management = manage(
            settings,
            config,
            bus,
            router_keys,
            database,
            clock,
            self.pods,
            self.journal,
            CarrierWord(database, self.carriers).is_over,
        )

        # What steers it: stops, flags, and whether this is the database that it should be.
        self.controls = Controls(clock)
        flag_board = FlagBoard()
        self.flags = Flags(flag_board, settings.control.flag_provider)
        guardian = Guardian(database, bus, clock, settings.control.restore_guard)
        self.presence = Presence(database, clock, settings.identity, settings.roles, LEADER)
        self._everywhere: list[Loop] = [
            ControlRefresh(database, guardian, self.controls, flag_board),
            self.presence,
            AccountsRefresh(self.accounts),
        ]

        # Due leads meet free channels and are dialled.
        policies = Policies(usual_retries=Retries(base_s=settings.reminders.retry_base_s))
        settler = Settler(policies)
        self.results = ResultWriter(database, bus, settler)
        sender = Sender(
            clock,
            self.carriers,
            Callbacks(self.public_base_url, callback_keys),
            self.results,
            SenderLimits(
                late_max_s=settings.dispatch.send_late_max_s,
                ring_timeout_s=int(settings.carrier.ring_timeout_s),
                time_limit_s=int(settings.carrier.time_limit_s),
                detects_machines=settings.carrier.machine_detection,
                records=settings.carrier.record_calls,
            ),
            killed=self.controls.killed,
            unwanted=partial(is_cancelled, database),
        )
        rollout = Rollout(self.flags)
        rules = Rules(
            policies=policies,
            stopped=DialStops(self.controls, rollout),
            mark=lambda: guardian.mark,
            account_pace=self.carriers.starts_per_s,
            pods=lambda: self.pod_room.room(),
        )
        self.pod_room = PodRoomWatch(database, self._count_pods, _PODLESS)
        self._to_tenants = Outgoing(allow_insecure=settings.jobs.allow_insecure_webhooks)
        prechecks = Prechecks(database, self._to_tenants, rules)
        self.precheck_walk = PrecheckWalk(database, bus, self.controls, rules.policies, prechecks)
        self.dialer = Dialer(
            database,
            bus,
            clock,
            sender,
            settings.identity,
            rules,
            partial(reopen, database, rules),
            DialerLimits(
                batch_max=settings.dispatch.batch_max,
                wait_max_s=settings.dispatch.idle_wait_s,
                fallback_starts_per_s=settings.dispatch.fallback_starts_per_s,
            ),
            prechecks.ask,
        )

        # What the carrier reports is folded into facts, and what follows is settled.
        self.call_worker = MailboxWorker(
            database,
            bus,
            CallFold(bus, settler, self._release_pods),
            settings.identity,
            replace(
                CALL_LIMITS,
                concurrency=settings.mailboxes.concurrency,
                lease_s=settings.mailboxes.lease_s,
                failure=FailureRule(failures_max=settings.mailboxes.failures_max),
            ),
        )

        # What follows a call is enqueued with the fact that caused it, and run by the role `jobs`.
        self.poker = Poker(settings.database.session_url if settings.jobs.notify else None)
        load_modules(settings.jobs.modules)
        self.job_face = JobFace.build(
            self.poker,
            secrets,
            settings.data_dir,
            allow_insecure_webhooks=settings.jobs.allow_insecure_webhooks,
        )

        self.job_face.registry.add(ANNOUNCE_ALARM)

        # What is lost or late is found again.
        check_limits = CheckLimits(
            settings.carrier.request_timeout_s, settings.carrier.ring_timeout_s, settings.carrier.time_limit_s
        )
        self.leadership = Leadership(
            database,
            clock,
            LEADER,
            settings.identity,
            LeaseTimes(
                settings.leader.duration_s, settings.leader.renew_deadline_s, settings.leader.retry_period_s
            ),
        )
        self.reminders = ReminderScheduler(
            database,
            self._schedule,
            interval_s=settings.reminders.poll_s,
            batch_max=settings.reminders.batch_max,
        )
        self.checker = Checker(database, bus, clock, self.carriers, self.inbox, check_limits, settler)
        self.channels = ChannelReconciler(
            database, bus, self.controls, rollout, grant_ttl_s=settings.dispatch.grant_ttl_s
        )
        self._loops: dict[str, list[Loop]] = {
            "api": [],
            "dispatcher": [self.pod_room, self.dialer],
            "mailbox": [self.call_worker],
            "jobs": [],
            "router": [*self.management.loops, self.journal, PodGauges(self.pods)],
            "control": [
                self.leadership,
                Rebuilder(database, bus, self.controls, rollout),
                Loader(database, bus, jitter_max_s=settings.dispatch.loader_jitter_max_s),
                Refiller(database, bus),
                self.channels,
                self.checker,
                HangUps(database, self.carriers),
                self.precheck_walk,
                MailboxRetention(database, keep_s=settings.mailboxes.keep_s),
                MailboxGauges(database),
                Heartbeat(self.leadership, database, bus, guardian),
                self.reminders,
                ReminderFollower(database),
                CampaignKeeper(database),
                AlarmLoop(self.leadership, database, bus, clock, announce=self._announce(settings)),
            ],
        }
        self.api = self._api(clock)
        self.console = Console(self.api, secrets, is_secure=self.public_base_url.startswith("https:"))
        self._servers = [
            HttpServer(self._express(), self._listeners["HTTP_PORT"], shutdown_timeout_s=5.0),
            HttpServer(
                create_status(self.api.state.api), self._listeners["METRICS_PORT"], shutdown_timeout_s=1.0
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
        bus = bus_connection.connect(
            settings.redis.url,
            Keys(settings.domain),
            pool_size=settings.redis.pool_size,
            cluster=settings.redis.cluster,
        )
        try:
            if settings.admin_key is not None:
                await ensure_admin_key(database, settings.admin_key.get_secret_value())
            platform = cls(settings, database, bus)
            await platform.flags.open()
            await platform.accounts.refresh()
            platform.start()
            try:
                async with platform.running_jobs():
                    yield platform
            finally:
                await platform.stop()
        finally:
            await bus.close()
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
        for loop in self._running():
            self._tasks.append(asyncio.create_task(loop.run(), name=loop.name))
        log.info("platform.started", roles=",".join(self.settings.roles), url=self.base_url)

    async def stop(self) -> None:
        """Begin nothing new, finish what was begun, within the limit."""
        log.info("platform.stopping")
        for loop in self._running():
            loop.stop()
        try:
            async with asyncio.timeout(self.settings.http.shutdown_timeout_s):
                # First the dials: their requests are at the carriers, and no slow loop may use up their time.
                await asyncio.gather(*(task for task in self._tasks if task.get_name() == self.dialer.name))
                await self.dialer.drain()
                await asyncio.gather(*self._tasks)
                await self.checker.drain()
                await self.precheck_walk.drain()
                await self.leadership.resign()
                await self.management.close()
                await self.presence.leave()
        except TimeoutError:
            log.warning("platform.drain_limit_reached")
        except Exception as error:
            log.warning("platform.stop_failed", error=str(error))
        for task in self._tasks:
            task.cancel()
        self.console.close()
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self._close_inbox()
        await self.flags.close()
        await self.poker.close()
        await self.carriers.aclose()
        await self._to_tenants.close()
        log.info("platform.stopped")

    async def _close_inbox(self) -> None:
        """What it has taken is written; a Postgres that hangs does not keep the process from ending."""
        try:
            async with asyncio.timeout(INBOX_CLOSE_S):
                await self.inbox.aclose()
        except TimeoutError:
            log.warning("platform.inbox_not_written")

    def _running(self) -> list[Loop]:
        return [*self._everywhere, *(loop for role in self.settings.roles for loop in self._loops[role])]

    @asynccontextmanager
    async def running_jobs(self) -> AsyncIterator[None]:
        """With the role `jobs`, the service that runs them, on connections of its own."""
        if "jobs" not in self.settings.roles:
            yield
            return
        jobs, database = self.settings.jobs, self.settings.database
        assert database.url, "connected"
        outgoing = Outgoing(allow_insecure=jobs.allow_insecure_webhooks)
        parts = PlatformParts(
            self.database,
            self.job_face.sealer,
            outgoing,
            SystemClock(),
            job_files(self.settings.data_dir),
            self.job_face.outbox,
            load_enricher(jobs.enricher),
        )
        registry = platform_registry(parts)
        alarm_url = self.settings.control.alarm_webhook_url
        operators = Outgoing(allow_insecure=True)
        registry.add(
            ANNOUNCE_ALARM, AlarmDelivery(alarm_url.get_secret_value() if alarm_url else None, operators).run
        )
        async with JobService.open(
            JobConfig.of(self.settings),
            registry,
            database.url,
            direct_url=database.direct_url,
            behind_pooler=database.pooler == "transaction",
            recurring=declared_schedules,
            poker=self.poker,
        ):
            yield
        await outgoing.close()
        await operators.close()

    def _announce(self, settings: Settings) -> Announce | None:
        return AlarmAnnouncer(self.job_face.outbox).announce if settings.control.alarm_webhook_url else None

    def _api(self, clock: Clock) -> FastAPI:
        view = PublicView(self.settings.http.public_base_url, self.settings.http.trusted_proxies)
        webhooks = Webhooks(
            WebhookDeps(
                self.database,
                self.inbox,
                self.carriers,
                clock,
                self.accounts.keys,
                view,
                Inbound(self.database, self.bus, self.settings.identity),
                find_stream=self._find_stream,
            )
        )
        limits = ApiLimits(
            body=BodyRule(self.settings.http.max_body_bytes, self.settings.http.read_timeout_s)
        )
        enrichment = EnrichmentDesk(self.job_face.outbox) if self.settings.jobs.enricher else None
        agents = AgentFace(Store(self.database, timeout_s=limits.store_timeout_s), self.call_keys, enrichment)
        merchants = MerchantFace(
            Store(self.database, timeout_s=limits.store_timeout_s),
            self.bus,
            RouterKeys(self.settings.router_key_prefix),
            self.carriers,
            self.accounts.keys,
            self.public_base_url,
        )
        return create_api(
            ApiDeps(
                database=self.database,
                clock=clock,
                on_leads_accepted=self._schedule,
                probes=self._probes(),
                render_metrics=metrics.render,
                limits=limits,
                carriers=frozenset(CARRIERS),
                jobs=self.job_face,
                accounts=self.accounts,
                inbox=self.inbox,
                free_dead_channels=self.channels.free_dead,
                reminders=ReminderRules(self.reminders.horizon_s, self.settings.reminders.attempts_max),
            ),
            [
                *webhooks.hot_routes(),
                *agents.hot_routes(),
                *self._router_routes(),
                *CarrierFace(self.allocator, self.carriers, self.accounts.keys, view).hot_routes(),
                *merchants.hot_routes(),
            ],
        )

    def _express(self) -> Express:
        """The API, with a lane of their own for those who cannot wait."""
        return Express(
            self.api,
            self.api.state.api.verifier,
            self._router_routes(),
            read_timeout_s=self.settings.http.read_timeout_s,
        )

    def _router_routes(self) -> list[HotRoute]:
        return router_face.hot_routes(
            self.allocator,
            self.pods,
            is_leader=lambda: self.management.manager.is_leader,
            is_open=self.settings.router.is_open,
        )

    def _probes(self) -> dict[str, Probe]:
        """By role: the API cannot work without Postgres, the router not without Valkey; the rest is reported."""
        roles = self.settings.roles
        return {
            "postgres": Probe(self._probe_postgres, required="api" in roles),
            "valkey": Probe(self._probe_valkey, required="router" in roles),
        }

    async def _probe_postgres(self) -> float:
        async with self.database.connection() as conn:
            return await store_schedule.clock_s(conn)

    async def _probe_valkey(self) -> float:
        return await server_time_s(self.bus)

    async def _schedule(self, lead_ids: Sequence[UUID]) -> None:
        """A courtesy: the leads are safe in Postgres, and the loader would bring them within seconds."""
        metrics.LEADS_ACCEPTED.inc(len(lead_ids))
        outcome = "failed"
        try:
            await epoch.ensure(self.bus)
            async with self.database.connection() as conn:
                places = await store_schedule.places(conn, lead_ids)
            await schedule.add(self.bus, places.values())
            outcome = "ok"
        finally:
            metrics.SCHEDULE_ADDS.labels(outcome).inc()

    async def _find_stream(self, call_id: str, attempt_id: UUID, merchant_id: str) -> Stream | str:
        match await self.allocator.allocate(call_id, merchant_id, may_wait=True):
            case Allocated() as pod:
                # Three, because Exotel takes no more: whose call it is stands in the stream's first frame.
                key = self.call_keys.sign(attempt_id, call_id)
                return Stream(pod.ws_url, {"attempt": str(attempt_id), "token": pod.token, "key": key})
            case NoneFree():
                return "busy"
            case Waiting():
                return "hold"
            case _:
                return "ended"

    async def _count_pods(self) -> PodCount:
        counts = await self.pods.counts()
        # What every merchant's call may fall back to; reserved pods do not help the others.
        free = sum(pool.room for pool in counts.pools if pool.tier in COMMON)
        return PodCount(free, free + counts.calls)

    async def _release_pods(self, call_ids: list[str]) -> None:
        """The carrier says that these calls are over: the fourth of the ways in which a pod is released."""
        released = await asyncio.gather(*map(self.allocator.release, call_ids), return_exceptions=True)
        lost = [error for error in released if isinstance(error, BaseException)]
        if lost:
            log.warning("router.release_lost", calls=len(lost), reason=str(lost[0]))
