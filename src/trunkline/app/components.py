"""The components of a process, in the order in which a call passes them. Each is built from those above it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from trunkline.api.webhooks.answers import LateEvents
from trunkline.bus.connection import Bus
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import RouterBus
from trunkline.clock import Clock
from trunkline.control.continuity import Guardian
from trunkline.control.controls import Controls
from trunkline.control.flags import FlagBoard, Flags
from trunkline.control.notifier import AlarmNotifier, AlarmWebhook, NotifierTimes
from trunkline.control.presence import Presence
from trunkline.control.refresh import ControlRefresh
from trunkline.dispatch import late_facts
from trunkline.dispatch.calls import LIMITS, CallFold
from trunkline.dispatch.carrier_responses import CarrierResponseWriter
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.checker import Checker, CheckLimits
from trunkline.dispatch.cooldowns import CooldownWriter
from trunkline.dispatch.dialer import Dialer, DialerLimits
from trunkline.dispatch.fallback import PostgresFallback
from trunkline.dispatch.gates import AgentRule
from trunkline.dispatch.grants import NoAgentsNeeded
from trunkline.dispatch.intent import Rules
from trunkline.dispatch.live_calls import LiveCalls
from trunkline.dispatch.loader import schedule_leads
from trunkline.dispatch.overdialling import Overdialling
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.prechecks import Prechecks, PrecheckScanner
from trunkline.dispatch.rollout import DialStops, Rollout
from trunkline.dispatch.sender import Callbacks, Sender, SenderLimits, is_cancelled
from trunkline.dispatch.settlement import Settler
from trunkline.http.outgoing import Outgoing
from trunkline.jobs.platform.catalogue import (
    JobsApi,
    PlatformParts,
    job_files,
    load_enricher,
    load_modules,
    platform_registry,
)
from trunkline.jobs.platform.enrichment import EnrichmentService
from trunkline.jobs.recurring import declared_schedules
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.wakeups import JobNotifier
from trunkline.leads.retries import Retries
from trunkline.loops.base import Loop
from trunkline.loops.leader import LeaderLoop, Leadership, LeaseTimes, Unelected
from trunkline.mailbox.inbox import Inbox, InboxLimits
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.worker import MailboxWorker
from trunkline.model import STREAMLESS
from trunkline.reminders.scheduler import ReminderScheduler
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.allocator import Allocator, Connector
from trunkline.router.config import SILENCE_S, RouterConfig
from trunkline.router.kubernetes.api import ClusterAddress, ClusterApi
from trunkline.router.kubernetes.lease import ClusterLeadership
from trunkline.router.kubernetes.protection import Protection
from trunkline.router.kubernetes.reflector import Reflector
from trunkline.router.pods import Pods, raise_if_reachable
from trunkline.router.pool_manager import PoolManager, is_over
from trunkline.router.registry import PodRegistry as PodRegistry
from trunkline.router.slots import SlotProposer, SlotReleaser
from trunkline.router.sources import HeartbeatSource, KubernetesSource, PodSource
from trunkline.router.tokens import CallKeys, StreamKeys
from trunkline.settings import Settings
from trunkline.store import database as store_database
from trunkline.store.agents import SlotRule
from trunkline.store.database import Database
from trunkline.telemetry import get_logger
from trunkline.telephony.accounts import AccountRefresher, AccountService, AccountsRefresh, Vault, accounts_of
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import AnswerFallback
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

# The names under which one process of a role leads, as they stand in the table `leaders`.
CONTROL_LEADER = "control"
ROUTER_LEADER = "router"
# An answer takes a millisecond of a connection: this many serve thousands per second.
ANSWER_CONNECTIONS = 3
ANSWER_COMMAND_S = 1.0
ANSWER_SESSION = {"lock_timeout": "400ms", "statement_timeout": "600ms"}
# A claim, a renewal of leases and a completion at once.
LEASE_CONNECTIONS = 3
# A batch of appends takes milliseconds.
INBOX_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class ConnectionPools:
    """Pools of connections to Postgres, separate where one use must not wait for another."""

    common: Database
    # Only for answers to carriers: an answered call does not wait behind a report.
    answers: Database
    # For appends to mailboxes, and for claims and leases of calls' mailboxes: an exhausted common pool affects neither
    # webhooks nor leases.
    appends: Database
    leases: Database

    @classmethod
    async def open(cls, settings: Settings, stack: AsyncExitStack) -> "ConnectionPools":
        """Opened as far as the roles of this process need them; closed by the stack."""

        async def connect(use: str, size: int, **options: Any) -> Database:
            assert settings.database.url, "given, or filled in by the embedded engines"
            database = await store_database.connect(
                settings.database.url,
                pool_size=size,
                behind_pooler=settings.database.pooler == "transaction",
                application_name=f"trunkline {settings.identity} {use}".rstrip(),
                **options,
            )
            stack.push_async_callback(database.close)
            return database

        common = answers = leases = await connect("", settings.database.pool_size)
        if settings.answers_calls:
            answers = await connect(
                "answers",
                ANSWER_CONNECTIONS,
                command_timeout_s=ANSWER_COMMAND_S,
                session_settings=ANSWER_SESSION,
            )
        if "mailbox" in settings.roles:
            leases = await connect("leases", LEASE_CONNECTIONS, opened_at_once=1)
        appends = await connect("appends", InboxLimits().connections, opened_at_once=1)
        return cls(common, answers, appends, leases)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Engines and settings that every component needs."""

    settings: Settings
    pools: ConnectionPools
    bus: Bus
    clock: Clock
    public_base_url: str
    secrets: list[str] = field(repr=False)

    @property
    def database(self) -> Database:
        return self.pools.common

    @property
    def fallback_base_url(self) -> str:
        return self.settings.http.fallback_base_url or self.public_base_url

    @property
    def answer_fallback(self) -> AnswerFallback:
        carrier = self.settings.carrier
        return AnswerFallback(carrier.answer_fallback_url or "", carrier.answer_fallback_message)

    @property
    def lease_times(self) -> LeaseTimes:
        leader = self.settings.leader
        return LeaseTimes(leader.duration_s, leader.renew_deadline_s, leader.retry_period_s)


