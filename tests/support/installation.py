"""A whole installation of several processes, with the carrier, the pods and the observer in the test's own process.

    async with open_installation(fork_server, database_url, redis_url, folder) as place:
        async with place.load() as ids:
            await place.dialled(20)
            place.kill("dialer-1")
        await keeps_its_promises(place, ids)

The second dialer reaches Postgres and Valkey through proxies, so that it alone can be cut off. A process that ends is
started again, as whoever runs an installation would do.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from tests.support.crashpoints import crash_environment
from tests.support.faults.proxy import TcpProxy
from tests.support.fork_server import ForkServer, RoleProcess
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, ALL_STANDARD, SECRET_KEY
from trunkline.agent.simulated import SimulatedPods
from trunkline.bus.connection import Bus
from trunkline.bus.connection import connect as connect_bus
from trunkline.bus.keys import Keys
from trunkline.client import TrunklineClient
from trunkline.embedded.ports import free_port
from trunkline.model import new_id
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.database import connect as connect_database
from trunkline.telephony.simulator import Simulator, SimulatorConfig
from trunkline.telephony.simulator.behaviour import Behaviour
from trunkline.telephony.simulator.faults import Faults

# One process per part that can die by itself; what is rarely alone shares one.
ROLES: Mapping[str, str] = {
    "face": "api,router",
    "dialer-1": "dispatcher",
    "dialer-2": "dispatcher",
    "folder": "mailbox,jobs",
    "control": "control",
}
PROXIED = "dialer-2"
# Simulated calls last a quarter of a second on average.
TIME_SCALE = 0.005
BEHAVIOUR = Behaviour(answer=0.7, busy=0.1, no_answer=0.1, failed=0.1, ring_s=(2, 8), talk_s=(20, 60))
# Numbers and their lines. The last is nobody's: its lines let the account have doubts without being held back.
NUMBERS: Mapping[str, int] = {"+14155550101": 6, "+14155550102": 6}
SPARE = "+14155550199"
MERCHANTS = ("m", "n")
# What a test sees of a Postgres that somebody is restarting.
AWAY: tuple[type[BaseException], ...] = (*UNAVAILABLE, asyncpg.PostgresError)

_SETUP = """
CREATE TABLE seen_moves (
    attempt_id uuid, lead_id uuid, before text, after text, at timestamptz DEFAULT clock_timestamp()
);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen_moves (attempt_id, lead_id, before, after)
    VALUES (NEW.id, NEW.lead_id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END, NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER note_new AFTER INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION note_move();
CREATE TRIGGER note_move AFTER UPDATE ON attempts FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION note_move();
CREATE TABLE seen_statuses (lead_id uuid, before text, after text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION note_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen_statuses (lead_id, before, after) VALUES (NEW.id, OLD.status, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER note_status AFTER UPDATE ON leads FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_status();
-- A merchant whose people find no agent dials one at a time at once, not after five minutes: tests are in a hurry.
CREATE FUNCTION stop_no_longer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.stops_until := least(NEW.stops_until, clock_timestamp());
    RETURN NEW;
END $$;
CREATE TRIGGER stop_no_longer BEFORE UPDATE ON no_agent_brakes FOR EACH ROW
    WHEN (NEW.stops_until IS NOT NULL) EXECUTE FUNCTION stop_no_longer();
INSERT INTO resellers (id, name) VALUES ('r', 'Reseller');
INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'Pool'), ('spare', 'r', 'Spare');
INSERT INTO merchants (id, reseller_id, name, default_region, default_pool_id)
VALUES ('m', 'r', 'M', 'US', 'p'), ('n', 'r', 'N', 'US', 'p')
"""


@dataclass
class Installation:
    carrier: Simulator
    pods: SimulatedPods
    client: TrunklineClient
    database: Database
    bus: Bus
    to_postgres: TcpProxy
    to_valkey: TcpProxy
    processes: dict[str, RoleProcess]
    numbers: Mapping[str, int]
    _server: ForkServer
    _environments: Mapping[str, Mapping[str, str]]
    _folder: Path
    _phones: "count[int]" = field(default_factory=count)
    _kept_down: set[str] = field(default_factory=set)

    # Processes

    def start(self, name: str, *, crash_at: str | None = None, nth: int = 1) -> RoleProcess:
        environment = dict(self._environments[name])
        if crash_at is not None:
            environment = crash_environment(crash_at, nth, base=environment)
        self._kept_down.discard(name)
        self.processes[name] = self._server.start(ROLES[name], environment, self._folder / f"{name}.log")
        return self.processes[name]

    def kill(self, name: str, *, keep_down: bool = False) -> None:
        """With -9. It comes back by itself unless it is kept down."""
        if keep_down:
            self._kept_down.add(name)
        self.processes[name].kill()

    async def supervise(self) -> None:
        """Start again whatever ended, for as long as this runs."""
        while True:
            for name, process in list(self.processes.items()):
                if not process.is_running and name not in self._kept_down:
                    self.start(name)
            await asyncio.sleep(0.1)

    # Leads

    async def add_leads(self, many: int, *, max_attempts: int = 2, merchant: str | None = None) -> list[UUID]:
        """Straight into the table, due now; the loader finds them. Without a merchant, of both in turns."""
        ids = [new_id() for _ in range(many)]
        async with self.database.connection() as conn:
            await conn.executemany(
                "INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id,"
                " scheduled_at, due_at, max_attempts) VALUES ($1, 'r', $2, $3, $4, $5, 'p', now(), now(), $6)",
                [
                    (i, merchant or MERCHANTS[n % 2], str(i), bytes(32), self._phone(), max_attempts)
                    for n, i in enumerate(ids)
                ],
            )
        return ids

    async def take_in(self, request_id: str) -> UUID:
        """Through the API, as a client that repeats itself until it has an answer."""
        phone = self._phone()

        async def asked() -> UUID | None:
            try:
                lead = await self.client.create_lead(
                    merchant_id="m", phone=phone, request_id=request_id, max_attempts=2
                )
            except Exception:
                return None
            return UUID(str(lead.id))

        return await eventually(asked, timeout_s=60, what=f"lead {request_id} was taken in")

    @asynccontextmanager
    async def load(self, waiting: int = 30) -> AsyncIterator[list[UUID]]:
        """For the length of the block there are always leads that wait. All that there were, at its end."""
        ids: list[UUID] = []

        async def top_up() -> None:
            while True:
                left = await self.answers("SELECT count(*) FROM leads WHERE status = 'BACKLOG'")
                if left is not None and left < waiting:
                    with suppress(*AWAY):
                        ids.extend(await self.add_leads(waiting))
                await asyncio.sleep(0.1)

        task = asyncio.create_task(top_up(), name="load")
        try:
            yield ids
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _phone(self) -> str:
        return f"+1212{2_000_000 + next(self._phones)}"

    # What Postgres says

    async def value(self, sql: str, *args: object) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(sql, *args)

    async def rows(self, sql: str, *args: object) -> list[Any]:
        async with self.database.connection() as conn:
            return list(await conn.fetch(sql, *args))

    async def answers(self, sql: str, *args: object) -> Any:
        """The same, or None while Postgres is away."""
        try:
            return await self.value(sql, *args)
        except AWAY:
            return None

    async def dialled(self, more: int, timeout_s: float = 30) -> None:
        """Until the carrier has so many more calls than now."""
        before = len(self.carrier.ledger.dials)
        await eventually(
            lambda: len(self.carrier.ledger.dials) >= before + more,
            timeout_s=timeout_s,
            what=f"{more} more calls",
        )

    def tails(self) -> str:
        """The last lines of every process, for a test that fails."""
        parts = []
        for name in ROLES:
            log = self._folder / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            parts.append(f"--- {name}\n" + "\n".join(lines[-15:]))
        return "\n".join(parts)


@asynccontextmanager
async def open_installation(
    server: ForkServer,
    database_url: str,
    redis_url: str,
    folder: Path,
    *,
    domain: str = "main",
    seed: int = 1,
    faults: Faults | None = None,
    numbers: Mapping[str, int] = NUMBERS,
    pods: int = 8,
    names: Sequence[str] = tuple(ROLES),
    people: Behaviour = BEHAVIOUR,
    time_scale: float = TIME_SCALE,
    heartbeat_interval_s: float = 0.5,
    more: Mapping[str, str] | None = None,
    are_all_proxied: bool = False,
) -> AsyncIterator[Installation]:
    """Everything runs when this returns; nothing is left when it ends. `more`: settings for every process.
    `are_all_proxied`: all of them reach the engines through the proxies, not only the second dialer."""
    async with AsyncExitStack() as stack:
        config = SimulatorConfig(
            seed=seed, time_scale=time_scale, behaviour=people, faults=faults or Faults()
        )
        carrier = await stack.enter_async_context(Simulator(config))
        to_postgres = await stack.enter_async_context(TcpProxy.before(database_url))
        to_valkey = await stack.enter_async_context(TcpProxy.before(redis_url))
        port = free_port(None)
        environment = _environment(database_url, redis_url, domain, carrier, port) | dict(more or {})
        cut_off = {"DATABASE_URL": to_postgres.url, "REDIS_URL": to_valkey.url}
        database = await connect_database(database_url, pool_size=4)
        stack.push_async_callback(database.close)
        await _prepare(database, numbers)
        bus = connect_bus(redis_url, Keys(domain))
        stack.push_async_callback(bus.close)
        base_url = f"http://127.0.0.1:{port}"
        client = await stack.enter_async_context(TrunklineClient(base_url, ADMIN_KEY, timeout_s=5))
        place = Installation(
            carrier,
            SimulatedPods(pods, base_url, ADMIN_KEY, heartbeat_interval_s=heartbeat_interval_s),
            client,
            database,
            bus,
            to_postgres,
            to_valkey,
            {},
            numbers,
            server,
            {
                name: environment
                | {"POD_NAME": name}
                | ({"HTTP_PORT": str(port)} if name == "face" else {})
                | (cut_off if are_all_proxied or name == PROXIED else {})
                for name in ROLES
            },
            folder,
        )
        stack.push_async_callback(_end, place)
        for name in names:
            place.start(name)
        # Before the pods, which wait for the router: a process whose port was taken meanwhile is started again.
        supervisor = asyncio.create_task(place.supervise(), name="supervisor")
        stack.callback(supervisor.cancel)
        await stack.enter_async_context(place.pods)
        yield place


async def _prepare(database: Database, numbers: Mapping[str, int]) -> None:
    async with database.connection() as conn:
        await conn.execute(_SETUP)
        await conn.executemany(
            "INSERT INTO numbers (id, e164, pool_id, carrier, max_channels) VALUES ($1, $2, $3, 'twilio', $4)",
            [
                *((new_id(), e164, "p", lines) for e164, lines in numbers.items()),
                (new_id(), SPARE, "spare", 2000),
            ],
        )


async def _end(place: Installation) -> None:
    for process in place.processes.values():
        process.kill()
    for process in place.processes.values():
        await process.ended()


def _environment(
    database_url: str, redis_url: str, domain: str, carrier: Simulator, port: int
) -> dict[str, str]:
    account = carrier.config.accounts[0]
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "DATABASE_POOL_SIZE": "6",
        "TRUNKLINE_DOMAIN": domain,
        "ROUTER_KEY_PREFIX": f"{domain}-voice",
        "TIER_CONFIG": ALL_STANDARD,
        "HTTP_PORT": "0",
        "METRICS_PORT": "0",
        "PUBLIC_BASE_URL": f"http://127.0.0.1:{port}",
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "TWILIO_BASE_URL": carrier.base_url,
        "TWILIO_ACCOUNT_SID": account.sid,
        "TWILIO_AUTH_TOKEN": account.auth_token,
        "TWILIO_CALLS_PER_SECOND": str(account.calls_per_s),
        "CARRIER_REQUEST_TIMEOUT": "2s",
        "CALL_TIME_LIMIT": "60s",
        "HTTP_SHUTDOWN_TIMEOUT": "5s",
        "RESTORE_GUARD": "witness",
        "LOG_FORMAT": "console",
    }
