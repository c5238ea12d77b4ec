"""Does overdialling keep its bound, and what is it worth? And is nobody abandoned where nobody asked for it?

One agent, ten channels, a quarter answering, 400 leads: nobody may be abandoned, by default and with `abandon_max`
0.03, for two phones that ring would already risk an eighth of those who answer. Then twenty agents and 80 channels,
4,000 leads, three seeds: by default nobody is abandoned; with 0.03 at most 3 % of those who answer, and the calls of
an hour are compared with the default's. The platform itself is measured, not a model of it.

Abandoned is who answers and has no agent within 2 s: from the carrier's ledger and the pods' own records.

    BENCH_SCALE=0.1          a tenth of the leads, to see that it runs
    BENCH_OVERDIAL_SEEDS     `1,2,3` unless told otherwise
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from math import comb
from statistics import mean

import aiohttp
import uvloop

from bench._calls import RESELLER, judge, load, prepare, spread, unfinished
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
    alone = [await measure(ONE, abandon_max, 1) for abandon_max in (0.0, ABANDON_MAX)]
    kept = [await measure(TWENTY, 0.0, seed) for seed in SEEDS]
    over = [await measure(TWENTY, ABANDON_MAX, seed) for seed in SEEDS]
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
    finish(Report("overdial", ours, peers, round(worth, 2), goal, met))


async def measure(case: Case, abandon_max: float, seed: int) -> Found:
    async with platform(time_scale=1.0, pods=case.agents, people=PEOPLE, seed=seed, setup_s=0.0) as running:
        numbers = await prepare(running.client, [MERCHANT], [case.channels])
        if abandon_max:
            await allow(running, abandon_max)
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


async def bound_share(running: BenchPlatform, agents: int) -> float:
    """At every dial without an agent kept: what rang so, and how many agents nobody had, less the tenth for callers.
    Read apart from the gate, after everything is over. Dials of one transaction count together."""
    rows = await running.database.fetch(
        "SELECT a.overdial_group IS NOT NULL AS is_unkept, a.answer_rate::float8 AS rate, a.intent_at AS began,"
        " coalesce(l.asked_at, a.ended_at, 'infinity') AS answered, l.pod IS NOT NULL AS has_agent,"
        " coalesce(l.ended_at, 'infinity') AS freed"
        " FROM attempts AS a LEFT JOIN allocations AS l ON l.id = a.id ORDER BY a.intent_at"
    )
    worst = 0.0
    for place, newest in enumerate(rows):
        if not newest["is_unkept"]:
            continue
        at = newest["began"]
        near = [row for row in rows[max(0, place - NEAR) : place + NEAR] if row["began"] <= at]
        rates = [row["rate"] for row in near if row["is_unkept"] and row["answered"] > at]
        taken = sum(row["has_agent"] and row["answered"] <= at < row["freed"] for row in near)
        free = max(agents - agents // 10 - taken, 0)
        worst = max(worst, missed_share(len(rates), free, mean(rates)) if rates else 0.0)
    return round(worst, 4)


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