class Ingress:
    """Accounts at carriers, whose webhooks report the states of calls, and the inbox that stores the reports."""

    def __init__(self, runtime: Runtime):
        settings, database = runtime.settings, runtime.database
        self.callback_keys = CallbackKeys.from_secrets(runtime.secrets)
        self.carriers = CarrierDirectory(accounts_of(settings, self.callback_keys))
        self.accounts = AccountService(
            database,
            self.carriers,
            Vault.from_secrets(runtime.secrets),
            self.callback_keys,
            runtime.public_base_url,
            settings.carrier.request_timeout_s,
        )
        self.accounts_refresh = AccountsRefresh(self.accounts)
        self.refresher = AccountRefresher(self.accounts.refresh)
        self.inbox = Inbox(runtime.pools.appends, runtime.bus)
        self.late_events = LateEvents(self.inbox.append_all)

    async def close_inbox(self) -> None:
        """Write the accepted events; a Postgres that hangs does not keep the process from ending."""
        try:
            async with asyncio.timeout(INBOX_CLOSE_S):
                await self.late_events.aclose()
                await self.inbox.aclose()
        except TimeoutError:
            log.warning("platform.inbox_not_written")


class ControlPlane:
    """Stops and flags, the guard against a restored database, and the notifier of alarms."""

    def __init__(self, runtime: Runtime):
        settings, database, clock = runtime.settings, runtime.database, runtime.clock
        board = FlagBoard()
        self.controls = Controls(clock)
        self.flags = Flags(board, settings.control.flag_provider)
        self.rollout = Rollout(self.flags)
        self.guardian = Guardian(database, runtime.bus, clock, settings.control.restore_guard)
        self.refresh = ControlRefresh(database, self.guardian, self.controls, board)
        self.presence = Presence(database, settings.identity, settings.roles)
        url = settings.control.alarm_webhook_url
        self.notifier = AlarmNotifier(
            database,
            runtime.bus,
            clock,
            settings.identity,
            CONTROL_LEADER,
            AlarmWebhook(url.get_secret_value()) if url else None,
            NotifierTimes(again_after_s=settings.control.alarm_repeat_s),
        )


