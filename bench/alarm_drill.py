"""Do alarms ring when they must, and only then? By the clock, with whole processes and a webhook that listens.

`make alarm-drill` takes a quarter of an hour; `--quick` runs the second half alone, in three minutes.
BENCH_ALARM_LEADS and BENCH_ALARM_BUSY_S make the first half shorter.

1. What happens every day, which must raise nothing: a campaign of 900 over two channels beside leads that another
   system calls (`event_dispatch` off for their merchant), and every role stopped with SIGTERM and started again; on a
   second installation all agents are in a talk for ten minutes while people wait.
2. No process with the role `control` for 40 s (killed with -9), then Postgres away for 40 s (a black hole): the webhook
   must hear of each within 35 s, while it lasts.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.report import Report, finish
from tests.support.api.http_server import serve
from tests.support.fork_server import ForkServer
from tests.support.installation import ROLES, Installation, open_installation
from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.behaviour import Behaviour

LEADS, LEFT_OUT = int(os.environ.get("BENCH_ALARM_LEADS", "900")), 20
HEARD_WITHIN_S = 35.0
AWAY_S = 40.0
BUSY_S = float(os.environ.get("BENCH_ALARM_BUSY_S", "600"))
# Calls last about a second and a half then: 900 of them over two channels take eleven minutes.
CAMPAIGN_SCALE = 0.03
CAMPAIGN_LIMIT_S = 3600.0
TALKS = Behaviour(answer=1.0, busy=0, no_answer=0, failed=0, ring_s=(1, 2), talk_s=(BUSY_S * 2, BUSY_S * 2))


@dataclass
class Ears:
    """A webhook that listens: what it heard, and when."""

    heard: list[tuple[float, str, str]] = field(default_factory=list)

    async def receive(self, request: Request) -> Response:
        body = await request.json()
        self.heard.append((time.monotonic(), body["type"], body["data"]["name"]))
        print(f"  {body['type']} {body['data']['name']} {body['data']['subject']}", flush=True)
        return Response(status_code=204)

    @property
    def raised(self) -> list[str]:
        return [name for _, word, name in self.heard if word == "alarm.raised"]

    async def first(self, name: str, since_s: float, limit_s: float) -> float | None:
        """After how many seconds it heard of an alarm; None: not within the limit."""

        def seen() -> float | None:
            return next(
                (
                    at
                    for at, word, each in self.heard
                    if (word, each) == ("alarm.raised", name) and at >= since_s
                ),
                None,
            )

        try:
            return await eventually(seen, timeout_s=limit_s, what=name) - since_s
        except AssertionError:
            return None


@asynccontextmanager
async def opened(folder: Path, domain: str, **more: object) -> AsyncIterator[tuple[Installation, Ears]]:
    """An installation on engines of its own, with a webhook."""
    ears, server = Ears(), ForkServer()
    app = Starlette(routes=[Route("/hook", ears.receive, methods=["POST"])])
    home = folder / domain
    home.mkdir(parents=True)
    try:
        async with serve(app) as url, Engines(home / "engines", durable=False) as engines:
            await migrate(engines.database_url)
            async with open_installation(
                server,
                engines.database_url,
                engines.redis_url,
                home,
                domain=domain,
                more={"ALARM_WEBHOOK_URL": f"{url}/hook"},
                are_all_proxied=True,
                **more,  # type: ignore[arg-type]
            ) as place:
                yield place, ears
    finally:
        server.close()


async def every_day(folder: Path) -> list[str]:
    """A campaign, leads that are left out, and a restart of every role; the alarms that were raised."""
    numbers = {"+14155550101": 2}
    async with opened(folder, "every-day", numbers=numbers, time_scale=CAMPAIGN_SCALE) as (place, ears):
        async with place.database.connection() as conn:
            await conn.execute(
                "INSERT INTO flags (name, enabled, percentage, resellers, merchants, reason, changed_by)"
                " VALUES ('event_dispatch', true, 100, '{}', '{\"n\": false}', 'drill', 'drill')"
            )
            await conn.execute("UPDATE control_versions SET flags = flags + 1")
        await place.add_leads(2 * LEFT_OUT)
        ids = await place.add_leads(LEADS)
        async with place.database.connection() as conn:
            await conn.execute("UPDATE leads SET merchant_id = 'm' WHERE id = ANY($1)", ids)
        await place.dialled(50, timeout_s=600)
        for name in ROLES:
            print(f"  restart of {name}", flush=True)
            place.processes[name].signal(signal.SIGTERM)
            await place.processes[name].ended()
            await place.dialled(10, timeout_s=600)

        async def is_done() -> bool:
            left = await place.value(
                "SELECT count(*) FROM leads WHERE id = ANY($1) AND status <> 'FINISHED'", ids
            )
            return bool(left == 0)

        await eventually(is_done, timeout_s=CAMPAIGN_LIMIT_S, what="the campaign ended")
        return ears.raised


async def busy_agents(folder: Path) -> list[str]:
    async with opened(folder, "busy", pods=2, people=TALKS, time_scale=1.0) as (place, ears):
        await place.add_leads(20)
        await asyncio.sleep(BUSY_S)
        return ears.raised


async def missing(folder: Path) -> dict[str, float | None]:
    """After how many seconds the webhook heard that nobody leads, and that Postgres is away."""
    async with opened(folder, "missing") as (place, ears):
        await place.add_leads(20)
        await place.dialled(10, timeout_s=120)
        began_s = time.monotonic()
        place.kill("control", keep_down=True)
        no_leader_s = await ears.first("no_leader", began_s, AWAY_S)
        await asyncio.sleep(max(0.0, AWAY_S - (time.monotonic() - began_s)))
        place.start("control")
        await place.dialled(0)
        await asyncio.sleep(10)
        began_s = time.monotonic()
        place.to_postgres.black_hole()
        postgres_s = await ears.first("postgres_unreachable", began_s, AWAY_S)
        await asyncio.sleep(max(0.0, AWAY_S - (time.monotonic() - began_s)))
        await place.to_postgres.heal()
        return {"no_leader_s": no_leader_s, "postgres_unreachable_s": postgres_s}


async def main() -> None:
    is_quick = "--quick" in sys.argv
    folder = Path(tempfile.mkdtemp(prefix="trunkline-drill-"))
    try:
        raised: list[str] = []
        if not is_quick:
            for found in await asyncio.gather(every_day(folder), busy_agents(folder)):
                raised += found
        heard = await missing(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    late = {name: each for name, each in heard.items() if each is None or each > HEARD_WITHIN_S}
    finish(
        Report(
            bench="alarm_drill",
            ours={name: round(each if each is not None else -1.0, 1) for name, each in heard.items()}
            | {"false_alarms": float(len(raised))},
            peers={},
            ratio=1.0,
            goal="no alarm on what happens every day; a missing leader and a missing Postgres heard of within 35 s",
            met=not raised and not late,
        )
    )
    if raised:
        print("raised:", ", ".join(raised))


if __name__ == "__main__":
    asyncio.run(main())
