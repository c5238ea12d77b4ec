"""The HTTP surface: the API, webhooks, endpoints of agents and of the router, and the console, behind one port."""

from functools import partial

from fastapi import FastAPI

from trunkline.api.agent_endpoints import AgentApi
from trunkline.api.application import create_api
from trunkline.api.body_guard import BodyRule
from trunkline.api.deps import ApiDeps, ApiLimits, HealthProbe, ReminderRules
from trunkline.api.fast_path import FastPath
from trunkline.api.raw_routes import RawRoute
from trunkline.api.router_carriers import CarrierApi
from trunkline.api.router_endpoints import RouterEndpoints
from trunkline.api.router_merchants import MerchantApi
from trunkline.api.store import Store
from trunkline.api.webhooks.answers import Answers
from trunkline.api.webhooks.routes import PublicView, WebhookReader, WebhookRoutes
from trunkline.api.write_guard import WriteGuard
from trunkline.app.components import (
    CallRouter,
    ControlPlane,
    Dispatch,
    Ingress,
    Maintenance,
    PostCall,
    Runtime,
)
from trunkline.bus import channels
from trunkline.console.application import Console
from trunkline.dispatch.inbound import Inbound
from trunkline.dispatch.why import DispatchView
from trunkline.store.migrate import require_schema
from trunkline.telemetry import metrics
from trunkline.telephony.account_refresher import AccountRefresher
from trunkline.telephony.carrier_registry import CARRIERS


class HttpSurface:
    def __init__(
        self,
        runtime: Runtime,
        ingress: Ingress,
        control: ControlPlane,
        router: CallRouter,
        dispatch: Dispatch,
        post_call: PostCall,
        maintenance: Maintenance,
    ):
        self._runtime = runtime
        self._ingress = ingress
        self._router = router
        http = runtime.settings.http
        self._limits = ApiLimits(body=BodyRule(http.max_body_bytes, http.read_timeout_s))
        self._view = PublicView(http.public_base_url, http.trusted_proxies, http.fallback_base_url)
        # The hottest routes, which bound their bodies themselves.
        self._hottest = [*self._webhooks().raw_routes(), *self._router_routes()]
        self.api: FastAPI = create_api(
            ApiDeps(
                database=runtime.database,
                clock=runtime.clock,
                on_leads_accepted=dispatch.schedule,
                probes=self._probes(),
                render_metrics=metrics.render,
                limits=self._limits,
                carriers=frozenset(CARRIERS),
                jobs=post_call.jobs,
                accounts=ingress.accounts,
                inbox=ingress.inbox,
                free_dead_channels=maintenance.channels.free_dead,
                resolve_unknown=maintenance.checker.resolve_unknown,
                dispatch=DispatchView(
                    agents=dispatch.agents,
                    slots=router.slot_rule,
                    includes=control.rollout.includes,
                    has_flag_service=runtime.settings.control.flag_provider is not None,
                    account_pace=ingress.carriers.starts_per_s,
                    projection=partial(channels.explain, runtime.bus),
                    looks_for_dialers=True,
                ),
                flags=control.flags,
                reminders=ReminderRules(
                    maintenance.reminders.horizon_s, runtime.settings.reminders.attempts_max
                ),
            ),
            [*self._hottest, *self._raw_routes(post_call)],
        )
        is_secure = runtime.public_base_url.startswith("https:")
        self.console = Console(self.api, runtime.secrets, is_secure=is_secure)

    def _router_routes(self) -> list[RawRoute]:
        settings, router = self._runtime.settings, self._router
        return RouterEndpoints(
            router.allocator,
            router.pods,
            router.stream_keys,
            router.addresses,
            is_leader=lambda: router.manager.is_leader,
            is_open=settings.router.is_open,
            call_time_limit_s=settings.carrier.time_limit_s,
        ).raw_routes()

    def fast_path(self) -> FastPath:
        """The API, with the fast path of the hottest routes before it."""
        http = self._runtime.settings.http
        return FastPath(
            WriteGuard(self.api, http.write_timeout_s),
            self.api.state.api.verifier,
            self._hottest,
            body=self._limits.body,
        )

    def _raw_routes(self, post_call: PostCall) -> list[RawRoute]:
        ingress, router, keys = self._ingress, self._router, self._ingress.callback_keys
        store = Store(self._runtime.database, timeout_s=self._limits.store_timeout_s)
        agents = AgentApi(store, router.call_keys, post_call.enrichment)
        # Unauthenticated requests can trigger it, so it has its own, slower reading, which does not delay the
        # webhooks'.
        refresher = AccountRefresher(ingress.accounts.refresh, interval_s=1.0)
        carriers = CarrierApi(
            router.allocator,
            router.stream_keys,
            WebhookReader(ingress.carriers, keys, self._view, refresher),
            self._runtime.answer_fallback,
            self._runtime.settings.router.hold_max_s,
        )
        merchants = MerchantApi(store, router.bus, ingress.carriers, keys, self._runtime.public_base_url)
        return [
            *agents.raw_routes(),
            *carriers.raw_routes(),
            *merchants.raw_routes(),
        ]

    def _webhooks(self) -> WebhookRoutes:
        runtime, ingress = self._runtime, self._ingress
        answers = Answers(
            Inbound(runtime.database, runtime.bus, runtime.settings.identity),
            self._router.connector.find_stream,
            ingress.callback_keys,
            runtime.answer_fallback,
            runtime.settings.router.hold_max_s,
        )
        reader = WebhookReader(ingress.carriers, ingress.callback_keys, self._view, ingress.refresher)
        return WebhookRoutes(reader, answers, ingress.inbox, ingress.late_events, runtime.clock)

    def _probes(self) -> dict[str, HealthProbe]:
        """A process that answers carriers stays in its load balancer while one engine answers: all processes share the
        engines, so one engine's outage would take out all of them, and no answered call would reach its agent."""
        answers = not {"api", "router"}.isdisjoint(self._runtime.settings.roles)
        return {
            "postgres": HealthProbe(self._probe_postgres, is_alternative=answers),
            "valkey": HealthProbe(self._runtime.bus.server_time_s, is_alternative=answers),
        }

    async def _probe_postgres(self) -> None:
        """It answers, and has a schema that this version runs on: a newer version may have migrated it meanwhile."""
        async with self._runtime.database.connection() as conn:
            await require_schema(conn)
