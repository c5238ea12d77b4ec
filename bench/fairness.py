"""Does one merchant's mountain keep the others waiting?

Twenty small merchants with 100 leads each, first alone, then beside one with 100,000 that were there before them. All
want the same channels. Beside the mountain each merchant's fair share is one turn in 21 instead of one in 20, so fair
is 21/20 of what they wait alone. Seconds depend on how fast the machine is at that moment, turns do not: both are said.
Every number has one channel, so the ledger shows exactly how long a channel stood idle
while work waited: the time from the end of a call to the next one from the same number.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise

import uvloop

from bench._calls import BenchLead, judge, load, percentile, prepare, spread, until
from bench.platform import BenchPlatform, platform, scaled
from bench.report import Report, finish
from trunkline.telephony.simulator.ledger import Dial

SMALL = [f"small{n}" for n in range(20)]
LARGE = "large"
LEADS_SMALL, LEADS_LARGE = scaled(100, least=20), scaled(100_000, least=5_000)
# With calls of some 0.4 s about 130 dials a second: the small ones' 2,000 leads take a quarter of a minute.
CHANNELS = [1] * 60
TIME_SCALE = 0.05
PODS = 90
PATIENCE_S = 90.0
FAIR = (len(SMALL) + 1) / len(SMALL)
RATIO_MAX = 1.5
# Finding the next call takes its time. A channel that is idle for longer was forgotten.
IDLE_MAX_S = 1.0


async def main() -> None:
    async with platform(time_scale=TIME_SCALE, pods=PODS) as running:
        numbers = await prepare(running.client, [*SMALL, LARGE], CHANNELS)
        alone, _ = await wave(running, first=0)
        await load(running.database, spread(1_000_000, LEADS_LARGE, [LARGE], lambda n: time.time()))
        await running.database.execute("VACUUM (ANALYZE) leads")
        await until(time.time() + 5.0)
        beside, dials = await wave(running, first=500_000)
        judge(await running.dials(), numbers)
    idle_s = gaps(dials)
    fair = {name: round(FAIR * alone[name], 2) for name in ("wait_mean_s", "wait_last_s", "turns_mean")}
    ratio = beside["wait_mean_s"] / fair["wait_mean_s"]
    last = beside["wait_last_s"] / fair["wait_last_s"]
    ours = {
        **beside,
        "last_ratio": round(last, 2),
        "turns_ratio": round(beside["turns_mean"] / fair["turns_mean"], 2),
        "idle_p50_ms": round(1000 * percentile(idle_s, 0.5), 1),
        "idle_p99_ms": round(1000 * percentile(idle_s, 0.99), 1),
        "forgotten_channels": float(sum(gap > IDLE_MAX_S for gap in idle_s)),
    }
    goal = (
        f"the small ones wait at most {RATIO_MAX:g}x their fair share; "
        f"no channel idle for {IDLE_MAX_S:g} s while work waits"
    )
    met = max(ratio, last) <= RATIO_MAX and ours["forgotten_channels"] == 0
    finish(Report("fairness", ours, {"alone": alone, "fair share": fair}, round(ratio, 2), goal, met))


async def wave(running: BenchPlatform, first: int) -> tuple[Mapping[str, float], Sequence[Dial]]:
    """The small ones' leads fall due at one moment: how long they wait, and everybody's dials meanwhile."""
    seen = len(await running.dials())
    due_s = time.time() + 5.0
    leads = list(spread(first, LEADS_SMALL * len(SMALL), SMALL, lambda n: due_s))
    await load(running.database, leads)
    phones = {lead.phone for lead in leads}
    dials: list[Dial] = []
    await until(due_s)
    while sum(dial.to in phones for dial in dials) < len(leads):
        if time.time() > due_s + PATIENCE_S:
            raise RuntimeError("the small merchants' leads were not called in time")
        await until(time.time() + 1.0)
        dials = await running.dials(seen)
    last_s = max(dial.requested_at for dial in dials if dial.to in phones)
    meanwhile = [dial for dial in dials if due_s <= dial.requested_at <= last_s]
    rate = {"dials_per_s": round(len(meanwhile) / (last_s - due_s), 1)}
    return waits(leads, dials) | turns(phones, meanwhile) | rate, meanwhile


def waits(leads: Sequence[BenchLead], dials: Sequence[Dial]) -> dict[str, float]:
    """From due to the carrier: the mean of all, and how long the unluckiest merchant waited for its last lead."""
    by_phone = {lead.phone: lead for lead in leads}
    waited: dict[str, list[float]] = defaultdict(list)
    for dial in dials:
        if lead := by_phone.get(dial.to):
            waited[lead.merchant_id].append(dial.requested_at - lead.due_s)
    everybody = [wait_s for some in waited.values() for wait_s in some]
    return {
        "wait_mean_s": round(sum(everybody) / len(everybody), 2),
        "wait_last_s": round(max(map(max, waited.values())), 2),
    }


def turns(phones: Set[str], dials: Sequence[Dial]) -> dict[str, float]:
    """How many dials there had been, on the mean, when a small one's came."""
    ordered = sorted(dials, key=lambda dial: dial.requested_at)
    positions = [n for n, dial in enumerate(ordered, start=1) if dial.to in phones]
    return {"turns_mean": round(sum(positions) / len(positions), 1)}


def gaps(dials: Sequence[Dial]) -> list[float]:
    """How long each channel stood idle between two calls."""
    by_number: dict[str, list[Dial]] = defaultdict(list)
    for dial in sorted(dials, key=lambda dial: dial.started_at):
        by_number[dial.from_].append(dial)
    return [
        later.started_at - earlier.ended_at
        for calls in by_number.values()
        for earlier, later in pairwise(calls)
        if earlier.ended_at is not None
    ]


if __name__ == "__main__":
    uvloop.run(main())
