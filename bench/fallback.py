"""Without Valkey, Postgres alone pairs due leads with channels: how long does one ask take, and how many calls a second
come of it?

10,000 numbers of 10 channels, 10,000 flows and 200,000 waiting leads, in one pool, in a hundred and in as many as there
are flows. An ask for five calls is timed when everything is due, when every channel is held and when nothing is due:
then it looks longest. Its statements are explained with generic and with custom plans. The peer is the one query that
was used before, with a time-out, in the same run. Then two dialers whose Valkey is away dial from 1,000 numbers; the
carrier takes every call, and is no part of what is measured.

    BENCH_SCALE=0.1   a tenth of the rows, to see that it runs
"""

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import structlog
import uvloop

from bench._calls import percentile
from bench.platform import Connection, scaled
from bench.report import Report, finish
from tests.support.dispatch.stage import open_stage
from trunkline.bus.connection import connect as connect_bus
from trunkline.dispatch.fallback import EACH_MIN, POOLS_MAX, PoolWalk, Skips
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database
from trunkline.store.migrate import migrate
from trunkline.store.sql import query

FLOWS = scaled(10_000)
LEADS = scaled(200_000)
NUMBERS = scaled(10_000)
CHANNELS = 10
POOLS = (1, 100, FLOWS)
WANTED = 5
ASKS = 100
GOAL_MS = 100.0

BEFORE = Path(__file__).with_name("fallback_before.sql").read_text(encoding="utf-8")
BEFORE_LIMIT_S = 20.0

DIALLED_FROM = 1_000
DIALLED_S = 10.0
GOAL_PER_S = 10.0

WORLD = """
INSERT INTO resellers (id, name) VALUES ('bench', 'bench');
INSERT INTO merchants (id, reseller_id, name)
SELECT 'bench-' || n, 'bench', 'bench' FROM generate_series(0, {flows} - 1) AS n;
INSERT INTO pools (id, reseller_id, name)
SELECT 'bench-' || n, 'bench', 'bench' FROM generate_series(0, {pools} - 1) AS n;
INSERT INTO numbers (id, e164, pool_id, carrier, account, max_channels)
SELECT gen_random_uuid(), '+1303' || (2000000 + n), 'bench-' || n % {pools}, 'twilio', 'default', {channels}
FROM generate_series(0, {numbers} - 1) AS n;
INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, scheduled_at, due_at)
SELECT uuidv7(), 'bench', 'bench-' || n % {flows}, n::text, sha256(''), '+1212' || (2000000 + n),
       'bench-' || n % {flows} % {pools}, due.at, due.at
FROM generate_series(0, {leads} - 1) AS n, LATERAL (SELECT now() - make_interval(secs => 1 + n % 3600) AS at) AS due;
"""
HOLD_ALL = """
INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer, state)
SELECT gen_random_uuid(), 'inbound', 1, 'bench', 'bench-0', n.id, channel.no, 'twilio', 'default', n.e164, n.e164,
       'bench', 'answered'
FROM numbers AS n, generate_series(1, n.max_channels) AS channel (no)
"""
TYPES = {
    "pools": "text, int",
    "channels": "text[], uuid[], int, int, uuid[], uuid[], text[]",
    "flows": "text[], text[], uuid[], int, uuid[]",
}


@dataclass(frozen=True, slots=True)
class Asks:
    first_ms: float
    p50_ms: float
    p99_ms: float
    grants: int


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: dict[str, float] = {}
    before: dict[str, float] = {}
    worst_ms = 0.0
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder)) as engines:
            for pools in POOLS:
                url = await database(engines, f"bench{pools}", pools, NUMBERS)
                for what, asks in (await measure(url)).items():
                    print(f"{pools} pools, {what}: {asks}", file=sys.stderr)
                    worst_ms = max(worst_ms, asks.p99_ms)
                    figures[f"{what}_{pools}_pools_p50_ms"] = asks.p50_ms
                    figures[f"{what}_{pools}_pools_p99_ms"] = asks.p99_ms
                for mode in ("generic", "custom"):
                    blocks, took_ms = await explained(url, mode)
                    worst_ms = max(worst_ms, took_ms)
                    figures[f"{mode}_{pools}_pools_ms"] = took_ms
                    figures[f"{mode}_{pools}_pools_blocks"] = blocks
                before[f"{pools}_pools_ms"] = await one_query(url)
                print(f"{pools} pools, before: {before[f'{pools}_pools_ms']} ms", file=sys.stderr)
            per_s = await dials_per_s(engines)
    figures["dials_per_s"] = per_s
    finish(
        Report(
            "fallback",
            {"worst_ms": worst_ms, **figures},
            {f"one query, given {BEFORE_LIMIT_S:.0f} s": before},
            round(min(before.values()) / worst_ms, 1),
            f"an ask under {GOAL_MS:.0f} ms (p99) whatever is there, and {GOAL_PER_S:.0f} dials a second",
            worst_ms < GOAL_MS and per_s >= GOAL_PER_S,
        )
    )


