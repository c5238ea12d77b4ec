"""How many webhooks a second are verified, kept durably and answered, and how long does the slowest hundredth take?

Beside it, in the same run and on the same Postgres: a bare endpoint of the same framework that inserts one row. Alone
we do more per request (signature, recognition of repetitions, a mailbox); under load appends share their commits.
The two take turns in short slices, so that a noisy moment of the machine falls on both: first one request after the
other, then many at once.

    BENCH_SCALE=0.1   a tenth of the requests, to see that it runs; its figures then say little
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import asyncpg
import psutil
import uvloop

from bench._bare_webhook import TABLE
from bench.report import Report, finish
from bench.startup import wait_ready
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port
from trunkline.http.connections import HttpReply
from trunkline.model import new_id
from trunkline.store.migrate import migrate
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.forms import FORM
from trunkline.telephony.simulator.webhooks import Outgoing, Timeouts, WebhookClient
from trunkline.telephony.twilio_webhooks import signature

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
# A slice takes about a tenth of a second alone, about half a second under load; the typical one of each kind counts.
ALONE, ALONE_SLICES = max(10, round(100 * SCALE)), 60
UNDER_LOAD, LOAD_SLICES = max(200, round(3000 * SCALE)), 10
CONCURRENCY = 48
ALONE_GOAL, P99_GOAL_MS = 0.7, 100.0
SECRET_KEY = "a-secret-key-for-benchmarks-only-0123456789"
SID, TOKEN = "AC" + "0" * 31 + "1", "a-token-for-benchmarks-only"
TIMEOUTS = Timeouts(5.0, 30.0)


@dataclass(frozen=True, slots=True)
class Load:
    per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: where it is, what it is sent, and what was measured."""

    name: str
    url: str
    make: Callable[[str, int], list[Outgoing]]
    alone_per_s: list[float] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        figures = {"alone_per_s": median(self.alone_per_s)}
        for what in Load.__dataclass_fields__:
            figures[f"load_{what}"] = median(getattr(load, what) for load in self.loads)
        return {name: round(figure, 1) for name, figure in figures.items()}


async def main() -> None:
    if SCALE != 1:
        print(f"at a scale of {SCALE:g} the figures say little", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder) / "data") as engines:
            await migrate(engines.database_url)
            with ExitStack() as stack:
                ours = stack.enter_context(_ours(engines, Path(folder)))
                bare = stack.enter_context(_bare(engines, Path(folder)))
                database = await asyncpg.connect(engines.database_url)
                await database.execute(TABLE)
                sides = Side("ours", ours, _signed), Side("bare", bare, _plain)
                await _measure(sides)
                await _check_kept(database)
                await database.close()
    _report(*sides)


async def _measure(sides: Sequence[Side]) -> None:
    client = WebhookClient()
    for n in range(1 + ALONE_SLICES):
        for side in sides:
            per_s = await _alone(client, side.make(side.url, ALONE))
            if n > 0:  # the first warms up
                side.alone_per_s.append(per_s)
    for n in range(1 + LOAD_SLICES):
        for side in sides:
            load = await _under_load(client, side.make(side.url, UNDER_LOAD))
            if n > 0:
                side.loads.append(load)
    client.close()


async def _alone(client: WebhookClient, requests: Sequence[Outgoing]) -> float:
    began = time.perf_counter()
    for request in requests:
        await _sent(client, request)
    return len(requests) / (time.perf_counter() - began)


async def _under_load(client: WebhookClient, requests: Sequence[Outgoing]) -> Load:
    latencies: list[float] = []
    waiting = iter(requests)

    async def hand() -> None:
        for request in waiting:
            at = time.perf_counter()
            await _sent(client, request)
            latencies.append(time.perf_counter() - at)

    began = time.perf_counter()
    await asyncio.gather(*(hand() for _ in range(CONCURRENCY)))
    took_s = time.perf_counter() - began
    latencies.sort()
    return Load(
        len(requests) / took_s, 1000 * median(latencies), 1000 * latencies[int(len(latencies) * 0.99)]
    )