class CallRouter:
    """Gives calls their pods, and the agents there a key to the call."""

    def __init__(self, runtime: Runtime, ingress: Ingress):
        settings, database = runtime.settings, runtime.database
        answers, config = runtime.pools.answers, RouterConfig.of(settings)
        bus = self.bus = RouterBus(runtime.bus, RouterKeys(settings.router_key_prefix))
        alarm = partial(raise_if_reachable, database)
        self.stream_keys = StreamKeys.from_secrets(runtime.secrets, settings.router.agent_base_url)
        self.call_keys = CallKeys.from_secrets(runtime.secrets)
        self.notes = AllocationNotes(database)
        self.addresses = PodAddresses(database)
        self.allocator = Allocator(bus, config, answers, self.notes)
        self.connector = Connector(
            self.allocator,
            self.addresses,
            self.stream_keys,
            self.call_keys,
            answers,
            runtime.clock,
            Policies().on_abandonment,
            partial(late_facts.reattach, database),
            are_agents_elsewhere=settings.router.agents == "elsewhere",
        )
        self.slot_rule = SlotRule(config.callers_of, SILENCE_S)
        self.slots = SlotProposer(bus, database, config)
        self.slot_releaser = SlotReleaser(bus, tombstone_s=config.ended_ttl_s)
        self.registry = PodRegistry(database, bus, config)
        self.pods = Pods(bus, config, database, self.registry, alarm)
        self._cluster: ClusterApi | None = None
        reflector: Reflector | None = None
        # The source of pods and the election of the pool manager: a cluster, or Postgres alone.
        self.election: list[Loop] = []
        self.protection: list[LeaderLoop] = []
        heartbeats = HeartbeatSource(bus, config)
        source: PodSource = heartbeats
        if settings.router.pod_source == "kubernetes":
            self._cluster = ClusterApi(ClusterAddress.of(settings))
            reflector = Reflector(self._cluster, settings.router.namespace, settings.router.label_selector)
            source = KubernetesSource(reflector, heartbeats)
            self.election.append(reflector)
        self._leadership = self._elect(runtime)
        if isinstance(self._leadership, Loop):
            self.election.append(self._leadership)
        self.manager = PoolManager(
            bus,
            config,
            source,
            self._leadership,
            runtime.clock,
            database,
            is_over=partial(is_over, database, ingress.carriers),
            alarm=alarm,
        )
        if self._cluster is not None and reflector is not None:
            self.protection.append(
                Protection(self._cluster, reflector, bus, self._leadership, settings.router.namespace)
            )

    def _elect(self, runtime: Runtime) -> Leadership | ClusterLeadership | Unelected:
        settings, clock = runtime.settings, runtime.clock
        router = settings.router
        if not settings.leader.enabled:
            return Unelected(clock)
        if self._cluster is None:
            return Leadership(runtime.database, clock, ROUTER_LEADER, settings.identity, runtime.lease_times)
        namespace = router.lease_namespace or router.namespace
        return ClusterLeadership(
            self._cluster, clock, namespace, router.lease_name, settings.identity, runtime.lease_times
        )

    async def close(self) -> None:
        await self._leadership.resign()
        if self._cluster is not None:
            await self._cluster.close()


class Dispatch:
    """Due leads meet free channels, and are dialled."""

    def __init__(self, runtime: Runtime, ingress: Ingress, control: ControlPlane, router: CallRouter):
        settings, database, bus = runtime.settings, runtime.database, runtime.bus
        policies = Policies(usual_retries=Retries(base_s=settings.reminders.retry_base_s))
        self.schedule = partial(schedule_leads, database, bus)
        self.settler = Settler(bus, policies, router.slot_releaser.release)
        self.agents = AgentRule(settings.router.agents == "elsewhere", STREAMLESS)
        self.cooldowns = CooldownWriter(database, settings.identity)
        self.to_tenants = Outgoing(allow_insecure=settings.jobs.allow_insecure_webhooks)
        rules = Rules(
            policies=policies,
            stopped=DialStops(control.controls, control.rollout),
            guardian=control.guardian,
            account_pace=ingress.carriers.starts_per_s,
            agents=self.agents,
            overdialling=Overdialling(router.slot_rule),
            unreachable=self.cooldowns.unreachable,
        )
        prechecks = Prechecks(database, self.to_tenants, policies)
        self.precheck_scanner = PrecheckScanner(database, bus, control.controls, policies, prechecks)
        sender = Sender(
            runtime.clock,
            ingress.carriers,
            Callbacks(runtime.public_base_url, ingress.callback_keys, runtime.fallback_base_url),
            CarrierResponseWriter(database, self.settler, self.cooldowns),
            SenderLimits(
                late_max_s=settings.dispatch.send_late_max_s,
                ring_timeout_s=int(settings.carrier.ring_timeout_s),
                time_limit_s=int(settings.carrier.time_limit_s),
                detects_machines=settings.carrier.machine_detection,
                records=settings.carrier.record_calls,
            ),
            killed=control.controls.killed,
            unwanted=partial(is_cancelled, database),
            refresher=ingress.refresher,
            unreachable=self.cooldowns.unreachable,
        )
        self.dialer = Dialer(
            database,
            bus,
            runtime.clock,
            sender,
            settings.identity,
            rules,
            DialerLimits(
                batch_max=settings.dispatch.batch_max,
                wait_max_s=settings.dispatch.idle_wait_s,
                ahead_s=settings.dispatch.ahead_s,
                fallback_starts_per_s=settings.dispatch.fallback_starts_per_s,
            ),
            prechecks.ask,
            PostgresFallback(control.rollout.includes, settings.identity),
            NoAgentsNeeded() if self.agents.are_elsewhere else router.slots,
        )


