"""The demo: the real platform and real engines, a simulated carrier on the wire, simulated pods. Two merchants of one
reseller share a pool of numbers.

Its report at the end is from the carrier's ledger and the pods' own records.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trunkline.agent.simulated import SimulatedPods
from trunkline.app import Platform
from trunkline.cli.console import out
from trunkline.cli.running import embedded_platform
from trunkline.client import ApiError, TrunklineClient
from trunkline.settings import Settings
from trunkline.store import overview
from trunkline.store.overview import ChannelUse, RunProgress
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
        out.print(f"API {platform.base_url}/docs · carrier's ledger {carrier.base_url}/ledger/summary")
        link = f"{platform.base_url}{platform.http.console.link_for(key)}"
        out.print(f"Watch it in the console (the link signs in once): {link}", soft_wrap=True)
        demo = Demo(plan, platform, carrier, pods, key)
        finished = await demo.call_everybody(stop)
        verdict = await demo.verdict()
        out.print(verdict.summary())
        if plan.keep_running and not stop.is_set():
            out.print(
                f"The platform goes on running at {platform.base_url}/console. Ctrl-C ends it.\n"
                f"To sign in again, `trunkline console` prints a new link; the key is in {settings.data_dir}/admin.key."
            )
            await stop.wait()
        return finished and verdict.is_clean


class Lateness(NamedTuple):
    """From the due moment of a lead to the carrier's receipt of its request."""

    p50_s: float
    p99_s: float


@dataclass
class Demo:
    plan: DemoPlan
    platform: Platform
    carrier: Simulator
    pods: SimulatedPods
    key: str
    run: str = field(default_factory=lambda: f"demo-{datetime.now(UTC):%Y%m%d%H%M%S}")
    started_s: float = field(default_factory=time.monotonic)

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
            for lead in people(self.run, self.plan.leads, self.plan.seed):
                group.create_task(upload(lead))

    async def _watch(self, display: Live, uploads: "asyncio.Task[None]", stop: asyncio.Event) -> bool:
        deadline_s = self.started_s + PATIENCE_S + 2 * self.plan.leads / LEADS_PER_S
        while time.monotonic() < deadline_s and not stop.is_set():
            progress, lateness, channels = await self._read()
            display.update(live_view(self.plan, progress, self.carrier.ledger.live(), lateness, channels))
            if uploads.done() and progress.finished == self.plan.leads:
                return True
            await asyncio.sleep(REFRESH_S)
        return False

    async def _read(self) -> tuple[RunProgress, Lateness | None, list[ChannelUse]]:
        """The lateness is measured at the carrier, when a request arrives."""
        async with self.platform.database.connection() as conn:
            progress = await overview.run_progress(conn, MERCHANTS, self.run)
            channels = await overview.channels(conn)
            due = await overview.run_due(conn, MERCHANTS, self.run)
        late_s = sorted(
            dial.requested_at - due[attempt].timestamp()
            for dial in self.carrier.ledger.dials
            if dial.attempt and (attempt := UUID(dial.attempt)) in due
        )
        lateness = Lateness(late_s[len(late_s) // 2], late_s[int(0.99 * len(late_s))]) if late_s else None
        return progress, lateness, [use for use in channels if use.e164 in NUMBERS]

    async def verdict(self) -> "DemoVerdict":
        await self.carrier.idle()
        progress, lateness, _ = await self._read()
        ledger = self.carrier.ledger
        return DemoVerdict(
            leads=self.plan.leads,
            finished=progress.finished,
            outcomes=progress.outcomes,
            dials=len(ledger.dials),
            mistakes={
                "double dials": len(ledger.double_dials()),
                "numbers over their channels": len(ledger.over_capacity(NUMBERS)),
                "pods with two calls": len(self.pods.records().overlaps),
                "answered without an agent": len(without_agent(ledger.answered)),
            },
            lateness=lateness,
            took_s=time.monotonic() - self.started_s,
        )


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """The figures of the carrier's ledger and the pods' records, beside the platform's own."""

    leads: int
    finished: int
    outcomes: dict[str, int]
    dials: int
    # What must not happen, and how often it did.
    mistakes: dict[str, int]
    lateness: Lateness | None
    took_s: float

    @property
    def is_clean(self) -> bool:
        return self.finished == self.leads and not any(self.mistakes.values())

    def summary(self) -> RenderableType:
        table = Table(title="Summary", title_justify="left", show_header=False)
        outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items()))
        table.add_row("leads finished", f"{self.finished} of {self.leads} in {self.took_s:.1f} s")
        table.add_row("outcomes", outcomes or "none")
        table.add_row("dials in the carrier's ledger", str(self.dials))
        for mistake, count in self.mistakes.items():
            table.add_row(mistake, Text(str(count), style="green" if count == 0 else "bold red"))
        if late := self.lateness:
            table.add_row("lateness p50 / p99", f"{late.p50_s * 1000:.0f} / {late.p99_s * 1000:.0f} ms")
        return table


def live_view(
    plan: DemoPlan, progress: RunProgress, live: int, late: Lateness | None, channels: Sequence[ChannelUse]
) -> RenderableType:
    figures = Table.grid(padding=(0, 3))
    figures.add_row("placed", "live", "finished", "lateness p50", "lateness p99", style="dim")
    figures.add_row(
        str(progress.placed),
        str(live),
        f"{progress.finished} / {plan.leads}",
        f"{late.p50_s * 1000:.0f} ms" if late else "–",
        f"{late.p99_s * 1000:.0f} ms" if late else "–",
    )
    bar = Table.grid()
    bar.add_row(ProgressBar(total=plan.leads, completed=progress.finished, width=60))
    uses = Table.grid(padding=(0, 2))
    for use in channels:
        free = Text("○" * max(0, use.max_channels - use.held), style="dim")
        uses.add_row(use.e164, Text("●" * use.held, style="green") + free, f"{use.held}/{use.max_channels}")
    return Group(figures, bar, Text(), Text("channels of each number", style="dim"), uses)


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
