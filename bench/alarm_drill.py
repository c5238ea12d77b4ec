"""Do alarms ring when they must, and only then? By the clock, with whole processes and a webhook that listens.

`make alarm-drill` takes some twenty minutes; `--quick` runs the second half alone, in three. It ends with status 1
when an alarm was false, late or missing, or when what it waits for did not happen at all.

1. What happens every day, which must raise nothing: a campaign of 900 over two channels, first a draft for two and a
   half minutes, beside leads that another system calls (`event_dispatch` off for their merchant), and every role
   stopped with SIGTERM and started again; on a second installation both agents are in a talk for ten minutes while 18
   people wait.
2. No process with the role `control` for 40 s (killed with -9), then Postgres away for 40 s (a black hole): the webhook
   must hear of each within 35 s, while it lasts.

    --keep               write docs/proof/alarms.json and alarms.md
    BENCH_ALARM_LEADS, BENCH_ALARM_DRAFT_S, BENCH_ALARM_BUSY_S   make the first half shorter: does it run?
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.agents.proof import FOLDER, commit_name, shown
from bench.report import Report, finish
from tests.support.api.http_server import serve
from tests.support.fork_server import ForkServer
from tests.support.installation import ROLES, Installation, open_installation
from tests.support.waiting import eventually
from trunkline.client import ApiError, Campaign, Unreachable
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.behaviour import Behaviour

WHOLE = {"BENCH_ALARM_LEADS": 900, "BENCH_ALARM_DRAFT_S": 150, "BENCH_ALARM_BUSY_S": 600}
SIZES = {name: int(os.environ.get(name, default)) for name, default in WHOLE.items()}
LEADS, DRAFT_S, BUSY_S = SIZES.values()
LEFT_OUT = 20
HEARD_WITHIN_S = 35.0
AWAY_S = 40.0
# Calls last about a second and a half then: 900 of them over two channels take eleven minutes.
CAMPAIGN_SCALE = 0.03
CAMPAIGN_LIMIT_S = 3600.0
# Every process has read a change of the flags by then; before, one might call whom it leaves out.
FLAGS_KNOWN_AFTER_S = 6.0
AGENTS, BUSY_LEADS = 2, 20
TALKING_WITHIN_S = 120.0
TALKS = Behaviour(answer=1.0, busy=0, no_answer=0, failed=0, ring_s=(1, 2), talk_s=(BUSY_S * 2, BUSY_S * 2))
GOAL = (
    "no alarm on what happens every day; a missing leader and a missing Postgres heard of within "
    f"{HEARD_WITHIN_S:g} s"
)
PAGE = """# Alarms are raised when they must be, and only then: results of a run

`make alarm-drill ARGS=--keep` wrote this page on {date}, at commit {commit}. {verdict}

Whole processes (API and router, two dispatchers, mailboxes and jobs, control), a simulated carrier, a webhook
receiver, every threshold at its default ([Alarms](../reference/alarms.md)).

| what happens every day | it happened | alarms raised |
|---|---|---|
{everyday}