class PostCall:
    """Folds carriers' reports into facts, and enqueues follow-up jobs with the fact that caused them."""

    def __init__(self, runtime: Runtime, ingress: Ingress, dispatch: Dispatch):
        self._runtime = runtime
        self._carriers = ingress.carriers
        settings, jobs = runtime.settings, runtime.settings.jobs
        self.notifier = JobNotifier(settings.database.session_url if jobs.notify else None)
        load_modules(jobs.modules)
        self.jobs = JobsApi.build(
            self.notifier,
            runtime.secrets,
            settings.data_dir,
            allow_insecure_webhooks=jobs.allow_insecure_webhooks,
        )
        self.enrichment = EnrichmentService(self.jobs.outbox) if jobs.enricher else None
        self.call_worker = MailboxWorker(
            runtime.database,
            runtime.bus,
            CallFold(dispatch.settler, dispatch.cooldowns, self.enrichment),
            settings.identity,
            replace(
                LIMITS,
                concurrency=settings.mailboxes.concurrency,
                lease_s=settings.mailboxes.lease_s,
                failure=FailureRule(failures_max=settings.mailboxes.failures_max),
            ),
            own=runtime.pools.leases,
        )

    @asynccontextmanager
    async def running_jobs(self) -> AsyncIterator[None]:
        """With the role `jobs`, the service that runs them, on connections of its own."""
        settings = self._runtime.settings
        if "jobs" not in settings.roles:
            yield
            return
        assert settings.database.url, "connected"
        tenants = Outgoing(allow_insecure=settings.jobs.allow_insecure_webhooks)
        carriers = self._carriers
        types = platform_registry(
            PlatformParts(
                self._runtime.database,
                self.jobs.sealer,
                tenants,
                self._runtime.clock,
                job_files(settings.data_dir),
                self.jobs.outbox,
                load_enricher(settings.jobs.enricher),
                lambda call, url: carriers.media_authorization(call.carrier, call.account, url),
            )
        )
        async with JobService.open(
            JobConfig.of(settings),
            types,
            settings.database.url,
            direct_url=settings.database.direct_url,
            behind_pooler=settings.database.pooler == "transaction",
            recurring=declared_schedules,
            notifier=self.notifier,
        ):
            yield
        await tenants.close()


class Maintenance:
    """Checkers and makers of recurring work that other components need beside the table of loops."""

    def __init__(self, runtime: Runtime, ingress: Ingress, control: ControlPlane, dispatch: Dispatch):
        settings, database, bus, clock = runtime.settings, runtime.database, runtime.bus, runtime.clock
        carrier = settings.carrier
        self.check_limits = CheckLimits(
            carrier.request_timeout_s, carrier.ring_timeout_s, carrier.time_limit_s
        )
        self.leadership = Leadership(database, clock, CONTROL_LEADER, settings.identity, runtime.lease_times)
        self.reminders = ReminderScheduler(
            database,
            dispatch.schedule,
            interval_s=settings.reminders.poll_s,
            batch_max=settings.reminders.batch_max,
        )
        self.checker = Checker(
            database, clock, ingress.carriers, ingress.inbox, self.check_limits, dispatch.settler
        )
        self.live_calls = LiveCalls(database, clock, ingress.carriers, ingress.inbox)
        self.channels = ChannelReconciler(
            database, bus, control.controls, control.rollout, grant_ttl_s=settings.dispatch.grant_ttl_s
        )