async def _sent(client: WebhookClient, request: Outgoing) -> None:
    answer = await client.send(request, TIMEOUTS)
    assert isinstance(answer, HttpReply), answer
    assert answer.status == 204, answer


def _signed(base_url: str, count: int) -> list[Outgoing]:
    """Twilio's status callbacks, each of a call of its own. Signing them is not part of what is measured."""
    keys = CallbackKeys.from_secrets([SECRET_KEY])
    made = []
    for n in range(count):
        url = callback_url(base_url, "twilio", "status", new_id(), keys)
        fields = _form(n)
        headers = (("Content-Type", FORM), ("X-Twilio-Signature", signature(TOKEN, url, fields.items())))
        made.append(Outgoing("POST", url, headers, urlencode(fields).encode()))
    return made


def _plain(base_url: str, count: int) -> list[Outgoing]:
    headers = (("Content-Type", FORM),)
    return [Outgoing("POST", f"{base_url}/bare", headers, urlencode(_form(n)).encode()) for n in range(count)]


def _form(n: int) -> dict[str, str]:
    """As long as one of Twilio's: its places and names are thirty fields."""
    places = {
        f"{who}{what}": "SAN FRANCISCO"
        for who in ("From", "To", "Caller", "Called")
        for what in ("City", "State")
    }
    return {
        "CallSid": f"CA{n:032x}",
        "AccountSid": SID,
        "CallStatus": "ringing",
        "SequenceNumber": "1",
        "CallbackSource": "call-progress-events",
        "Direction": "outbound-api",
        "ApiVersion": "2010-04-01",
        "From": "+14155550100",
        "To": "+14155550123",
        **places,
    }


async def _check_kept(database: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Answered is kept: as many rows as answers, at both."""
    wanted = (1 + ALONE_SLICES) * ALONE + (1 + LOAD_SLICES) * UNDER_LOAD
    for table in ("mailbox_events", "bare"):
        kept = await database.fetchval(f"SELECT count(*) FROM {table}")
        assert kept == wanted, f"{table}: {kept} of {wanted}"


def _report(ours: Side, bare: Side) -> None:
    mine, peer = ours.figures(), bare.figures()
    # Neighbouring slices are compared, not the medians of all: both of a pair had the same machine.
    alone = median(a / b for a, b in zip(ours.alone_per_s, bare.alone_per_s, strict=True))
    load = median(a.per_s / b.per_s for a, b in zip(ours.loads, bare.loads, strict=True))
    met = alone >= ALONE_GOAL and load > 1 and mine["load_p99_ms"] < P99_GOAL_MS
    finish(
        Report(
            "webhooks",
            mine | {"alone_ratio": round(alone, 2)},
            {"bare endpoint, one insert": peer},
            round(load, 2),
            f"alone at least {ALONE_GOAL:g} of the bare endpoint, under load above it, p99 below {P99_GOAL_MS:g} ms",
            met,
        )
    )


@contextmanager
def _ours(engines: Engines, folder: Path) -> Iterator[str]:
    """The role `api` as production runs it: everything on."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {
        **os.environ,
        "DATABASE_URL": engines.database_url,
        "REDIS_URL": engines.redis_url,
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TWILIO_ACCOUNT_SID": SID,
        "TWILIO_AUTH_TOKEN": TOKEN,
        "PUBLIC_BASE_URL": url,
        "HTTP_PORT": str(port),
        "METRICS_PORT": str(free_port()),
    }
    trunkline = shutil.which("trunkline", path=str(Path(sys.executable).parent)) or "trunkline"
    with _child([trunkline, "serve", "--roles", "api"], environ, folder / "ours.log", f"{url}/ready"):
        yield url


@contextmanager
def _bare(engines: Engines, folder: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {**os.environ, "DATABASE_URL": engines.database_url}
    command = [sys.executable, "-m", "bench._bare_webhook", str(port)]
    with _child(command, environ, folder / "bare.log", f"{url}/ready"):
        yield url


@contextmanager
def _child(command: list[str], environ: Mapping[str, str], log: Path, ready_url: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = psutil.Popen(command, env=dict(environ), stdout=out, stderr=out)
        try:
            wait_ready(ready_url, process)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


if __name__ == "__main__":
    uvloop.run(main())