| fault | webhook received after, s | at most, s |
|---|---|---|
{faults}
"""


@dataclass(frozen=True, slots=True)
class Everyday:
    """Something that happens every day: the alarms that it raised, and of what was to happen, what did not."""

    name: str
    raised: Sequence[str] = ()
    missing: Sequence[str] = ()


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

    async def first(
        self, name: str, since_s: float, limit_s: float, word: str = "alarm.raised"
    ) -> float | None:
        """After how many seconds it heard of an alarm; None: not within the limit."""

        def seen() -> float | None:
            told = (at for at, said, each in self.heard if (said, each) == (word, name) and at >= since_s)
            return next(told, None)

        try:
            return await eventually(seen, timeout_s=limit_s, what=name) - since_s
        except AssertionError:
            return None


@asynccontextmanager
async def opened(
    folder: Path, domain: str, settings: Mapping[str, str] | None = None, **more: object
) -> AsyncIterator[tuple[Installation, Ears]]:
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
                more={"ALARM_WEBHOOK_URL": f"{url}/hook", **(settings or {})},
                are_all_proxied=True,
                **more,  # type: ignore[arg-type]
            ) as place:
                yield place, ears
    finally:
        server.close()


async def campaign(folder: Path) -> Everyday:
    """A campaign from its draft to its end, leads that are left out, and a restart of every role."""
    numbers = {"+14155550101": 2}
    async with opened(folder, "every-day", numbers=numbers, time_scale=CAMPAIGN_SCALE) as (place, ears):
        async with place.database.connection() as conn:
            await conn.execute(
                "INSERT INTO flags (name, enabled, percentage, resellers, merchants, reason, changed_by)"
                " VALUES ('event_dispatch', true, 100, '{}', '{\"n\": false}', 'drill', 'drill')"
            )
            await conn.execute("UPDATE control_versions SET flags = flags + 1")
        await asyncio.sleep(FLAGS_KNOWN_AFTER_S)
        left_out = await place.add_leads(LEFT_OUT, merchant="n")

        async def drafted() -> Campaign | None:
            """None while the API is not up yet."""
            try:
                return await place.client.create_campaign(
                    "drill", merchant_id="m", max_attempts=2, request_id="drill"
                )
            except (ApiError, Unreachable):
                return None

        draft = await eventually(drafted, timeout_s=60, what="the campaign is drafted")
        uploaded = await place.client.upload_campaign(draft.id, people())
        await asyncio.sleep(DRAFT_S)
        in_draft = len(place.carrier.ledger.dials)
        await place.client.start_campaign(draft.id)
        await place.dialled(min(50, LEADS // 10), timeout_s=600)
        for name in ROLES:
            print(f"  restart of {name}", flush=True)
            place.processes[name].signal(signal.SIGTERM)
            await place.processes[name].ended()
            await place.dialled(min(10, LEADS // 50), timeout_s=600)

        async def is_completed() -> bool:
            status = await place.value("SELECT status FROM campaigns WHERE id = $1", draft.id)
            return bool(status == "COMPLETED")

        missing = []
        try:
            await eventually(is_completed, timeout_s=CAMPAIGN_LIMIT_S, what="the campaign ended")
        except AssertionError:
            missing.append(f"the campaign ended within {CAMPAIGN_LIMIT_S:g} s")
        called = await place.value(
            "SELECT count(DISTINCT a.lead_id) FROM attempts AS a JOIN leads AS l ON l.id = a.lead_id"
            " WHERE l.campaign_id = $1 AND a.accepted_at IS NOT NULL",
            draft.id,
        )
        waiting = await place.value(
            "SELECT count(*) FROM leads WHERE id = ANY($1) AND status = 'BACKLOG' AND attempt_count = 0",
            left_out,
        )
        if uploaded.created != LEADS:
            missing.append(f"{uploaded.created} of {LEADS} leads were uploaded")
        if in_draft:
            missing.append(f"the draft called nobody: {in_draft} were called")
        if called != LEADS:
            missing.append(f"{called} of {LEADS} were called")
        if waiting != LEFT_OUT:
            missing.append(f"{waiting} of {LEFT_OUT} leads of another system were left alone")
        name = (
            f"a campaign of {LEADS} over two channels, {DRAFT_S} s of it a draft, beside {LEFT_OUT} leads that"
            " `event_dispatch` leaves out, and a restart of every role"
        )
        return Everyday(name, ears.raised, missing)


async def people() -> AsyncIterator[bytes]:
    yield b"phone\n"
    for n in range(LEADS):
        yield f"+1303{2_000_000 + n}\n".encode()


async def busy_agents(folder: Path) -> Everyday:
    # By default a call of an installation of the tests ends after a minute.
    settings = {"CALL_TIME_LIMIT": f"{BUSY_S * 3}s"}
    async with opened(folder, "busy", settings, pods=AGENTS, people=TALKS, time_scale=1.0) as (place, ears):
        await place.add_leads(BUSY_LEADS)

        async def talking() -> list[str]:
            rows = await place.rows("SELECT id FROM attempts WHERE state = 'answered' ORDER BY id")
            return [str(row["id"]) for row in rows]

        async def all_talk() -> bool:
            return len(await talking()) == AGENTS

        missing = []
        try:
            await eventually(all_talk, timeout_s=TALKING_WITHIN_S, what="every agent talks")
        except AssertionError:
            missing.append(f"every agent talked within {TALKING_WITHIN_S:g} s")
        before = await talking()
        await asyncio.sleep(BUSY_S)
        after, waiting = (
            await talking(),
            await place.value("SELECT count(*) FROM leads WHERE status = 'BACKLOG'"),
        )
        if len(before) != AGENTS or after != before:
            missing.append(f"{len(set(before) & set(after))} of {AGENTS} agents were in one talk throughout")
        if waiting != BUSY_LEADS - AGENTS:
            missing.append(f"{waiting} of {BUSY_LEADS - AGENTS} people waited at the end")
        name = f"both agents in a talk for {BUSY_S} s while {BUSY_LEADS - AGENTS} people wait"
        return Everyday(name, ears.raised, missing)


async def faults(folder: Path) -> dict[str, float | None]:
    """After how many seconds the webhook heard that nobody leads, and that Postgres is away; None: not in time."""
    async with opened(folder, "faults") as (place, ears):
        await place.add_leads(20)
        await place.dialled(10, timeout_s=120)
        began_s = time.monotonic()
        place.kill("control", keep_down=True)
        no_leader_s = await ears.first("no_leader", began_s, AWAY_S)
        await asyncio.sleep(max(0.0, AWAY_S - (time.monotonic() - began_s)))
        place.start("control")
        # The next fault begins on an installation that is well again.
        await ears.first("no_leader", began_s, 120, word="alarm.cleared")
        began_s = time.monotonic()
        place.to_postgres.black_hole()
        postgres_s = await ears.first("postgres_unreachable", began_s, AWAY_S)
        await asyncio.sleep(max(0.0, AWAY_S - (time.monotonic() - began_s)))
        await place.to_postgres.heal()
        return {"no_leader": no_leader_s, "postgres_unreachable": postgres_s}


def report_of(everyday: Sequence[Everyday], heard: Mapping[str, float | None]) -> Report:
    is_late = any(after_s is None or after_s > HEARD_WITHIN_S for after_s in heard.values())
    raised = sum(len(one.raised) for one in everyday)
    missing = sum(len(one.missing) for one in everyday)
    return Report(
        bench="alarm_drill",
        ours={f"{name}_s": -1.0 if after_s is None else round(after_s, 1) for name, after_s in heard.items()}
        | {"false_alarms": float(raised), "did_not_happen": float(missing)},
        peers={},
        ratio=1.0,
        goal=GOAL,
        met=not (raised or missing or is_late),
    )


def conclude(everyday: Sequence[Everyday], heard: Mapping[str, float | None]) -> int:
    """Tells everything, the line of JSON last; the status with which the process ends."""
    for one in everyday:
        for name in one.raised:
            print(f"raised: {name}, by {one.name}")
        for what in one.missing:
            print(f"did not happen: {what}")
    for name, after_s in heard.items():
        if after_s is None:
            print(f"not heard: {name}")
    report = report_of(everyday, heard)
    finish(report)
    return 0 if report.met else 1


def page(everyday: Sequence[Everyday], heard: Mapping[str, float | None], date: str, commit: str) -> str:
    is_met = report_of(everyday, heard).met
    return PAGE.format(
        date=date,
        commit=commit,
        verdict="Every goal was met." if is_met else "Not every goal was met.",
        everyday="\n".join(
            f"| {one.name} | {'no: ' + '; '.join(one.missing) if one.missing else 'yes'}"
            f" | {', '.join(one.raised) or 'none'} |"
            for one in everyday
        ),
        faults="\n".join(
            f"| `{name}` | {'not heard' if after_s is None else shown(round(after_s, 1))} | {HEARD_WITHIN_S:g} |"
            for name, after_s in heard.items()
        ),
    )


def keep(everyday: Sequence[Everyday], heard: Mapping[str, float | None]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    date, commit = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), commit_name()
    content = {
        "commit": commit,
        "date": date,
        "total": asdict(report_of(everyday, heard)),
        "everyday": [asdict(one) for one in everyday],
        "heard_after_s": heard,
    }
    (FOLDER / "alarms.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "alarms.md").write_text(page(everyday, heard, date, commit), encoding="utf-8")


async def main() -> int:
    is_quick, is_kept = "--quick" in sys.argv, "--keep" in sys.argv
    if is_kept and (is_quick or SIZES != WHOLE):
        print("--keep is for the drill in full: without --quick, BENCH_ALARM_… unset", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="trunkline-drill-"))
    try:
        everyday = [] if is_quick else await asyncio.gather(campaign(folder), busy_agents(folder))
        heard = await faults(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if is_kept:
        keep(everyday, heard)
    return conclude(everyday, heard)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
