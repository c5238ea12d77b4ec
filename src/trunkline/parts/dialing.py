"""Due leads meet free channels and are dialled."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from trunkline.bus import epoch, schedule
from trunkline.dispatch.agents import AgentRule, NoAgentsNeeded
from trunkline.dispatch.configuration import DialStops
from trunkline.dispatch.dialer import Dialer, DialerLimits
from trunkline.dispatch.fallback import Fallback
from trunkline.dispatch.gates_windows import reopen
from trunkline.dispatch.intent import is_cancelled
from trunkline.dispatch.intent_batch import Rules
from trunkline.dispatch.overdialling import Overdialling
from trunkline.dispatch.policies import Policies
from trunkline.dispatch.prechecks import Prechecks
from trunkline.dispatch.results import ResultWriter
from trunkline.dispatch.sender import Callbacks, Sender, SenderLimits
from trunkline.dispatch.settlement import Settler
from trunkline.jobs.platform.outgoing import Outgoing
from trunkline.leads.retries import Retries
from trunkline.loops.base import Loop
from trunkline.loops.prechecks import PrecheckWalk
from trunkline.parts.ground import Ground
from trunkline.parts.routing import Routing
from trunkline.parts.steering import Steering
from trunkline.parts.way_in import WayIn
from trunkline.settings import Settings
from trunkline.store import schedule as store_schedule
from trunkline.telemetry import metrics
from trunkline.telephony.carriers import STREAMLESS


class Dialing:
    def __init__(self, ground: Ground, way_in: WayIn, routing: Routing, steering: Steering):
        settings, database, bus = ground.settings, ground.database, ground.bus
        self._database = database
        self._bus = bus
        policies = Policies(usual_retries=Retries(base_s=settings.reminders.retry_base_s))
        self.settler = Settler(policies, routing.free)
        self.agents = AgentRule(settings.router.agents == "elsewhere", STREAMLESS)
        self.to_tenants = Outgoing(allow_insecure=settings.jobs.allow_insecure_webhooks)
        rules = Rules(
            policies=policies,
            stopped=DialStops(steering.controls, steering.rollout),
            mark=lambda: steering.guardian.mark,
            account_pace=way_in.carriers.starts_per_s,
            agents=self.agents,
            overdialling=Overdialling(routing.slot_rule),
        )
        prechecks = Prechecks(database, self.to_tenants, rules)
        self.precheck_walk = PrecheckWalk(database, bus, steering.controls, policies, prechecks)
        sender = Sender(
            ground.clock,
            way_in.carriers,
            Callbacks(ground.public_base_url, way_in.callback_keys, ground.fallback_base_url),
            ResultWriter(database, bus, self.settler),
            _sender_limits(settings),
            killed=steering.controls.killed,
            unwanted=partial(is_cancelled, database),
        )
        self.dialer = Dialer(
            database,
            bus,
            ground.clock,
            sender,
            settings.identity,
            rules,
            partial(reopen, database, rules),
            _dialer_limits(settings),
            prechecks.ask,
            Fallback(steering.rollout.includes, settings.identity),
            NoAgentsNeeded() if self.agents.are_elsewhere else routing.slots,
        )
        self.loops: list[Loop] = [self.dialer]

    async def schedule(self, lead_ids: Sequence[UUID]) -> None:
        """A courtesy: the leads are safe in Postgres, and the loader would bring them within seconds."""
        metrics.LEADS_ACCEPTED.inc(len(lead_ids))
        outcome = "failed"
        try:
            await epoch.ensure(self._bus)
            async with self._database.connection() as conn:
                places = await store_schedule.places(conn, lead_ids)
            await schedule.add(self._bus, places.values())
            outcome = "ok"
        finally:
            metrics.SCHEDULE_ADDS.labels(outcome).inc()


def _sender_limits(settings: Settings) -> SenderLimits:
    return SenderLimits(
        late_max_s=settings.dispatch.send_late_max_s,
        ring_timeout_s=int(settings.carrier.ring_timeout_s),
        time_limit_s=int(settings.carrier.time_limit_s),
        detects_machines=settings.carrier.machine_detection,
        records=settings.carrier.record_calls,
    )


def _dialer_limits(settings: Settings) -> DialerLimits:
    return DialerLimits(
        batch_max=settings.dispatch.batch_max,
        wait_max_s=settings.dispatch.idle_wait_s,
        ahead_s=settings.dispatch.ahead_s,
        fallback_starts_per_s=settings.dispatch.fallback_starts_per_s,
    )
