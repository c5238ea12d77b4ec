"""What the outside sees: the API, webhooks, agents, the router's endpoints and the console, behind one port."""

from functools import partial

from fastapi import FastAPI

from trunkline.api.agent_face import AgentFace
from trunkline.api.application import create_api
from trunkline.api.body_guard import BodyRule
from trunkline.api.deps import ApiDeps, ApiLimits, Probe, ReminderRules
from trunkline.api.express import Express
from trunkline.api.hot_routes import HotRoute
from trunkline.api.router_carriers import CarrierFace
from trunkline.api.router_merchants import MerchantFace
from trunkline.api.store import Store
from trunkline.api.webhooks import PublicView, WebhookDeps, Webhooks
from trunkline.api.write_guard import WriteGuard
from trunkline.bus.probe import server_time_s
from trunkline.console.application import Console
from trunkline.dispatch import late_facts
from trunkline.dispatch.account_look import AccountLook
from trunkline.dispatch.inbound import Inbound
from trunkline.dispatch.why import AgentCheck
from trunkline.parts.dialing import Dialing
from trunkline.parts.following import Following
from trunkline.parts.ground import Ground
from trunkline.parts.keeping import Keeping
from trunkline.parts.routing import Routing
from trunkline.parts.way_in import WayIn
from trunkline.store import schedule as store_schedule
from trunkline.telemetry import metrics
from trunkline.telephony.carriers import CARRIERS


class Face:
    def __init__(
        self,
        ground: Ground,
        way_in: WayIn,
        routing: Routing,
        dialing: Dialing,
        following: Following,
        keeping: Keeping,
    ):
        self._ground = ground
        self._way_in = way_in
        self._routing = routing
        http = ground.settings.http
        self._limits = ApiLimits(body=BodyRule(http.max_body_bytes, http.read_timeout_s))
        self._view = PublicView(http.public_base_url, http.trusted_proxies, http.fallback_base_url)
        # Those that bound their bodies themselves, and are asked for by the thousand.
        self._hottest = [*self._webhooks().hot_routes(), *routing.routes()]
        self.api: FastAPI = create_api(
            ApiDeps(
                database=ground.database,
                clock=ground.clock,
                on_leads_accepted=dialing.schedule,
                probes=self._probes(),
                render_metrics=metrics.render,
                limits=self._limits,
                carriers=frozenset(CARRIERS),
                jobs=following.face,
                accounts=way_in.accounts,
                inbox=way_in.inbox,
                free_dead_channels=keeping.channels.free_dead,
                agents=AgentCheck(dialing.agents, routing.slot_rule),
                reminders=ReminderRules(keeping.reminders.horizon_s, ground.settings.reminders.attempts_max),
            ),
            [*self._hottest, *self._hot_routes(following)],
        )
        is_secure = ground.public_base_url.startswith("https:")
        self.console = Console(self.api, ground.secrets, is_secure=is_secure)

    def express(self) -> Express:
        """The API, with a lane of their own for those who cannot wait."""
        http = self._ground.settings.http
        return Express(
            WriteGuard(self.api, http.write_timeout_s),
            self.api.state.api.verifier,
            self._hottest,
            body=self._limits.body,
        )

    def _hot_routes(self, following: Following) -> list[HotRoute]:
        way_in, routing, keys = self._way_in, self._routing, self._way_in.callback_keys
        store = Store(self._ground.database, timeout_s=self._limits.store_timeout_s)
        agents = AgentFace(store, routing.call_keys, following.enrichment)
        # Anybody can knock there, so it has looks of its own, and fewer: nobody delays those of the webhooks.
        look = AccountLook(way_in.accounts.refresh, interval_s=1.0)
        carriers = CarrierFace(routing.allocator, way_in.carriers, keys, self._view, look)
        merchants = MerchantFace(
            store, self._ground.bus, routing.keys, way_in.carriers, keys, self._ground.public_base_url
        )
        return [
            *agents.hot_routes(),
            *carriers.hot_routes(),
            *merchants.hot_routes(),
        ]

    def _webhooks(self) -> Webhooks:
        ground, way_in = self._ground, self._way_in
        return Webhooks(
            WebhookDeps(
                ground.database,
                way_in.inbox,
                way_in.carriers,
                ground.clock,
                way_in.callback_keys,
                self._view,
                Inbound(ground.database, ground.bus, ground.settings.identity),
                find_stream=self._routing.find_stream,
                late_events=way_in.late_events,
                look=way_in.look,
                adopt=partial(late_facts.adopt, ground.database),
                fallback=ground.answer_fallback,
                hold_max_s=ground.settings.router.hold_max_s,
            )
        )

    def _probes(self) -> dict[str, Probe]:
        """By role: the API cannot work without Postgres, the router not without Valkey; the rest is reported."""
        roles = self._ground.settings.roles
        return {
            "postgres": Probe(self._probe_postgres, required="api" in roles),
            "valkey": Probe(self._probe_valkey, required="router" in roles),
        }

    async def _probe_postgres(self) -> float:
        async with self._ground.database.connection() as conn:
            return await store_schedule.clock_s(conn)

    async def _probe_valkey(self) -> float:
        return await server_time_s(self._ground.bus)
