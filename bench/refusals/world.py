"""Two dispatchers and the rest of the platform, a simulated carrier, and before it a gate that lets faults in.

What goes through the gate is asked of the simulator, in the carrier's own words; what a fault holds back is answered
here, or not at all.
"""

import asyncio
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import asyncpg
from aiohttp import web

from bench.agents.processes import Process
from bench.platform import ADMIN_KEY, ROOT, SECRET_KEY
from bench.refusals.judge import Asked
from trunkline.client import TrunklineClient
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator import Behaviour, SimulatedAccount, Simulator, SimulatorConfig

HOST = "127.0.0.1"
# A name that no server knows, by its standard.
NO_HOST = "carrier.invalid"
# Everybody is busy, so a lead is done with its first call.
PEOPLE = Behaviour(answer=0.0, busy=1.0, no_answer=0.0, failed=0.0, ring_s=(1.0, 2.0))
TOKEN = "a-token-of-the-benchmark"
STARTS_PER_S = 50.0
# More than a dialer has room for, so that lines are not what holds calls back.
CHANNELS = 1000
RESELLER = "bench"
HEALTHY = "healthy"
# Every process uses an account that was added or changed after this.
KNOWN_AFTER_S = 6.0
START_TRIES = 4
SETTLES_S = 8.0
_HOP_BY_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-encoding"})


@dataclass
class Trouble:
    """What the gate does to requests that dial with one account, while it is on."""

    is_on: bool = False
    # Status and code of a refusal; None: no answer at all.
    refusal: tuple[int, int] | None = None
    # Only calls from this number, or to this person.
    from_: str | None = None
    to: str | None = None

    def holds(self, from_: str, to: str) -> bool:
        return self.is_on and self.from_ in (None, from_) and self.to in (None, to)


