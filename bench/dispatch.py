"""What does a dial cost, through everything, and how many a second does the machine carry?

Every lead is called, answered and talked to: grant, gates, intent with a pod's slot, the carrier's API, four signed
webhooks and the answer, the pod's heartbeats and its release, finish. First 100 dials a second, with the CPU time of
our processes, of Postgres and of Valkey, and the transactions. Then the rate climbs until the machine no longer
carries it. Nobody else's dialler can be run beside it; what is known of the system that came after the source is
printed beside ours, as stated there.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import uvloop

from bench._calls import (
    HEAD_START_S,
    BenchLead,
    judge,
    lateness_ms,
    load,
    percentile,
    prepare,
    spread,
    until,
    until_finished,
)
from bench.platform import SCALE, BenchPlatform, platform
from bench.report import Report, finish
from trunkline.telephony.simulator.ledger import Dial

MERCHANTS = [f"m{n}" for n in range(10)]
CHANNELS = [50] * 20
# Calls last some 0.4 s: at 100 a second 40 are live.
TIME_SCALE = 0.05
# Enough for what is live while the rate climbs, and the tenth that is kept for callers.
PODS = 200
RATE_PER_S, WARM_UP_S, MEASURED_S = 100.0, 5.0, max(5.0, 25.0 * SCALE)
CLIMB_PER_S = (150.0, 200.0, 250.0, 300.0, 350.0, 400.0)
FIRST_OF_CLIMB = 1_000_000
STEP_S = max(3.0, 6.0 * SCALE)
# A step is carried if its leads were dialled on time: beyond this a queue is growing.
CARRIED_MS = 250.0
CPU_MAX_MS, TRANSACTIONS_MAX, VALKEY_MAX_PERCENT = 3.0, 3.0, 12.0
STATED = {"cpu_ms": 13.0, "transactions": 30.0}


async def main() -> None:
    async with platform(time_scale=TIME_SCALE, pods=PODS) as running:
        numbers = await prepare(running.client, MERCHANTS, CHANNELS)
        steady = await at_rate(running)
        carried, peak = 0.0, 0.0
        if "--steady" not in sys.argv:
            carried, peak = await climb(running, RATE_PER_S if steady["late_p99_ms"] <= CARRIED_MS else 0.0)
        judge(await running.dials(), numbers)
    ours = {**steady, "carried_per_s": carried, "peak_per_s": peak}
    finish(
        Report(
            "dispatch",
            ours,
            {"the source's successor (stated)": STATED},
            round(ours["cpu_ms"] / STATED["cpu_ms"], 2),
            f"at {RATE_PER_S:g} dials/s under {CPU_MAX_MS:g} ms of our CPU and under {TRANSACTIONS_MAX:g} transactions "
            "per dial, Valkey at about a tenth of a core",
            is_met(ours),
        )
    )


def is_met(ours: Mapping[str, float]) -> bool:
    return (
        ours["dials_per_s"] > 0.98 * RATE_PER_S
        and ours["cpu_ms"] < CPU_MAX_MS
        and ours["transactions"] < TRANSACTIONS_MAX
        and ours["valkey_core_percent"] < VALKEY_MAX_PERCENT
    )


async def at_rate(running: BenchPlatform) -> dict[str, float]:
    start_s = time.time() + HEAD_START_S
    leads = list(stream(0, RATE_PER_S, start_s, WARM_UP_S + MEASURED_S + 1))
    await load(running.database, leads)
    await until(start_s + WARM_UP_S)
    before = await running.meter.read()
    await until(start_s + WARM_UP_S + MEASURED_S)
    cost = await running.meter.since(before)
    left = await until_finished(running)
    dials = [dial for dial in await running.dials() if cost.began_s <= dial.requested_at < cost.ended_s]
    late = lateness_ms(dials, leads)
    cpu_ms = cost.cpu_ms_per(len(dials))
    print(
        f"{len(dials) / cost.took_s:.0f} dials/s, {left} of {len(leads)} leads not finished, "
        f"carrier {cpu_ms['carrier']} ms per dial, pods {cpu_ms['pods']} ms",
        file=sys.stderr,
    )
    return {
        "dials_per_s": round(len(dials) / cost.took_s, 1),
        "cpu_ms": cpu_ms["ours"],
        # How fast the machine is cancels out: the carrier's work is the same in every run.
        "of_carrier": round(cpu_ms["ours"] / max(cpu_ms["carrier"], 0.01), 2),
        "carrier_ms": cpu_ms["carrier"],
        "pods_ms": cpu_ms["pods"],
        "postgres_ms": cpu_ms["postgres"],
        "valkey_ms": cpu_ms["valkey"],
        "valkey_core_percent": cost.core_percent("valkey"),
        "transactions": round(cost.transactions / max(len(dials), 1), 2),
        "late_p50_ms": round(percentile(late, 0.5), 1),
        "late_p99_ms": round(percentile(late, 0.99), 1),
        "unfinished": left,
    }


async def climb(running: BenchPlatform, carried: float) -> tuple[float, float]:
    """The highest rate that was carried on time, and the most dials in any one second."""
    seen = len(await running.dials())
    start_s = time.time() + HEAD_START_S
    steps: list[list[BenchLead]] = []
    for n, rate in enumerate(CLIMB_PER_S):
        no = FIRST_OF_CLIMB + sum(map(len, steps))
        steps.append(list(stream(no, rate, start_s + n * STEP_S, STEP_S)))
    await load(running.database, (lead for step in steps for lead in step))
    for n, (rate, step) in enumerate(zip(CLIMB_PER_S, steps, strict=True)):
        await until(start_s + (n + 1) * STEP_S + 0.5)
        dials = await running.dials(seen)
        late = lateness_ms(dials, step)
        on_time = sum(value <= CARRIED_MS for value in late) / len(step)
        print(
            f"{rate:g}/s: {on_time:.1%} within {CARRIED_MS:g} ms, p99 {percentile(late, 0.99):.0f} ms",
            file=sys.stderr,
        )
        if on_time < 0.99:
            break
        carried = rate
    return carried, peak_per_s(await running.dials(seen))


def stream(first: int, rate: float, began_s: float, lasting_s: float) -> Iterator[BenchLead]:
    """Leads due one after the other, at an even rate."""
    return spread(first, int(rate * lasting_s), MERCHANTS, lambda n: began_s + n / rate)


def peak_per_s(dials: Sequence[Dial]) -> float:
    by_second = Counter(int(dial.requested_at) for dial in dials)
    return float(max(by_second.values(), default=0))


if __name__ == "__main__":
    uvloop.run(main())
