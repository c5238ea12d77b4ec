"""Two processes of each role behind a real nginx, on engines of their own, with a carrier and pods as processes.

    async with open_installation(folder, pods=40) as place:
        place.roles["api-1"].kill()

A process of the platform that ends is started again, as whoever runs an installation would do.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from bench._calls import load
from bench.agents import scenario
from bench.agents.fleet import Fleet
from bench.agents.processes import Process
from bench.agents.records import Attempt, Lead
from bench.platform import ADMIN_KEY, SECRET_KEY, answered_of, dials_of
from tests.support.api import deployed_nginx
from tests.support.embedded.machines import Machines, open_engines
from trunkline.client import TrunklineClient
from trunkline.embedded.ports import free_port
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.answered_calls import AnsweredCall
from trunkline.telephony.simulator.config import ACCOUNTS
from trunkline.telephony.simulator.ledger import Dial

ROOT = Path(__file__).parent.parent.parent
ROLES = ("api", "dispatcher", "mailbox", "jobs", "router", "control")
EACH = 2
APP_ID = "bench-flow"
# A process that ended is back after this, as with a cluster that sees it end and starts another.
BACK_AFTER_S = 3.0
# Within this every process uses an account that was added, and the router's tiers.
KNOWN_AFTER_S = 6.0
CREDENTIALS: Mapping[str, Mapping[str, str]] = {
    "twilio": {"account_sid": ACCOUNTS[0].sid, "auth_token": ACCOUNTS[0].auth_token},
    "plivo": {"auth_id": ACCOUNTS[1].sid, "auth_token": ACCOUNTS[1].auth_token},
    "exotel": {
        "sid": ACCOUNTS[2].sid,
        "api_key": ACCOUNTS[2].api_key,
        "api_token": ACCOUNTS[2].auth_token,
        "app_id": APP_ID,
    },
}


@dataclass
class Installation:
    engines: Machines
    roles: dict[str, Process]
    fleet: Fleet
    client: TrunklineClient
    url: str
    carrier_url: str
    bench_url: str
    folder: Path
    # What an operator would enter at each carrier.
    entered: dict[str, dict[str, str]] = field(default_factory=dict)

    async def leader(self, name: str = "router") -> str:
        """Which process leads, by the lease in Postgres."""
        async with self.database() as conn:
            holder = str(await conn.fetchval("SELECT holder FROM leaders WHERE name = $1", name))
        return holder.partition("/")[0]  # what follows is the process' own number

    @asynccontextmanager
    async def database(self) -> "AsyncIterator[asyncpg.Connection[Any]]":
        conn = await asyncpg.connect(self.engines.database_url)
        try:
            yield conn
        finally:
            await conn.close()

    async def dials(self, after: int = 0) -> list[Dial]:
        return await dials_of(self.carrier_url, after)

    async def ring(self, no: int) -> None:
        carrier = scenario.CALLERS_BY[no % len(scenario.CALLERS_BY)]
        number = next(e164 for e164, at in scenario.INBOUND_NUMBERS.items() if at == carrier)
        urls = self.entered[carrier]
        order = {
            "carrier": carrier,
            "to": number,
            "from_": scenario.caller(no),
            "inbound_url": urls["inbound"],
            "status_url": urls["status"],
        }
        url = f"{self.bench_url}/ring"
        async with aiohttp.ClientSession() as session, session.post(url, json=order) as answer:
            answer.raise_for_status()

    async def answered(self) -> list[AnsweredCall]:
        return await answered_of(self.carrier_url)

    async def offer(self, limit_s: float) -> None:
        """Leads due one after the other from now on."""
        async with self.database() as conn:
            await load(conn, scenario.leads(time.time() + 1.0, limit_s))

    async def stop_dialling(self) -> None:
        """The kill switch: what rings or talks goes on."""
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as session:
            url = f"{self.url}/api/v1/controls/kill-switch"
            async with session.put(url, json={"reason": "the run is over"}) as answer:
                answer.raise_for_status()

    async def recorded(self) -> tuple[list[Attempt], list[Lead]]:
        async with self.database() as conn:
            attempts = await conn.fetch(
                "SELECT a.id::text, a.lead_id::text, a.state, a.answered_at IS NOT NULL OR a.end_reason = 'completed',"
                " a.end_reason, a.agent,"
                " jsonb_strip_nulls(to_jsonb(a) || jsonb_build_object('allocation', to_jsonb(l)))::text"
                " FROM attempts AS a LEFT JOIN allocations AS l ON l.id = a.id WHERE a.direction = 'outbound'"
            )
            leads = await conn.fetch(
                "SELECT id::text, merchant_id, phone, status, outcome, outcome_reason FROM leads"
            )
        return [Attempt(*row) for row in attempts], [Lead(*row) for row in leads]

    async def unsettled(self) -> int:
        """Attempts whose end is not written yet, and mailboxes with something to do."""
        async with self.database() as conn:
            return int(
                await conn.fetchval(
                    "SELECT (SELECT count(*) FROM attempts"
                    " WHERE state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered'))"
                    " + (SELECT count(*) FROM mailboxes WHERE processing_status <> 'idle')"
                )
            )

    async def tiers(self) -> dict[str, str]:
        async with self.database() as conn:
            rows = await conn.fetch("SELECT name, tier FROM pods")
        return {row["name"]: row["tier"] for row in rows}

    async def supervise(self) -> None:
        """Start again what ended, for as long as this runs."""
        while True:
            for process in self.roles.values():
                if not process.is_running and not process.is_kept_down:
                    await asyncio.sleep(BACK_AFTER_S)
                    process.start()
            await asyncio.sleep(0.2)


@asynccontextmanager
async def open_installation(
    folder: Path,
    *,
    pods: int,
    roles: tuple[str, ...] = ROLES,
    each: int = EACH,
    ring_s: tuple[float, float] = scenario.RING_S,
) -> AsyncIterator[Installation]:
    """Everything runs when this returns; nothing is left when it ends."""
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(open_engines(folder))
        await migrate(engines.database_url)
        carrier_url, bench_url = await _carrier(stack, folder, ring_s)
        ports = {f"{role}-{n}": free_port() for role in roles for n in range(1, each + 1)}
        address = await stack.enter_async_context(
            deployed_nginx.serving(_urls(ports, "api"), _urls(ports, "router"), ADMIN_KEY, folder / "nginx")
        )
        environ = _environ(engines, address, pods)
        processes = {name: _role(name, port, environ, folder) for name, port in ports.items()}
        stack.push_async_callback(_end, processes)
        client = await stack.enter_async_context(TrunklineClient(f"http://{address}", ADMIN_KEY))
        fleet = Fleet(f"http://{address}", folder, environ)
        stack.push_async_callback(fleet.stop)
        place = Installation(
            engines, processes, fleet, client, f"http://{address}", carrier_url, bench_url, folder
        )
        for process in processes.values():
            process.start()
        await asyncio.gather(*(process.ready() for process in processes.values()))
        await _prepare(place)
        await fleet.start(pods)
        await asyncio.sleep(KNOWN_AFTER_S)
        supervisor = asyncio.create_task(place.supervise(), name="supervisor")
        stack.push_async_callback(_cancelled, supervisor)
        yield place


def _urls(ports: Mapping[str, int], role: str) -> list[str]:
    return [f"http://127.0.0.1:{port}" for name, port in ports.items() if name.startswith(role)]


def _environ(engines: Machines, address: str, pods: int) -> dict[str, str]:
    """Everything as by default, but for where things are."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "DATABASE_URL": engines.database_url,
        "REDIS_URL": engines.redis_url,
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "PUBLIC_BASE_URL": f"http://{address}",
        "VOICE_AGENT_BASE_URL": f"ws://{address}",
        "TIER_CONFIG": scenario.tier_config(pods),
        "METRICS_PORT": "0",
    }


