"""What does a fault at an account cost: its leads, its carrier, and its neighbours?

Two dispatchers, a simulated carrier, 900 leads that are due on an account which was well a moment ago, and beside it
one that stays well, with two leads a second. Each fault lasts three minutes, then it is healed:

    credentials    the carrier knows our password no more; healed by entering it again
    caller_id      our number is refused; leads go on through another one of the same account
    dns            the carrier's name cannot be resolved
    hanging        requests are taken and never answered
    unknown_code   one destination is refused with a code that is in no table, for ever

What reached the carrier is counted before it; what became of the leads is read from Postgres.

    --quick        90 leads and 30 s for each fault: does it run?
    --at-once      all faults at the same time: harder, and over in eight minutes
    --keep         write docs/proof/refusals.json and refusals.md
    BENCH_REFUSALS_FAULT   one fault or several, with commas between; all unless told otherwise
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from bench.refusals import proof
from bench.refusals.judge import Asked, Evidence, Goal, Verdict, judge
from bench.refusals.world import HEALTHY, HOST, KNOWN_AFTER_S, NO_HOST, Trouble, World, open_world
from bench.report import Report, finish

HEALTHY_PER_S = 2.0
# Of the leads, so many can go through the other number while the fault lasts.
OTHER_NUMBER_SHARE = 0.8
# The probe that is next when a fault ends may be five minutes away.
HEALED_LIMIT_S = 420.0
POLL_S = 1.0
WARM_UP = 3
LATEST_SHOWN = 5
# The carrier's list is asked about a call in doubt for ten minutes; nobody waits for that here.
_AGE_DOUBTS = """
UPDATE attempts
SET intent_at = intent_at - interval '15 minutes', send_at = send_at - interval '15 minutes', doubt_checks = 3,
    next_check_at = clock_timestamp()