async def database(engines: Engines, name: str, pools: int, numbers: int) -> str:
    """As autovacuum would leave it within minutes."""
    admin = await asyncpg.connect(engines.database_url)
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    assert engines.postgres is not None
    url = engines.postgres.url(name)
    await migrate(url)
    connection = await asyncpg.connect(url)
    await connection.execute(
        WORLD.format(pools=pools, flows=FLOWS, numbers=numbers, channels=CHANNELS, leads=LEADS)
    )
    await connection.execute("VACUUM (ANALYZE)")
    await connection.close()
    return url


async def measure(url: str) -> dict[str, Asks]:
    """Each on connections of its own: the first ask has nothing planned yet."""
    found = {"due": await ask(url)}
    connection = await asyncpg.connect(url)
    await connection.execute(HOLD_ALL)
    await connection.execute("VACUUM (ANALYZE) attempts")
    found["held"] = await ask(url)
    await connection.execute("TRUNCATE attempts CASCADE")
    await connection.execute("UPDATE leads SET due_at = due_at + interval '1 day'")
    await connection.execute("VACUUM (ANALYZE) leads")
    found["not_due"] = await ask(url)
    await connection.execute("UPDATE leads SET due_at = due_at - interval '1 day'")
    await connection.execute("VACUUM (ANALYZE) leads")
    await connection.close()
    return found


async def ask(url: str) -> Asks:
    opened = await connect_database(url, pool_size=2)
    walk, took_ms, grants = PoolWalk(), list[float](), 0
    for _ in range(ASKS + 1):
        began = time.perf_counter()
        grants += await _ask(opened, walk)
        took_ms.append(1000 * (time.perf_counter() - began))
    await opened.close()
    return Asks(
        round(took_ms[0], 1),
        round(percentile(took_ms[1:], 0.5), 1),
        round(percentile(took_ms[1:], 0.99), 1),
        grants,
    )


async def _ask(opened: Database, walk: PoolWalk) -> int:
    async with opened.transaction() as tx:
        return len(await walk.grants(tx, WANTED, Skips()))


async def explained(url: str, mode: str) -> tuple[int, float]:
    """Blocks and time of the statements of one look, by EXPLAIN."""
    connection = await asyncpg.connect(url)
    blocks, took_ms = 0, 0.0
    async with connection.transaction():
        await connection.execute(query("fallback/bounds"), "30000")
        await connection.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan")
        pools = [row[0] for row in await connection.fetch(query("fallback/pools"), "", POOLS_MAX)]
        nothing, each = UUID(int=0), [UUID(int=0)] * len(pools)
        for name, args in (
            ("pools", ("", POOLS_MAX)),
            ("channels", (pools, each, EACH_MIN, WANTED, [], [], [])),
            ("flows", (pools, [""] * len(pools), each, EACH_MIN, [nothing])),
        ):
            plan = await explain(connection, name, args)
            blocks += plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
            took_ms += plan["Planning Time"] + plan["Execution Time"]
    await connection.close()
    return blocks, round(took_ms, 1)


async def explain(connection: Connection, name: str, args: Sequence[object]) -> dict[str, Any]:
    await connection.execute(f"PREPARE {name} ({TYPES[name]}) AS {query(f'fallback/{name}')}")
    text = await connection.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({', '.join(map(literal, args))})"
    )
    plan: dict[str, Any] = json.loads(text)[0]
    return plan


def literal(value: object) -> str:
    if isinstance(value, list):
        return "'{" + ",".join(f'"{each}"' for each in value) + "}'"
    return str(value) if isinstance(value, int) else f"'{value}'"


async def one_query(url: str) -> float:
    connection = await asyncpg.connect(url)
    await connection.execute(f"SET statement_timeout = {round(1000 * BEFORE_LIMIT_S)}")
    began = time.perf_counter()
    with suppress(asyncpg.QueryCanceledError):
        await connection.fetch(BEFORE, WANTED, [], [], [], [], [], [], [])
    took_ms = 1000 * (time.perf_counter() - began)
    await connection.close()
    return round(took_ms, 1)


async def dials_per_s(engines: Engines) -> float:
    """What two dialers together bring to the carrier, as they run by themselves."""
    url = await database(engines, "dialled", 10, DIALLED_FROM)
    async with open_stage(url, engines.redis_url, "bench") as stage:
        away = connect_bus(f"redis://127.0.0.1:{free_port()}", stage.bus.keys)
        dialers = [stage.another_dialer(bus=away) for _ in range(2)]
        running = [asyncio.create_task(dialer.run()) for dialer in dialers]
        # The first ask may take what a second allows.
        await asyncio.sleep(1)
        before = len(stage.carrier.orders)
        await asyncio.sleep(DIALLED_S)
        dialled = len(stage.carrier.orders) - before
        for dialer in dialers:
            dialer.stop()
        await asyncio.gather(*running)
        await asyncio.gather(*(dialer.drain() for dialer in dialers))
        await away.close()
    return round(dialled / DIALLED_S, 1)


if __name__ == "__main__":
    uvloop.run(main())
