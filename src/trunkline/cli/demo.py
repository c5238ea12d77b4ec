"""The demo: the real platform and real engines, a simulated carrier on the wire, simulated pods. Two merchants of one
reseller share a pool of numbers.

Its report at the end is from the carrier's ledger and the pods' own records.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rich.live import Live

from trunkline.agent.simulated import SimulatedPods
from trunkline.app import Platform
from trunkline.cli.console import out
from trunkline.cli.demo_display import DemoVerdict, Lateness, Snapshot, live_view, summary
from trunkline.cli.running import embedded_platform
from trunkline.client import ApiError, TrunklineClient
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

RESELLER = "demo"
MERCHANTS = ("demo-clinic", "demo-shop")
POOL = "demo"
# Number and its channels: 30 in all, enough for about 25 simulated calls a second.
NUMBERS = {"+14155550100": 5, "+14155550101": 10, "+14155550102": 15}
LEADS_PER_S = 25.0
AREA_CODES = (212, 303, 404, 512, 617, 702, 808, 916)
# Time to load the leads before the first is due, so that none is late from the start.
HEAD_START_S = 1.0


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
        link = f"{demo.platform.base_url}{demo.platform.http.console.link_for(demo.key)}"
        out.print(f"Watch it in the console (the link signs in once): {link}", soft_wrap=True)
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
        self.key = key
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

    async def call_everybody(self, stop: asyncio.Event) -> bool:
        """Load the leads, watch until all are finished; False if that did not happen in time."""
        async with TrunklineClient(self.platform.base_url, self.key) as client:
            await prepare(client)
            uploads = asyncio.create_task(self._upload(client))
            with Live(console=out, refresh_per_second=8, transient=not out.is_terminal) as display:
                done = await self._watch(display, uploads, stop)
            await uploads
        return done

    async def _upload(self, client: TrunklineClient) -> None:
        places = asyncio.Semaphore(CONCURRENT_UPLOADS)

        async def upload(lead: dict[str, Any]) -> None:
            async with places:
                await client.create_lead(**lead)

        async with asyncio.TaskGroup() as group:
            for lead in people(self._run, self.plan.leads, self.plan.seed):
                group.create_task(upload(lead))

    async def _watch(self, display: Live, uploads: "asyncio.Task[None]", stop: asyncio.Event) -> bool:
        deadline_s = self._started_s + PATIENCE_S + 2 * self.plan.leads / LEADS_PER_S
        while time.monotonic() < deadline_s and not stop.is_set():
            snapshot = await self._snapshot()
            display.update(live_view(snapshot))
            if uploads.done() and snapshot.progress.finished == self.plan.leads:
                return True
            await asyncio.sleep(REFRESH_S)
        return False

    async def _snapshot(self) -> Snapshot:
        async with self.platform.database.connection() as conn:
            progress = await overview.run_progress(conn, MERCHANTS, self._run)
            channels = await overview.channels(conn)
            self._due = await overview.run_due(conn, MERCHANTS, self._run)
        shown = [use for use in channels if use.e164 in NUMBERS]
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
            numbers_over=len(ledger.over_capacity(NUMBERS)),
            pods_shared=len(self.pods.records().overlaps),
            without_agent=len(without_agent(ledger.answered)),
            lateness=snapshot.lateness,
            took_s=time.monotonic() - self._started_s,
        )


async def prepare(client: TrunklineClient) -> None:
    """Create what is missing: the demo may run again on the same folder."""
    await _once(client.create_reseller(RESELLER, "Demo"))
    await _once(client.create_pool(POOL, "Demo numbers", reseller_id=RESELLER))
    for merchant_id in MERCHANTS:
        await _once(
            client.create_merchant(
                merchant_id, merchant_id, reseller_id=RESELLER, default_region="US", default_pool=POOL
            )
        )
    for e164, max_channels in NUMBERS.items():
        await _once(client.create_number(e164, pool=POOL, carrier="twilio", max_channels=max_channels))


async def _once(creation: Awaitable[object]) -> None:
    try:
        await creation
    except ApiError as error:
        if error.status != 409:
            raise


def people(run: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Leads with due times spread over the run, each to another person."""
    dice = random.Random(seed)  # noqa: S311 (a demo, not a secret)
    first = datetime.now(UTC) + timedelta(seconds=HEAD_START_S + count / 400)
    for n in range(count):
        yield {
            "merchant_id": dice.choice(MERCHANTS),
            "request_id": f"{run}-{n}",
            "phone": f"+1{dice.choice(AREA_CODES)}{200 + n // 10_000}{n % 10_000:04d}",
            "scheduled_at": first + timedelta(seconds=dice.random() * count / LEADS_PER_S),
        }
