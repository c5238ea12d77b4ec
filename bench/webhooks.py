"""How many webhooks a second are verified, kept durably and answered, and how long does the slowest hundredth take?

Beside it, in the same run and on the same Postgres: a bare endpoint of the same framework that inserts one row. Alone
we do more per request (signature, recognition of repetitions, a mailbox); under load appends share their commits.

    BENCH_SCALE=0.1   a tenth of the requests, to see that it runs; its figures then say little
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlencode
from uuid import uuid4

import asyncpg
import psutil
import uvloop

from bench._bare_webhook import TABLE
from bench.report import Report, finish
from bench.startup import free_port, wait_ready
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.forms import FORM
from trunkline.telephony.simulator.post import Answer, Outgoing, Poster, Timeouts
from trunkline.telephony.twilio_signature import signature

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
ALONE, UNDER_LOAD = max(20, round(1500 * SCALE)), max(200, round(20_000 * SCALE))
# Alternating, so that a machine that slows down slows both.
ROUNDS = 3
CONCURRENCY = 48
ALONE_GOAL, P99_GOAL_MS = 0.7, 100.0
SECRET_KEY = "a-secret-key-for-benchmarks-only-0123456789"
SID, TOKEN = "AC" + "0" * 31 + "1", "a-token-for-benchmarks-only"
TIMEOUTS = Timeouts(5.0, 30.0)


@dataclass(frozen=True, slots=True)
class Figures:
    alone_per_s: float
    load_per_s: float
    load_p50_ms: float
    load_p99_ms: float

    def rounded(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 1) for name in self.__dataclass_fields__}


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
                measured = await _measure(ours, bare)
                await _check_kept(database)
                await database.close()
    _report(*measured)


async def _measure(ours: str, bare: str) -> tuple[Figures, Figures]:
    poster = Poster()
    rounds: dict[str, list[Figures]] = {"ours": [], "bare": []}
    for warm_up in (True, *(False for _ in range(ROUNDS))):
        for name, make, url in (("ours", _signed, ours), ("bare", _plain, bare)):
            sizes = (ALONE // 5, UNDER_LOAD // 10) if warm_up else (ALONE // ROUNDS, UNDER_LOAD // ROUNDS)
            figures = await _round(poster, make(url, sizes[0]), make(url, sizes[1]))
            if not warm_up:
                rounds[name].append(figures)
                print(f"{name}: {figures.rounded()}", flush=True)
    poster.close()
    return _typical(rounds["ours"]), _typical(rounds["bare"])


async def _round(poster: Poster, alone: Sequence[Outgoing], many: Sequence[Outgoing]) -> Figures:
    began = time.perf_counter()
    for request in alone:
        await _sent(poster, request)
    alone_s = time.perf_counter() - began
    latencies: list[float] = []
    waiting = iter(many)

    async def hand() -> None:
        for request in waiting:
            at = time.perf_counter()
            await _sent(poster, request)
            latencies.append(time.perf_counter() - at)

    began = time.perf_counter()
    await asyncio.gather(*(hand() for _ in range(CONCURRENCY)))
    load_s = time.perf_counter() - began
    latencies.sort()
    return Figures(
        len(alone) / alone_s,
        len(many) / load_s,
        1000 * median(latencies),
        1000 * latencies[int(len(latencies) * 0.99)],
    )


async def _sent(poster: Poster, request: Outgoing) -> None:
    answer = await poster.send(request, TIMEOUTS)
    assert isinstance(answer, Answer), answer
    assert answer.status == 204, answer


def _signed(base_url: str, count: int) -> list[Outgoing]:
    """Twilio's status callbacks, each of a call of its own. Signing them is not part of what is measured."""
    keys = CallbackKeys.from_secrets([SECRET_KEY])
    made = []
    for n in range(count):
        url = callback_url(base_url, "twilio", "status", uuid4(), keys)
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
    rounds = [(ALONE // 5, UNDER_LOAD // 10), *[(ALONE // ROUNDS, UNDER_LOAD // ROUNDS)] * ROUNDS]
    wanted = sum(map(sum, rounds))
    for table in ("mailbox_events", "bare"):
        kept = await database.fetchval(f"SELECT count(*) FROM {table}")
        assert kept == wanted, f"{table}: {kept} of {wanted}"


def _typical(rounds: Sequence[Figures]) -> Figures:
    return Figures(*(median(getattr(one, name) for one in rounds) for name in Figures.__dataclass_fields__))


def _report(ours: Figures, bare: Figures) -> None:
    alone, load = ours.alone_per_s / bare.alone_per_s, ours.load_per_s / bare.load_per_s
    met = alone >= ALONE_GOAL and load > 1 and ours.load_p99_ms < P99_GOAL_MS
    finish(
        Report(
            "webhooks",
            ours.rounded() | {"alone_ratio": round(alone, 2)},
            {"bare endpoint, one insert": bare.rounded()},
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
