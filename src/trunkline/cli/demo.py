"""The demo: the real platform and real engines, a simulated carrier on the wire, simulated pods.

Its report at the end is from the carrier's ledger and the pods' own records.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from rich.live import Live

from trunkline.agent.simulated import SimulatedPods
from trunkline.app import Platform
from trunkline.cli import demo_world
from trunkline.cli.console import out
from trunkline.cli.demo_display import DemoVerdict, Lateness, Snapshot, live_view, summary
from trunkline.cli.running import embedded_platform
from trunkline.client import TrunklineClient
from trunkline.settings import Settings
from trunkline.store import overview
from trunkline.telemetry import configure_logging
from trunkline.telephony.simulator import Simulator, SimulatorConfig
from trunkline.telephony.simulator.answered_calls import without_agent

# Simulated calls of 20 to 80 s last about one second.
TIME_SCALE = 0.02
PODS = 40
# A few pods in the gold tier; the others are one for each channel, and a few that are between two calls.
TIERS = '{"gold": {"type": "exclusive", "target": 4}, "standard": {"type": "exclusive", "target": 36}}'
CONCURRENT_UPLOADS = 16
REFRESH_S = 0.25
# How much longer than the pace of its leads a run may take.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    leads: int
    seed: int
    keep_running: bool


async def run_demo(settings: Settings, plan: DemoPlan, stop: asyncio.Event) -> bool:
    """True if every lead finished and the ledger shows no double dial and no call over capacity."""
    out.print(f"Starting Postgres, Valkey, the platform, a simulated carrier and {PODS} simulated pods …")
    async with AsyncExitStack() as stack:
        demo = await Demo.start(stack, settings, plan)
        out.print(
            f"API {demo.platform.base_url}/docs · carrier's ledger {demo.carrier.base_url}/ledger/summary"
        )
        out.print(f"Watch it in the console (the link signs in once): {demo.console_link()}", soft_wrap=True)
        finished = await demo.call_everybody(stop)
        verdict = await demo.verdict()
        out.print(summary(verdict))
        if plan.keep_running and not stop.is_set():
            out.print(
                f"The platform goes on running at {demo.platform.base_url}/console. Ctrl-C ends it.\n"
                f"To sign in again, `trunkline console` prints a new link; the key is in {settings.data_dir}/admin.key."
            )
            await stop.wait()
        return finished and verdict.is_clean


class Demo:
    def __init__(self, plan: DemoPlan, platform: Platform, carrier: Simulator, pods: SimulatedPods, key: str):
        self.plan = plan
        self.platform = platform
        self.carrier = carrier
        self.pods = pods
        self._key = key
        self._run = f"demo-{datetime.now(UTC):%Y%m%d%H%M%S}"
        self._started_s = time.monotonic()
        self._due: dict[UUID, datetime] = {}

    @classmethod
    async def start(cls, stack: AsyncExitStack, settings: Settings, plan: DemoPlan) -> "Demo":
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        log_file = stack.enter_context((settings.data_dir / "demo.log").open("a", encoding="utf-8"))
        configure_logging(settings, log_file)
        carrier = await stack.enter_async_context(
            Simulator(SimulatorConfig(seed=plan.seed, time_scale=TIME_SCALE))
        )
        account = carrier.config.accounts[0]
        platform, key = await stack.enter_async_context(
            embedded_platform(
                settings,
                TWILIO_BASE_URL=carrier.base_url,
                TWILIO_ACCOUNT_SID=account.sid,
                TWILIO_AUTH_TOKEN=account.auth_token,
                TWILIO_CALLS_PER_SECOND=account.calls_per_s,
                TIER_CONFIG=TIERS,
            )
        )
        pods = await stack.enter_async_context(SimulatedPods(PODS, platform.base_url, key))
        return cls(plan, platform, carrier, pods, key)

    def console_link(self) -> str:
        return f"{self.platform.base_url}{self.platform.http.console.link_for(self._key)}"

    async def call_everybody(self, stop: asyncio.Event) -> bool:
        """Load the leads, watch until all are finished; False if that did not happen in time."""
        async with TrunklineClient(self.platform.base_url, self._key) as client:
            await demo_world.prepare(client)
            uploads = asyncio.create_task(self._upload(client))
            with Live(console=out, refresh_per_second=8, transient=not out.is_terminal) as display:
                done = await self._watch(display, uploads, stop)
            await uploads
        return done

    async def _upload(self, client: TrunklineClient) -> None:
        places = asyncio.Semaphore(CONCURRENT_UPLOADS)

        async def upload(lead: demo_world.DemoLead) -> None:
            async with places:
                await client.create_lead(
                    merchant_id=lead.merchant_id,
                    phone=lead.phone,
                    request_id=lead.request_id,
                    scheduled_at=lead.scheduled_at,
                )

        async with asyncio.TaskGroup() as group:
            for lead in demo_world.people(self._run, self.plan.leads, self.plan.seed):
                group.create_task(upload(lead))

    async def _watch(self, display: Live, uploads: "asyncio.Task[None]", stop: asyncio.Event) -> bool:
        deadline_s = self._started_s + PATIENCE_S + 2 * self.plan.leads / demo_world.LEADS_PER_S
        while time.monotonic() < deadline_s and not stop.is_set():
            snapshot = await self._snapshot()
            display.update(live_view(snapshot))
            if uploads.done() and snapshot.progress.finished == self.plan.leads:
                return True
            await asyncio.sleep(REFRESH_S)
        return False

    async def _snapshot(self) -> Snapshot:
        async with self.platform.database.connection() as conn:
            progress = await overview.run_progress(conn, demo_world.MERCHANTS, self._run)
            channels = await overview.channels(conn)
            self._due = await overview.run_due(conn, demo_world.MERCHANTS, self._run)
        shown = [use for use in channels if use.e164 in demo_world.NUMBERS]
        return Snapshot(progress, shown, self._lateness(), self.carrier.ledger.live(), self.plan.leads)

    def _lateness(self) -> Lateness | None:
        """Measured at the carrier: from the lead's due time to the arrival of the request."""
        return Lateness.of(
            [
                dial.requested_at - self._due[attempt].timestamp()
                for dial in self.carrier.ledger.dials
                if dial.attempt and (attempt := UUID(dial.attempt)) in self._due
            ]
        )

    async def verdict(self) -> DemoVerdict:
        await self.carrier.idle()
        snapshot = await self._snapshot()
        ledger = self.carrier.ledger
        return DemoVerdict(
            leads=self.plan.leads,
            finished=snapshot.progress.finished,
            outcomes=snapshot.progress.outcomes,
            dials=len(ledger.dials),
            double_dials=len(ledger.double_dials()),
            numbers_over=len(ledger.over_capacity(demo_world.NUMBERS)),
            pods_shared=len(self.pods.records().overlaps),
            without_agent=len(without_agent(ledger.answered)),
            lateness=snapshot.lateness,
            took_s=time.monotonic() - self._started_s,
        )
