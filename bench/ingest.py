"""How many leads a second does `POST /leads/bulk` take in, over HTTP, with every row checked?

Beside it, in the same run: a bare COPY of the same rows into the same table, prepared beforehand, so that Postgres does
nothing but take them in. The table without its indexes and foreign keys is shown too: it is what those cost. While an
upload runs, somebody else asks for /health again and again: an upload must not keep the others waiting.
"""

import asyncio
import csv
import hashlib
import io
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil

from bench.report import Report, finish
from bench.startup import wait_ready
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port
from trunkline.model import new_id
from trunkline.store.migrate import migrate

ROWS = 100_000
ROUNDS = 3
GOAL = 1 / 3
KEY = "an-admin-key-for-the-benchmark"
COLUMNS = (
    "id", "reseller_id", "merchant_id", "request_id", "request_hash", "phone", "payload", "pool_id", "priority",
    "max_attempts", "scheduled_at", "due_at",
)  # fmt: skip
SET_UP = """
INSERT INTO resellers VALUES ('r', 'R');
INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'P');
INSERT INTO merchants (id, reseller_id, name, default_pool_id)
SELECT 'm' || i, 'r', 'M', 'p' FROM generate_series(0, 9) i;
CREATE TABLE bare (LIKE leads INCLUDING DEFAULTS);
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder)))


async def compare(folder: Path) -> None:
    async with Engines(folder) as engines:
        await migrate(engines.database_url)
        connection = await asyncpg.connect(engines.database_url)
        await connection.execute(SET_UP)
        server = serve(engines)
        try:
            url = f"http://127.0.0.1:{server.port}"
            await asyncio.to_thread(wait_ready, f"{url}/ready", server.process)
            await measure(connection, url, server.process)
        finally:
            server.process.terminate()
            server.process.wait(30)
            await connection.close()


async def measure(connection: "asyncpg.Connection[Any]", url: str, server: psutil.Popen) -> None:
    leads = people()
    bodies = {
        "application/x-ndjson": ndjson(leads),
        "application/json": as_json(leads),
        "text/csv": as_csv(leads),
    }
    figures: dict[str, list[float]] = {}
    pings: list[float] = []
    idle_mb = server.memory_info().rss / 1e6
    for nth in range(ROUNDS):
        for table in ("bare", "leads"):
            prepared = records(leads)
            await clear(connection)
            await timed(figures, f"COPY {table}", lambda t=table, r=prepared: copy(connection, t, r))  # type: ignore[misc]
        for kind, body in bodies.items():
            await clear(connection)
            await timed(figures, kind, lambda k=kind, b=body: upload(url, k, b, pings))  # type: ignore[misc]
            assert await connection.fetchval("SELECT count(*) FROM leads") == ROWS
        print(f"round {nth + 1} of {ROUNDS}", flush=True)
    tell(figures, pings, server.memory_info().rss / 1e6 - idle_mb)


async def timed(figures: dict[str, list[float]], name: str, work: Callable[[], Awaitable[object]]) -> None:
    began = time.perf_counter()
    await work()
    figures.setdefault(name, []).append(ROWS / (time.perf_counter() - began))


def tell(figures: dict[str, list[float]], pings: list[float], grown_mb: float) -> None:
    rates = {name: round(statistics.median(found)) for name, found in figures.items()}
    pings.sort()
    ratio = rates["application/x-ndjson"] / rates["COPY leads"]
    finish(
        Report(
            "ingest",
            {
                "ndjson_rows_per_s": rates["application/x-ndjson"],
                "json_rows_per_s": rates["application/json"],
                "csv_rows_per_s": rates["text/csv"],
                "others_wait_p50_ms": round(pings[len(pings) // 2] * 1000, 1),
                "others_wait_p99_ms": round(pings[len(pings) * 99 // 100] * 1000, 1),
                "memory_grown_mb": round(grown_mb),
            },
            {
                "COPY into the same table": {"rows_per_s": rates["COPY leads"]},
                "COPY into a table without indexes": {"rows_per_s": rates["COPY bare"]},
            },
            round(ratio, 2),
            "at least a third of a bare COPY of the same rows",
            ratio >= GOAL,
        )
    )


class Served:
    def __init__(self, process: psutil.Popen, port: int):
        self.process = process
        self.port = port


def serve(engines: Engines, roles: str = "api") -> Served:
    """The API, alone unless other roles are named, in a process of its own."""
    port = free_port()
    environ = {
        **os.environ,
        "DATABASE_URL": engines.database_url,
        "REDIS_URL": engines.redis_url,
        "TRUNKLINE_SECRET_KEY": "a-secret-key-for-the-benchmark-0123456789",
        "TRUNKLINE_ADMIN_KEY": KEY,
        "HTTP_PORT": str(port),
        "METRICS_PORT": str(free_port()),
        "LOG_LEVEL": "warning",
    }
    trunkline = Path(sys.executable).parent / "trunkline"
    return Served(psutil.Popen([trunkline, "serve", "--roles", roles], env=environ), port)


def people() -> list[dict[str, Any]]:
    dice = random.Random(1)
    return [
        {
            "request_id": f"order-{n}",
            "merchant_id": f"m{n % 10}",
            "phone": f"+1{dice.choice((212, 303, 404, 512, 617))}{dice.randrange(2_000_000, 10_000_000)}",
            "payload": {"customer_name": f"Customer {n}", "order": str(n), "amount": dice.randrange(10_000)},
            "scheduled_at": "2031-05-01T09:30:00+02:00",
            "priority": dice.randrange(1, 100),
            "max_attempts": 3,
        }
        for n in range(ROWS)
    ]


def ndjson(leads: Sequence[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, leads)).encode()


def as_json(leads: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps(leads).encode()


def as_csv(leads: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    table = csv.writer(text)
    plain = ("request_id", "merchant_id", "phone", "scheduled_at", "priority", "max_attempts")
    parts = ("customer_name", "order", "amount")
    table.writerow([*plain, *(f"payload.{name}" for name in parts)])
    table.writerows(
        [*(lead[name] for name in plain), *(lead["payload"][name] for name in parts)] for lead in leads
    )
    return text.getvalue().encode()


def records(leads: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    due = datetime(2031, 5, 1, 7, 30, tzinfo=UTC)
    return [
        (
            new_id(),
            "r",
            lead["merchant_id"],
            lead["request_id"],
            hashlib.sha256(lead["request_id"].encode()).digest(),
            lead["phone"],
            json.dumps(lead["payload"]),
            "p",
            lead["priority"],
            lead["max_attempts"],
            due,
            due,
        )
        for lead in leads
    ]


async def clear(connection: "asyncpg.Connection[Any]") -> None:
    await connection.execute("TRUNCATE leads, bare CASCADE")
    await connection.execute("CHECKPOINT")


async def copy(connection: "asyncpg.Connection[Any]", table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=COLUMNS)


async def upload(url: str, kind: str, body: bytes, pings: list[float]) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": kind, "Accept": "application/x-ndjson"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(300)) as session:
        asking = asyncio.create_task(ask_again_and_again(session, url, pings))
        try:
            async with session.post(f"{url}/api/v1/leads/bulk", data=io.BytesIO(body)) as answer:
                assert answer.status == 200, await answer.text()
                last = (await answer.read()).splitlines()[-1]
            assert json.loads(last)["summary"]["created"] == ROWS, last
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


async def ask_again_and_again(session: aiohttp.ClientSession, url: str, pings: list[float]) -> None:
    while True:
        began = time.perf_counter()
        async with session.get(f"{url}/health") as answer:
            await answer.read()
        pings.append(time.perf_counter() - began)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