class Gate:
    def __init__(self, carrier_url: str) -> None:
        self._carrier_url = carrier_url
        self.troubles: dict[str, Trouble] = {}
        # Requests to dial, by account.
        self.asked: dict[str, list[Asked]] = defaultdict(list)
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.split("/")
        account = parts[3] if len(parts) > 3 else ""
        if request.method != "POST" or not request.path.endswith("/Calls.json"):
            return await self._forwarded(request)
        form = await request.post()
        to, from_, at_s = str(form.get("To")), str(form.get("From")), time.time()
        try:
            return await self._dialled(request, account, from_, to)
        finally:
            self.asked[account].append(Asked(at_s, to, time.time(), from_))

    async def _dialled(self, request: web.Request, account: str, from_: str, to: str) -> web.StreamResponse:
        trouble = self.troubles.get(account)
        if trouble is None or not trouble.holds(from_, to):
            return await self._forwarded(request)
        if trouble.refusal is None:
            await asyncio.sleep(3600)  # whoever asked gives up, and is told so by nobody
        assert trouble.refusal is not None, "the others are never answered"
        status, code = trouble.refusal
        return web.json_response({"code": code, "message": "refused", "status": status}, status=status)

    async def _forwarded(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None, "it serves"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        url = f"{self._carrier_url}{request.path_qs}"
        async with self._session.request(request.method, url, headers=headers, data=body) as answer:
            answered = {n: v for n, v in answer.headers.items() if n.lower() not in _HOP_BY_HOP}
            return web.Response(status=answer.status, body=await answer.read(), headers=answered)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            await runner.setup()
            port = free_port()
            await web.TCPSite(runner, HOST, port).start()
            try:
                yield port
            finally:
                await runner.cleanup()


@dataclass
class World:
    client: TrunklineClient
    gate: Gate
    # Several faults may look at once.
    database: "asyncpg.Pool[asyncpg.Record]"
    url: str
    gate_port: int
    folder: Path
    sids: Mapping[str, str]
    _phones: int = 0
    _numbers: int = 0
    _accounts: dict[str, str] = field(default_factory=dict)

    async def add(self, name: str) -> str:
        """An account with a number, a pool and a merchant of this name; the number."""
        body = {
            "carrier": "twilio",
            "name": name,
            "credentials": {"account_sid": self.sids[name], "auth_token": TOKEN},
            "base_url": f"http://{HOST}:{self.gate_port}",
            "starts_per_s": STARTS_PER_S,
        }
        self._accounts[name] = (await self._post("/api/v1/accounts", body))["id"]
        await self.client.create_pool(name, name, reseller_id=RESELLER)
        await self.client.create_merchant(
            name, name, reseller_id=RESELLER, default_region="US", default_pool=name, agents="elsewhere"
        )
        return await self.add_number(name)

    async def add_number(self, name: str, starts_per_s: float | None = None) -> str:
        """One more number of the account and the pool of this name."""
        self._numbers += 1
        number = f"+1415{2_000_000 + self._numbers}"
        await self.client.create_number(
            number,
            pool=name,
            carrier="twilio",
            account=name,
            max_channels=CHANNELS,
            starts_per_s=starts_per_s,
        )
        return number

    async def renew(self, name: str) -> None:
        """As an operator who enters the new token."""
        url = f"{self.url}/api/v1/accounts/{self._accounts[name]}"
        body = {"credentials": {"auth_token": TOKEN}}
        async with self._session() as session, session.patch(url, json=body) as answer:
            answer.raise_for_status()

    async def point(self, name: str, host: str) -> None:
        """As if the carrier's name led there now. Nobody has changed the account, so it does not begin anew."""
        url = f"http://{host}:{self.gate_port}"
        await self.database.execute("UPDATE carrier_accounts SET base_url = $2 WHERE name = $1", name, url)
        await asyncio.sleep(KNOWN_AFTER_S)

    def people(self, count: int) -> list[str]:
        """Phones that no lead calls yet."""
        first, self._phones = self._phones, self._phones + count
        return [f"+1212{2_000_000 + first + n}" for n in range(count)]

    async def offer(self, merchant: str, phones: Sequence[str], dues_s: Sequence[float]) -> None:
        """A lead for each phone, due at its time, in seconds since 1970.

        By the API, which schedules them at once: rows that appear in Postgres wait for the next walk of the loader.
        """
        rows = [
            {
                "merchant_id": merchant,
                "request_id": phone,
                "phone": phone,
                "scheduled_at": datetime.fromtimestamp(due_s, UTC).isoformat(),
                "max_attempts": 1,
            }
            for phone, due_s in zip(phones, dues_s, strict=True)
        ]
        report = await self.client.create_leads(rows, atomic=True)
        assert report.created == len(rows), report

    async def _post(self, path: str, body: Mapping[str, object]) -> dict[str, str]:
        async with self._session() as session, session.post(f"{self.url}{path}", json=body) as answer:
            answer.raise_for_status()
            made: dict[str, str] = await answer.json()
            return made

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(headers={"Authorization": f"Bearer {ADMIN_KEY}"})


@asynccontextmanager
async def open_world(folder: Path, accounts: list[str]) -> AsyncIterator[World]:
    """Everything runs when this returns; nothing is left when it ends."""
    sids = {name: f"AC{no:032x}" for no, name in enumerate(accounts, start=1)}
    simulated = tuple(
        SimulatedAccount(sid=sid, auth_token=TOKEN, calls_per_s=10_000.0) for sid in sids.values()
    )
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(Engines(folder / "data"))
        await migrate(engines.database_url)
        config = SimulatorConfig(accounts=simulated, time_scale=0.2, behaviour=PEOPLE)
        simulator = await stack.enter_async_context(Simulator(config))
        gate = Gate(simulator.base_url)
        gate_port = await stack.enter_async_context(gate.serving())
        port = free_port()
        environ = _environ(engines, f"http://{HOST}:{port}")
        roles = {
            "platform": ("api,mailbox,jobs,router,control", port),
            "dispatcher-1": ("dispatcher", free_port()),
            "dispatcher-2": ("dispatcher", free_port()),
        }
        processes = [_process(name, *place, environ, folder) for name, place in roles.items()]
        stack.push_async_callback(_end, processes)
        for process in processes:
            await _started(process)
        client = await stack.enter_async_context(TrunklineClient(f"http://{HOST}:{port}", ADMIN_KEY))
        database = await asyncpg.create_pool(engines.database_url, min_size=1, max_size=8)
        stack.push_async_callback(database.close)
        await client.create_reseller(RESELLER, "Benchmark")
        yield World(client, gate, database, f"http://{HOST}:{port}", gate_port, folder, sids)


def _environ(engines: Engines, url: str) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "DATABASE_URL": engines.database_url,
        "REDIS_URL": engines.redis_url,
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "PUBLIC_BASE_URL": url,
        "METRICS_PORT": "0",
    }


def _process(name: str, roles: str, port: int, environ: Mapping[str, str], folder: Path) -> Process:
    trunkline = shutil.which("trunkline", path=str(Path(sys.executable).parent)) or "trunkline"
    own = {"HTTP_PORT": str(port), "POD_NAME": name}
    command = [trunkline, "serve", "--roles", roles]
    return Process(name, command, {**environ, **own}, folder / f"{name}.log", f"http://{HOST}:{port}/ready")


async def _started(process: Process) -> None:
    """One after the other, and again if it gave up: on a busy machine an engine may not answer in time."""
    for left in reversed(range(START_TRIES)):
        process.start()
        try:
            await process.ready()
        except RuntimeError:
            if not left:
                raise
        else:
            await asyncio.sleep(SETTLES_S)
            if process.is_running:
                return
    raise RuntimeError(f"{process.name} does not stay: see {process.log}")


async def _end(processes: list[Process]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        await process.ended()
