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
from trunkline.telephony.accounts import AccountRefresher
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
        settings, database, http = runtime.settings, runtime.database, runtime.settings.http
        limits = ApiLimits(body=BodyRule(http.max_body_bytes, http.read_timeout_s))
        store = Store(database, timeout_s=limits.store_timeout_s)
        hottest, others = _raw_routes(runtime, ingress, router, post_call, store)
        self.api: FastAPI = create_api(
            ApiDeps(
                database=database,
                clock=runtime.clock,
                on_leads_accepted=dispatch.schedule,
                probes=_probes(runtime),
                render_metrics=metrics.render,
                limits=limits,
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
                    has_flag_service=settings.control.flag_provider is not None,
                    account_pace=ingress.carriers.starts_per_s,
                    projection=partial(channels.explain, runtime.bus),
                    looks_for_dialers=True,
                ),
                flags=control.flags,
                reminders=ReminderRules(maintenance.reminders.horizon_s, settings.reminders.attempts_max),
            ),
            [*hottest, *others],
        )
        self.console = Console(
            self.api, runtime.secrets, is_secure=runtime.public_base_url.startswith("https:")
        )
        # The API, with the fast path of the hottest routes before it.
        guarded = WriteGuard(self.api, http.write_timeout_s)
        self.served = FastPath(guarded, self.api.state.api.verifier, hottest, body=limits.body)


def _raw_routes(
    runtime: Runtime, ingress: Ingress, router: CallRouter, post_call: PostCall, store: Store
) -> tuple[list[RawRoute], list[RawRoute]]:
    """The hottest routes, webhooks and the router's endpoints, which bound their bodies themselves; and the others."""
    settings, http = runtime.settings, runtime.settings.http
    carriers, keys, hold_max_s = ingress.carriers, ingress.callback_keys, settings.router.hold_max_s
    view = PublicView(http.public_base_url, http.trusted_proxies, http.fallback_base_url)
    inbound = Inbound(runtime.database, runtime.bus, settings.identity)
    webhooks = WebhookRoutes(
        WebhookReader(carriers, keys, view, ingress.refresher),
        Answers(inbound, router.connector.find_stream, keys, runtime.answer_fallback, hold_max_s),
        ingress.inbox,
        ingress.late_events,
        runtime.clock,
    )
    endpoints = RouterEndpoints(
        router.allocator,
        router.pods,
        router.stream_keys,
        router.addresses,
        is_leader=lambda: router.manager.is_leader,
        is_open=settings.router.is_open,
        call_time_limit_s=settings.carrier.time_limit_s,
    )
    agents = AgentApi(store, router.call_keys, post_call.enrichment)
    # Unauthenticated requests can trigger it: its own, slower reading does not delay the webhooks'.
    slower = AccountRefresher(ingress.accounts.refresh, interval_s=1.0)
    of_carriers = CarrierApi(
        router.allocator,
        router.stream_keys,
        WebhookReader(carriers, keys, view, slower),
        runtime.answer_fallback,
        hold_max_s,
    )
    merchants = MerchantApi(store, router.bus, carriers, keys, runtime.public_base_url)
    return (
        [*webhooks.raw_routes(), *endpoints.raw_routes()],
        [*agents.raw_routes(), *of_carriers.raw_routes(), *merchants.raw_routes()],
    )


def _probes(runtime: Runtime) -> dict[str, HealthProbe]:
    """A process that answers carriers stays in its load balancer while one engine answers: all processes share the
    engines, so one engine's outage would take out all of them, and no answered call would reach its agent."""

    async def postgres() -> None:
        """It answers, and has a schema that this version runs on: a newer version may have migrated it meanwhile."""
        async with runtime.database.connection() as conn:
            await require_schema(conn)

    answers = runtime.settings.answers_calls
    return {
        "postgres": HealthProbe(postgres, is_alternative=answers),
        "valkey": HealthProbe(runtime.bus.server_time_s, is_alternative=answers),
    }
