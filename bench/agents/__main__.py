"""Does everybody who answers get an agent, whatever fails?

Two processes of each role behind nginx, pods of the agent library with their default heartbeat, a simulated carrier
with accounts at Twilio, Plivo and Exotel, 30 channels, once with 40 pods and once with 20. Leads of a gold and a
standard merchant are offered at 3 a second, talks last 8 to 20 s, and 20 people ring us. Faults strike one by one,
each on an installation of its own, again and again until 300 people have answered, 60 of them while an engine was
away where the fault takes one away. Judged from the carrier's ledger and the pods' own records. One line
of JSON for each fault and number of pods, and one in total.

    --quick                   fewer answers: does it run?
    --keep                    write docs/proof/agents.json and agents.md
    BENCH_AGENTS_FAULT        one fault or several, with commas between; all unless told otherwise
    BENCH_AGENTS_PODS         `40,20` unless told otherwise
    BENCH_AGENTS_ANSWERS      300, and 40 with --quick
    BENCH_AGENTS_AWAY         60, and 8 with --quick
    BENCH_AGENTS_AT_ONCE      1; so many faults at a time, each on an installation of its own
    BENCH_AGENTS_KEEP         a folder that keeps the logs of every run
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.agents import proof, scenario
from bench.agents.faults import FAULTS, Case, Strike
from bench.agents.installation import Installation, open_installation
from bench.agents.judge import Evidence, Verdict, judge
from bench.agents.scenario import ANSWERS_MIN, AWAY_MIN, Extent
from bench.report import Report, finish
from tests.support.agent.pod_records import read_pods

PODS = (40, 20)
WARM_UP_ANSWERS = 15
# The longest talk, and two looks of the checker at calls whose end nobody told: it asks the carrier every minute.
SETTLED_LIMIT_S = 180.0
POLL_S = 0.5
# The processes of one installation at a time: those of several would keep a machine of two cores from answering.
STARTING = asyncio.Lock()
GOAL = (
    "nobody without an agent while one was free, nobody dropped, every answer a document within 1.2 s, every lead "
    "recorded as the ledger tells, dials within 5 s of healing and at 1/s without Valkey"
)


async def main() -> None:
    extent = Extent.chosen(is_quick="--quick" in sys.argv)
    wanted = plan()
    waiting = iter(wanted)
    verdicts: list[Verdict] = []

    async def run_those_that_wait() -> None:
        for pods, fault in waiting:
            verdict = await attempted(fault, pods, extent)
            verdicts.append(verdict)
            verdicts.sort(key=lambda one: wanted.index((one.pods, one.fault)))
            print(json.dumps(verdict.line()), flush=True)
            if "--keep" in sys.argv:
                proof.keep([verdict])

    at_once = int(os.environ.get("BENCH_AGENTS_AT_ONCE", "1"))
    await asyncio.gather(*(run_those_that_wait() for _ in range(at_once)))
    finish(total(verdicts))


def plan() -> list[tuple[int, str]]:
    wanted = os.environ.get("BENCH_AGENTS_FAULT", "")
    chosen = [name for name in wanted.split(",") if name] or list(FAULTS)
    unknown = sorted(set(chosen) - FAULTS.keys())
    if unknown:
        sys.exit(f"no such fault: {', '.join(unknown)}. There are: {', '.join(FAULTS)}")
    numbers = map(int, os.environ.get("BENCH_AGENTS_PODS", ",".join(map(str, PODS))).split(","))
    return [(pods, fault) for pods in numbers for fault in chosen]


async def attempted(fault: str, pods: int, extent: Extent) -> Verdict:
    """A run that breaks has met nothing, and the others go on."""
    try:
        return await run(fault, pods, extent)
    except Exception as error:
        traceback.print_exc()
        return Verdict(fault, pods, examples={"broke": [repr(error)]})


async def run(fault: str, pods: int, wanted: Extent) -> Verdict:
    case = FAULTS[fault]
    extent = wanted.of(takes_engine_away=case.takes_engine_away, patience=case.patience)
    with _folder(f"{fault}-{pods}") as folder:
        async with AsyncExitStack() as stack:
            async with STARTING:
                place = await stack.enter_async_context(
                    open_installation(folder, pods=pods, ring_s=case.ring_s)
                )
            began_s = time.time()
            await place.offer(extent.limit_s)
            callers = asyncio.create_task(ring(place, extent.answers), name="callers")
            strikes = await strike(place, case, extent, began_s)
            await callers
            await place.stop_dialling()
            unsettled = await settled(place)
            attempts, leads = await place.recorded()
            evidence = Evidence(
                dials=await place.dials(),
                answered=await place.answered(),
                pods=read_pods(place.fleet.lives(), await place.tiers()),
                strikes=strikes,
                attempts=attempts,
                leads=leads,
                unsettled=unsettled,
            )
    verdict = judge(fault, pods, evidence, away_min=extent.answers_away)
    print(f"{fault} with {pods} pods: {time.time() - began_s:.0f} s", file=sys.stderr)
    return verdict


async def strike(place: Installation, case: Case, extent: Extent, began_s: float) -> list[Strike]:
    """Again and again, until enough people have answered."""
    await answered(place, WARM_UP_ANSWERS, began_s + extent.limit_s)
    strikes: list[Strike] = []
    while time.time() < began_s + extent.limit_s:
        strikes.append(await case.inflict(place))
        await asyncio.sleep(case.recovery_s)
        moments = await answers(place)
        away = sum(any(one.engines and one.span.has(moment) for one in strikes) for moment in moments)
        print(f"  {len(strikes)} strikes, {len(moments)} answers, {away} while away", file=sys.stderr)
        if len(moments) >= extent.answers and away >= extent.answers_away:
            break
    return strikes


async def answered(place: Installation, many: int, deadline_s: float) -> None:
    while time.time() < deadline_s:
        if len(await answers(place)) >= many:
            return
        await asyncio.sleep(POLL_S)
    raise RuntimeError(f"fewer than {many} people answered: see the logs in {place.folder}")


async def answers(place: Installation) -> list[float]:
    """When people whom we called answered."""
    return [call.answered_at for call in await place.answered() if call.direction == "outbound"]


async def ring(place: Installation, answers: int) -> None:
    """Callers, spread over the time that the answers take, and never all at once."""
    for no in range(scenario.CALLERS):
        await asyncio.sleep(max(2.0, answers / 2.0 / scenario.CALLERS))
        await place.ring(no)


async def settled(place: Installation) -> int:
    """How many attempts have no end yet when every call has ended, or at the limit."""
    deadline_s = time.time() + SETTLED_LIMIT_S
    while time.time() < deadline_s:
        is_quiet = all(call.ended_at is not None for call in await place.answered())
        if is_quiet and await place.unsettled() == 0:
            return 0
        await asyncio.sleep(POLL_S)
    return await place.unsettled()


def total(verdicts: Sequence[Verdict]) -> Report:
    sums = (
        "answered",
        "answered_while_engine_away",
        "without_agent",
        "without_agent_while_one_was_free",
        "two_calls_on_exclusive_pod",
        "answers_not_documents",
        "answers_never",
        "leads_recorded_wrongly",
        "callers_without_agent",
        "people_at_killed_pods",
        "people_dropped",
        "exotel_without_agent",
        "exotel_without_agent_unexcused",
    )
    ours = {name: float(sum(getattr(one, name) for one in verdicts)) for name in sums}
    ours["dials_again_s"] = max(one.dials_again_s for one in verdicts)
    rates = [one.dials_per_s_without_valkey for one in verdicts]
    ours["dials_per_s_without_valkey"] = min((rate for rate in rates if rate is not None), default=0.0)
    met = sum(one.met for one in verdicts)
    return Report(
        "agents", ours, {}, round(met / len(verdicts), 2), GOAL, met == len(verdicts) and is_enough(verdicts)
    )


def is_enough(verdicts: Sequence[Verdict]) -> bool:
    """A run with fewer faults or answers than the goal asks for shows that it runs, and no more."""
    for pods in PODS:
        ran = {one.fault: one for one in verdicts if one.pods == pods}
        if ran.keys() != FAULTS.keys() or sum(one.answered for one in ran.values()) < ANSWERS_MIN:
            return False
        away = [
            ran[name].answered_while_engine_away for name, case in FAULTS.items() if case.takes_engine_away
        ]
        if min(away) < AWAY_MIN:
            return False
    return True


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    kept = os.environ.get("BENCH_AGENTS_KEEP")
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        try:
            yield Path(folder)
        finally:
            if kept:
                target = Path(kept) / name
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(folder, target, ignore=shutil.ignore_patterns("data"))


if __name__ == "__main__":
    uvloop.run(main())