WHERE state IN ('in_doubt', 'dialing') AND account = $1
"""
GOAL = (
    "at most 3 requests a minute to what is refused, one at a time, no lead lost by it, the healthy account less than "
    "a second late, everybody dialled after healing"
)


@dataclass(frozen=True, slots=True)
class Extent:
    leads: int = 900
    fault_s: float = 180.0


QUICK = Extent(90, 30.0)


@dataclass(frozen=True, slots=True)
class Fault:
    goal: Goal
    trouble: Callable[[str, Sequence[str]], Trouble]
    has_no_host: bool = False
    has_other_number: bool = False
    is_healed_by_hand: bool = False


def _refused(status: int, code: int, _number: str, _people: Sequence[str]) -> Trouble:
    return Trouble(refusal=(status, code))


def _caller_id(number: str, _people: Sequence[str]) -> Trouble:
    return Trouble(refusal=(400, 21210), from_=number)


def _hanging(_number: str, _people: Sequence[str]) -> Trouble:
    return Trouble()


def _one_destination(_number: str, people: Sequence[str]) -> Trouble:
    return Trouble(refusal=(400, 79999), to=people[0])


def _none(_number: str, _people: Sequence[str]) -> Trouble:
    return Trouble(to="nobody")


RESTS = Goal(per_minute_max=3)
# A cooldown of the whole account would be 20 s long at least.
NUMBER_RESTS = Goal(per_minute_max=3, other_number_pause_max_s=10.0)
FAULTS: Mapping[str, Fault] = {
    "credentials": Fault(RESTS, partial(_refused, 401, 20003), is_healed_by_hand=True),
    "caller_id": Fault(NUMBER_RESTS, _caller_id, has_other_number=True),
    "dns": Fault(RESTS, _none, has_no_host=True),
    # One request in five seconds, from the moment at which the first have timed out.
    "hanging": Fault(Goal(per_minute_max=13, from_s=15.0, at_a_time_max=4), _hanging),
    # Its pace lets the account dial 900 within 18 s, and the loader finds them within five.
    "unknown_code": Fault(Goal(per_minute_max=None, ended_max=1, others_within_s=25.0), _one_destination),
}


async def main() -> None:
    extent = QUICK if "--quick" in sys.argv else Extent()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with open_world(Path(folder), [HEALTHY, *FAULTS]) as world:
            await world.add(HEALTHY)
            turns = [plan()] if "--at-once" in sys.argv else [[fault] for fault in plan()]
            for faults in turns:
                numbers = {fault: await well_before(world, fault, extent) for fault in faults}
                runs = (run(world, fault, number, extent) for fault, number in numbers.items())
                for verdict in await asyncio.gather(*runs):
                    verdicts.append(verdict)
                    print(json.dumps(verdict.line()), flush=True)
                if "--keep" in sys.argv and "--at-once" not in sys.argv:
                    proof.keep(verdicts)
    finish(total(verdicts))


def plan() -> list[str]:
    chosen = [name for name in os.environ.get("BENCH_REFUSALS_FAULT", "").split(",") if name] or list(FAULTS)
    if unknown := sorted(set(chosen) - FAULTS.keys()):
        sys.exit(f"no such fault: {', '.join(unknown)}. There are: {', '.join(FAULTS)}")
    return chosen


async def run(world: World, name: str, number: str, extent: Extent, *, timed: bool = True) -> Verdict:
    fault = FAULTS[name]
    if fault.has_no_host:
        await world.point(name, NO_HOST)
    began_s = time.time()
    # Ahead of the fault: what is offered in one moment shall not be late because it is many.
    neighbours = [began_s + 3 + n / HEALTHY_PER_S for n in range(round(extent.fault_s * HEALTHY_PER_S))]
    healthy = dict(zip(world.people(len(neighbours)), neighbours, strict=True))
    await world.offer(HEALTHY, [*healthy], neighbours)
    people = world.people(extent.leads)
    trouble = world.gate.troubles[world.sids[name]] = fault.trouble(number, people)
    trouble.is_on = True
    await world.offer(name, people, [began_s] * extent.leads)
    print(f"{name}: the fault began", file=sys.stderr)
    await asyncio.sleep(began_s + extent.fault_s - time.time())
    healed_s = time.time()
    await heal(world, name, fault)
    print(f"{name}: the fault is over", file=sys.stderr)
    await settled(world, name, healed_s + HEALED_LIMIT_S)
    # Its last leads are due seconds after the fault is over.
    await settled(world, HEALTHY, time.time() + HEALED_LIMIT_S)
    seen = await evidence(world, name, number, people, healthy, began_s, healed_s)
    return judge(name, fault.goal, seen, timed=timed)


async def well_before(world: World, name: str, extent: Extent) -> str:
    """An account that has taken calls, so nothing is held back when its trouble begins; its number."""
    number = await world.add(name)
    if FAULTS[name].has_other_number:
        # So slow that leads are left for probes until the fault ends.
        await world.add_number(name, OTHER_NUMBER_SHARE * extent.leads / extent.fault_s)
    await asyncio.sleep(KNOWN_AFTER_S)
    for merchant in (name, HEALTHY):
        await world.offer(merchant, world.people(WARM_UP), [time.time()] * WARM_UP)
        await settled(world, merchant, time.time() + 60)
    return number


async def heal(world: World, name: str, fault: Fault) -> None:
    trouble = world.gate.troubles[world.sids[name]]
    # One destination is refused for ever: its lead ends.
    trouble.is_on = trouble.to is not None and name == "unknown_code"
    if fault.has_no_host:
        await world.point(name, HOST)
    if fault.is_healed_by_hand:
        await world.renew(name)
    if name == "hanging":
        await world.database.execute(_AGE_DOUBTS, name)


async def settled(world: World, merchant: str, deadline_s: float) -> None:
    """Until no lead of it waits, or the deadline."""
    while time.time() < deadline_s:
        waiting = await world.database.fetchval(
            "SELECT count(*) FROM leads WHERE merchant_id = $1 AND status <> 'FINISHED'", merchant
        )
        if waiting == 0:
            return
        await asyncio.sleep(POLL_S)


async def evidence(
    world: World,
    name: str,
    number: str,
    people: Sequence[str],
    healthy: Mapping[str, float],
    began_s: float,
    healed_s: float,
) -> Evidence:
    rows = await world.database.fetch(
        "SELECT l.status, l.outcome, l.phone, max(extract(epoch FROM a.accepted_at))::float8 AS dialled_s,"
        " string_agg(concat_ws(' ', a.state, a.end_reason, a.doubt_checks), ', ' ORDER BY a.attempt_no) AS attempts"
        " FROM leads AS l LEFT JOIN attempts AS a ON a.lead_id = l.id"
        " WHERE l.merchant_id = $1 AND l.phone = ANY($2) GROUP BY l.id",
        name,
        list(people),
    )
    dialled = [row["dialled_s"] for row in rows if row["dialled_s"] is not None]
    over = [row for row in rows if row["status"] == "FINISHED" and row["dialled_s"] is None]
    for row in over:
        print(f"{name}: {row['phone']} ended as {row['outcome']}: {row['attempts']}", file=sys.stderr)
    asked = {one.to: one.at_s for one in world.gate.asked[world.sids[HEALTHY]]}
    late_s = {phone: asked[phone] - due_s for phone, due_s in healthy.items() if phone in asked}
    for phone in sorted(late_s, key=lambda phone: -late_s[phone])[:LATEST_SHOWN]:
        after_s = healthy[phone] - began_s
        print(f"{name}: healthy lead due after {after_s:.1f} s, {late_s[phone]:.3f} s late", file=sys.stderr)
    of_account = await asked_of(world, name, began_s)
    return Evidence(
        began_s=began_s,
        healed_s=healed_s,
        leads=len(people),
        asked=[one for one in of_account if one.from_ == number],
        healthy_late_s=[*late_s.values()],
        healthy_leads=len(healthy),
        dialled=len(dialled),
        ended=len(over),
        waiting=len(rows) - len(dialled) - len(over),
        last_dialled_s=max(dialled, default=0.0),
        through_other_number=[one for one in of_account if one.from_ != number],
    )


async def asked_of(world: World, name: str, began_s: float) -> list[Asked]:
    """Where no carrier could be reached, what was sent is known to Postgres alone."""
    if not FAULTS[name].has_no_host:
        reached = sorted(world.gate.asked[world.sids[name]], key=lambda one: one.at_s)
        return [one for one in reached if one.at_s >= began_s]
    rows = await world.database.fetch(
        "SELECT extract(epoch FROM send_at)::float8 AS at_s, to_phone, from_phone,"
        " extract(epoch FROM coalesce(ended_at, accepted_at, send_at))::float8 AS done_s"
        " FROM attempts WHERE account = $1 AND coalesce(end_reason, '') NOT LIKE 'not_sent%' ORDER BY send_at",
        name,
    )
    sent = [Asked(row["at_s"], row["to_phone"], row["done_s"], row["from_phone"]) for row in rows]
    return [one for one in sent if one.at_s >= began_s]


def total(verdicts: Sequence[Verdict]) -> Report:
    met = sum(one.met for one in verdicts)
    ours = {
        "faults": float(len(verdicts)),
        "requests_per_minute_max": float(
            max(
                (
                    one.requests_per_minute_max
                    for one in verdicts
                    if FAULTS[one.fault].goal in (RESTS, NUMBER_RESTS)
                ),
                default=0,
            )
        ),
        "healthy_late_max_s": max(one.healthy_late_max_s for one in verdicts),
        "leads_ended": float(sum(one.leads_ended for one in verdicts)),
        "leads_waiting": float(sum(one.leads_waiting for one in verdicts)),
    }
    is_whole = {one.fault for one in verdicts} == FAULTS.keys() and "--quick" not in sys.argv
    return Report(
        "refusals", ours, {}, round(met / len(verdicts), 2), GOAL, met == len(verdicts) and is_whole
    )


if __name__ == "__main__":
    uvloop.run(main())