def _role(name: str, port: int, environ: Mapping[str, str], folder: Path) -> Process:
    trunkline = shutil.which("trunkline", path=str(Path(sys.executable).parent)) or "trunkline"
    own = {"HTTP_PORT": str(port), "POD_NAME": name}
    command = [trunkline, "serve", "--roles", name.rpartition("-")[0]]
    return Process(
        name, command, {**environ, **own}, folder / f"{name}.log", f"http://127.0.0.1:{port}/ready"
    )


async def _carrier(stack: AsyncExitStack, folder: Path, ring_s: tuple[float, float]) -> tuple[str, str]:
    carrier, bench = free_port(), free_port()
    process = Process(
        "carrier",
        [sys.executable, "-m", "bench.agents.carrier", str(carrier), str(bench), *map(str, ring_s)],
        {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        folder / "carrier.log",
        f"http://127.0.0.1:{bench}/ready",
    )
    process.start()
    stack.push_async_callback(_end, {"carrier": process})
    await process.ready()
    return f"http://127.0.0.1:{carrier}", f"http://127.0.0.1:{bench}"


async def _prepare(place: Installation) -> None:
    """Accounts, merchants with their tiers, numbers: by the API, as an operator does it."""
    client, pool = place.client, scenario.POOL
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with aiohttp.ClientSession(place.url, headers=headers, raise_for_status=True) as session:
        for carrier, credentials in CREDENTIALS.items():
            stored = {
                "carrier": carrier,
                "name": "default",
                "credentials": credentials,
                "base_url": place.carrier_url,
                "starts_per_s": 1000,
            }
            async with session.post("/api/v1/accounts", json=stored) as answer:
                account = await answer.json()
            async with session.get(f"/api/v1/accounts/{account['id']}/urls") as answer:
                place.entered[carrier] = await answer.json()
        flows = {APP_ID: place.entered["exotel"]["answer"]}
        await _put(session, f"{place.bench_url}/flows", flows)
        await client.create_reseller(scenario.RESELLER, "Benchmark")
        for name in (pool, "inbound"):
            await client.create_pool(name, name, reseller_id=scenario.RESELLER)
        for merchant in (scenario.GOLD, scenario.STANDARD):
            await client.create_merchant(
                merchant, merchant, reseller_id=scenario.RESELLER, default_region="US", default_pool=pool
            )
        await _put(session, f"/api/v1/router/merchants/{scenario.GOLD}", {"tier": "gold"})
        for e164, (carrier, channels) in scenario.NUMBERS.items():
            await client.create_number(e164, pool=pool, carrier=carrier, max_channels=channels)
        for e164, carrier in scenario.INBOUND_NUMBERS.items():
            number = await client.create_number(
                e164, pool="inbound", carrier=carrier, max_channels=scenario.INBOUND_CHANNELS
            )
            policy = {"admits": "everybody", "merchant_id": scenario.STANDARD}
            await _put(session, f"/api/v1/numbers/{number.id}/inbound", policy)


async def _put(session: aiohttp.ClientSession, url: str, body: Mapping[str, str]) -> None:
    async with session.put(url, json=body):
        pass


async def _end(processes: Mapping[str, Process]) -> None:
    for process in processes.values():
        process.kill()
    for process in processes.values():
        await process.ended()


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
