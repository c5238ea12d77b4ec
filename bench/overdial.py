"""Does overdialling keep its bound, and what is it worth? And is nobody abandoned where nobody asked for it?

One agent, ten channels, a quarter answering, 400 leads: nobody may be abandoned, by default and with `abandon_max`
0.03, for two phones that ring would already risk an eighth of those who answer. Then twenty agents and 80 channels,
4,000 leads, three seeds: by default nobody is abandoned; with 0.03 at most 3 % of those who answer, and the calls of
an hour are compared with the default's. The platform itself is measured, not a model of it.

Abandoned is who answers and has no agent within 2 s: from the carrier's ledger and the pods' own records.

    BENCH_SCALE=0.1          a tenth of the leads, to see that it runs
    BENCH_OVERDIAL_SEEDS     `1,2,3` unless told otherwise
    --keep                   write docs/proof/overdial.md
"""

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from math import comb
from statistics import mean

import aiohttp
import asyncpg
import uvloop

from bench._calls import RESELLER, judge, load, prepare, spread, unfinished
from bench.agents.proof import FOLDER, commit_name
from bench.platform import ADMIN_KEY, BenchPlatform, platform, scaled
from bench.report import Report, finish
from trunkline.telephony.simulator.behaviour import Behaviour
from trunkline.telephony.simulator.ledger import Dial

SEEDS = [int(seed) for seed in os.environ.get("BENCH_OVERDIAL_SEEDS", "1,2,3").split(",")]
ANSWERING = 0.25
RING_S, TALK_S = 1.5, 3.0
# Who does not answer is engaged: every phone rings for the same time.
PEOPLE = Behaviour(
    answer=ANSWERING,
    busy=1 - ANSWERING,
    no_answer=0.0,
    failed=0.0,
    ring_s=(RING_S, RING_S),
    talk_s=(TALK_S, TALK_S),
)
MERCHANT = "overdial"
ABANDON_MAX = 0.03
ABANDONED_AFTER_S = 2.0
WORTH_MIN = 1.4
POLICY_KNOWN_S = 2.0
# Dials that can be live together with one: those before it, at most.
NEAR = 400
# Rates are stored with seven digits.
ROUNDING = 1e-4


