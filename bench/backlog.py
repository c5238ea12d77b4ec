"""Does a dial cost more when many leads wait?

Leads that are overdue pile up behind too few channels, and the channels dial as fast as calls end: the same work at
every size of the pile, 1,000, 100,000 and 1,000,000. What a dial costs our processes, Postgres and Valkey must not
depend on the pile, and neither may Valkey's memory: it holds the next leads of each flow, not the backlog.
"""

import sys
import time
from dataclasses import dataclass

import uvloop

from bench._calls import judge, load, prepare, spread, until
from bench.platform import SCALE, BenchPlatform, platform, scaled
from bench.report import Report, finish

MERCHANTS = [f"m{n}" for n in range(20)]
# With calls of some 0.4 s about 100 dials a second, well under what the machine carries.
CHANNELS = [5] * 10
TIME_SCALE = 0.05
# More than channels, so that those alone hold dials back.
PODS = 80
SIZES = (1_000, 100_000, 1_000_000)
SETTLE_S, MEASURED_S = 6.0, max(5.0, 20.0 * SCALE)
# What is dialled while we look: so many more than the size are there at the beginning.
DIALLED_MAX = 130 * int(SETTLE_S + MEASURED_S + 4)
FLAT = 1.2


@dataclass(frozen=True, slots=True)
class Cost:
    """Per dial, in ms of CPU."""

    total_ms: float
    figures: dict[str, float]


async def main() -> None:
    found: dict[int, Cost] = {}
    async with platform(time_scale=TIME_SCALE, pods=PODS) as running:
        numbers = await prepare(running.client, MERCHANTS, CHANNELS)
        for size in SIZES:
            await pile_up(running, scaled(size, least=min(size, 1000)))
            found[size] = await cost(running)
            print(f"{size:,} waiting: {found[size].figures}", file=sys.stderr)
        judge(await running.dials(), numbers)
    small, middle, large = (found[size] for size in SIZES)
    ratio = max(c.total_ms for c in found.values()) / min(c.total_ms for c in found.values())
    memory = large.figures["valkey_mb"] / middle.figures["valkey_mb"]
    finish(
        Report(
            "backlog",
            large.figures,
            {"1,000 waiting": small.figures, "100,000 waiting": middle.figures},
            round(ratio, 2),
            f"CPU per dial flat within {FLAT:g}x up to a million waiting, Valkey's memory no more than at 100,000",
            ratio <= FLAT and memory <= FLAT,
        )
    )


async def pile_up(running: BenchPlatform, size: int) -> None:
    """Fill up to the size, and let Postgres do now what it would do of itself within minutes."""
    loaded, waiting = await counts(running)
    due_s = time.time()
    await load(running.database, spread(loaded, size + DIALLED_MAX - waiting, MERCHANTS, lambda n: due_s))
    await running.database.execute("VACUUM (ANALYZE) leads")


async def counts(running: BenchPlatform) -> tuple[int, int]:
    """All leads, and those that wait."""
    row = await running.database.fetchrow(
        "SELECT count(*), count(*) FILTER (WHERE status = 'BACKLOG') FROM leads"
    )
    assert row is not None
    return row[0], row[1]


async def cost(running: BenchPlatform) -> Cost:
    seen = len(await running.dials())
    await until(time.time() + SETTLE_S)
    before = await running.meter.read()
    await until(before.at_s + MEASURED_S)
    spent = await running.meter.since(before)
    valkey_mb = await running.valkey_mb()
    dials = sum(spent.began_s <= dial.requested_at < spent.ended_s for dial in await running.dials(seen))
    per_dial = spent.cpu_ms_per(dials)
    parts = {f"{group}_ms": per_dial[group] for group in ("ours", "postgres", "valkey")}
    of_carrier = round(per_dial["ours"] / max(per_dial["carrier"], 0.01), 2)
    _, waiting = await counts(running)
    total_ms = round(sum(parts.values()), 2)
    return Cost(
        total_ms,
        {
            "cpu_ms": total_ms,
            **parts,
            "of_carrier": of_carrier,
            "transactions": round(spent.transactions / max(dials, 1), 2),
            "dials_per_s": round(dials / spent.took_s, 1),
            "valkey_mb": round(valkey_mb, 1),
            "waiting": float(waiting),
        },
    )


if __name__ == "__main__":
    uvloop.run(main())