PAGE = """# Overdialling stays within its bound: results of a run

`make proof-overdial` wrote this page on {date}, at commit {commit}. {verdict}

25 % answer, phones ring for 1.5 s, talks last 3 s. One agent with ten channels and 400 leads; twenty agents with 80
channels and 4,000 leads, three seeds. *Abandoned* are answered calls without an agent within 2 s, by the carrier's
ledger and the pods' own records. *Expected share* is the largest in Postgres at any dial without a reserved agent
([Benchmarks](benchmarks.md)).

With `abandon_max` 0.03 twenty agents made {worth} times the calls of an hour.

| agents | abandon_max | seed | dials | answered | abandoned | share | expected share, at most | calls an hour |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""


@dataclass(frozen=True, slots=True)
class Case:
    agents: int
    channels: int
    leads: int


ONE = Case(1, 10, scaled(400, least=40))
TWENTY = Case(20, 80, scaled(4_000, least=400))


@dataclass(frozen=True, slots=True)
class Found:
    agents: int
    abandon_max: float
    seed: int
    dials: int
    answered: int
    abandoned: int
    calls_per_hour: float
    # The largest expected share of abandoned calls at any dial: as Postgres has it, by the rates that were reckoned
    # with, which is what the bound is about; and by the carrier's ledger and the true rate. It knows of answers first.
    bound_share_max: float
    expected_share_max: float
    unfinished: int

    @property
    def share(self) -> float:
        return self.abandoned / max(self.answered, 1)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true", help="write docs/proof/overdial.md")
    chosen = parser.parse_args()
    # Beside each other: one agent's calls are four a second at most.
    alone, (kept, over) = await asyncio.gather(with_one_agent(), with_twenty())
    worth = mean(found.calls_per_hour for found in over) / mean(found.calls_per_hour for found in kept)
    everybody = [*alone, *kept, *over]
    met = (
        not any(found.abandoned for found in (*alone, *kept))
        and all(found.share <= ABANDON_MAX for found in over)
        and all(found.bound_share_max <= found.abandon_max + ROUNDING for found in everybody)
        and worth >= WORTH_MIN
        and not any(found.unfinished for found in everybody)
    )
    ours = {
        "abandoned_with_one_agent": float(sum(found.abandoned for found in alone)),
        "abandoned_by_default": float(sum(found.abandoned for found in kept)),
        "share_max": round(max(found.share for found in over), 4),
        "bound_share_max": max(found.bound_share_max for found in over),
        "expected_share_max": max(found.expected_share_max for found in over),
        "calls_per_hour": round(mean(found.calls_per_hour for found in over)),
    }
    peers = {"by default": {"calls_per_hour": round(mean(found.calls_per_hour for found in kept))}}
    goal = (
        f"nobody abandoned by default and with one agent, at most {ABANDON_MAX:.0%} with abandon_max {ABANDON_MAX:g}, "
        f"and then at least {WORTH_MIN:g} times the calls of an hour"
    )
    report = Report("overdial", ours, peers, round(worth, 2), goal, met)
    if chosen.keep:
        keep(report, everybody)
    finish(report)


async def with_one_agent() -> list[Found]:
    return [await measure(ONE, abandon_max, 1) for abandon_max in (0.0, ABANDON_MAX)]


async def with_twenty() -> tuple[list[Found], list[Found]]:
    kept = [await measure(TWENTY, 0.0, seed) for seed in SEEDS]
    return kept, [await measure(TWENTY, ABANDON_MAX, seed) for seed in SEEDS]


def keep(report: Report, runs: list[Found]) -> None:
    date, commit = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), commit_name()
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = {
        "commit": commit,
        "date": date,
        "total": asdict(report),
        "runs": [{"share": round(run.share, 4), **asdict(run)} for run in runs],
    }
    (FOLDER / "overdial.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    rows = "\n".join(
        f"| {run.agents} | {run.abandon_max:g} | {run.seed} | {run.dials} | {run.answered} | {run.abandoned} "
        f"| {run.share:.2%} | {run.bound_share_max:.4f} | {run.calls_per_hour:.0f} |"
        for run in runs
    )
    verdict = "Every goal was met." if report.met else "Not every goal was met."
    page = PAGE.format(date=date, commit=commit, verdict=verdict, worth=report.ratio, rows=rows)
    (FOLDER / "overdial.md").write_text(page, encoding="utf-8")


async def measure(case: Case, abandon_max: float, seed: int) -> Found:
    async with platform(time_scale=1.0, pods=case.agents, people=PEOPLE, seed=seed, setup_s=0.0) as running:
        numbers = await prepare(running.client, [MERCHANT], [case.channels])
        if abandon_max:
            await allow(running, abandon_max)
        await note_intents(running)
        began_s = time.time()
        await load(running.database, spread(0, case.leads, [MERCHANT], lambda _: began_s))
        await all_called(running, case)
        dials = await running.dials()
        judge(dials, numbers)
        bound = await bound_share(running, case.agents)
        found = weigh(case, abandon_max, seed, dials, await running.served(), await waiting(running), bound)
    print(json.dumps({"share": round(found.share, 4), **asdict(found)}), file=sys.stderr, flush=True)
    return found


async def allow(running: BenchPlatform, abandon_max: float) -> None:
    """Said on every layer that could say less, by those who may."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with aiohttp.ClientSession(running.url, headers=headers) as session:
        for path in (f"/api/v1/resellers/{RESELLER}/policy", f"/api/v1/merchants/{MERCHANT}/policy"):
            async with session.put(path, json={"abandon_max": abandon_max}) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")
    await asyncio.sleep(POLICY_KNOWN_S)


async def waiting(running: BenchPlatform) -> int:
    """Leads that were never dialled. One that was abandoned comes again later, which is as it should be: its attempt
    does not count, and is there."""
    return int(
        await running.database.fetchval(
            "SELECT count(*) FROM leads AS l WHERE l.status = 'BACKLOG'"
            " AND NOT EXISTS (SELECT FROM attempts AS a WHERE a.lead_id = l.id)"
        )
    )


async def all_called(running: BenchPlatform, case: Case) -> None:
    """Until every lead was called once and every call is over."""
    slowest_s = 60.0 + 3 * case.leads * (RING_S + ANSWERING * TALK_S) / case.agents
    deadline_s = time.time() + slowest_s
    while time.time() < deadline_s:
        await asyncio.sleep(1.0)
        live = int(await running.database.fetchval("SELECT count(*) FROM leads WHERE status = 'PROCESSING'"))
        if not live and (await waiting(running) == 0 or await unfinished(running.database) == 0):
            return


async def note_intents(running: BenchPlatform) -> None:
    """Postgres itself notes between which moments the gate counted: the begin of its transaction, and the insert."""
    await running.database.execute(
        """
        CREATE TABLE bench_intents (id uuid PRIMARY KEY, tx xid8, began timestamptz, written timestamptz);
        CREATE FUNCTION bench_note_intents() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO bench_intents
            SELECT n.id, pg_current_xact_id(), now(), clock_timestamp() FROM inserted AS n;
            RETURN NULL;
        END $$;
        CREATE TRIGGER bench_intents AFTER INSERT ON attempts REFERENCING NEW TABLE AS inserted
            FOR EACH STATEMENT EXECUTE FUNCTION bench_note_intents();
        """
    )


async def bound_share(running: BenchPlatform, agents: int) -> float:
    """For every transaction that dialled without keeping an agent: what rang so, and how many agents nobody had, less
    the tenth for callers. Read apart from the gate, after everything is over.

    The gate counts under its group's lock, so after the transaction before it has written and before its own insert:
    an answer in that moment turns a ringing call into a taken agent, before the count or after it. The bound has to
    hold at one of the moments in between."""
    rows = await running.database.fetch(
        "SELECT a.overdial_group IS NOT NULL AS is_unkept, a.answer_rate::float8 AS rate, i.tx::text AS tx,"
        " i.began, i.written, coalesce(l.asked_at, a.ended_at, now() + interval '1 day') AS answered,"
        " l.pod IS NOT NULL AS has_agent, coalesce(l.ended_at, now() + interval '1 day') AS freed"
        " FROM attempts AS a JOIN bench_intents AS i USING (id) LEFT JOIN allocations AS l ON l.id = a.id"
        " ORDER BY i.written"
    )
    worst, previous = 0.0, None
    for tx, group in groupby(enumerate(rows), key=lambda each: each[1]["tx"]):
        batch = list(group)
        last, newest = batch[-1]
        if not any(row["is_unkept"] for _, row in batch):
            continue
        near = rows[max(0, last - NEAR) : last + 1]
        first = max(newest["began"], previous or newest["began"])
        previous = newest["written"]
        changes = (row[name] for row in near for name in ("answered", "freed"))
        moments = [first, newest["written"], *(at for at in changes if first < at < newest["written"])]
        worst = max(worst, min(_share_at(at, tx, near, agents) for at in moments))
    return round(worst, 4)


def _share_at(at: datetime, tx: str, near: list[asyncpg.Record], agents: int) -> float:
    ringing = [row for row in near if row["is_unkept"] and (row["tx"] == tx or row["answered"] > at)]
    # An agent that was kept is taken from the dial on.
    taken = sum(
        row["has_agent"] and row["answered" if row["is_unkept"] else "written"] <= at < row["freed"]
        for row in near
    )
    free = max(agents - agents // 10 - taken, 0)
    return missed_share(len(ringing), free, mean(row["rate"] for row in ringing)) if ringing else 0.0


def weigh(
    case: Case,
    abandon_max: float,
    seed: int,
    dials: list[Dial],
    served: dict[str, float],
    left: int,
    bound: float,
) -> Found:
    answered = [dial for dial in dials if dial.answered_at is not None]
    abandoned = [
        dial
        for dial in answered
        if served.get(dial.call_id, float("inf")) - (dial.answered_at or 0.0) > ABANDONED_AFTER_S
    ]
    # From the first dial to the last: what begins and ends with few calls belongs to both ways alike.
    first_s, last_s = dials[0].requested_at, max(dial.requested_at for dial in dials)
    return Found(
        case.agents,
        abandon_max,
        seed,
        len(dials),
        len(answered),
        len(abandoned),
        round(3600 * len(dials) / (last_s - first_s), 0),
        bound,
        round(max(expected_share(case.agents, dial, dials) for dial in dials), 4),
        left,
    )


def expected_share(agents: int, newest: Dial, dials: list[Dial]) -> float:
    """Of those who will answer among the phones that ring at this dial, how many more than agents that do not talk."""
    at_s = newest.requested_at
    live = [
        dial
        for dial in dials[max(0, newest.no - NEAR) : newest.no + 1]
        if dial.requested_at <= at_s and (dial.ended_at or at_s + 1) > at_s
    ]
    talking = sum(dial.answered_at is not None and dial.answered_at <= at_s for dial in live)
    return missed_share(len(live) - talking, max(agents - talking, 0), ANSWERING)


def missed_share(ringing: int, free: int, rate: float) -> float:
    missed = sum(
        (many - free) * comb(ringing, many) * rate**many * (1 - rate) ** (ringing - many)
        for many in range(free + 1, ringing + 1)
    )
    return missed / (ringing * rate) if missed else 0.0


if __name__ == "__main__":
    uvloop.run(main())
