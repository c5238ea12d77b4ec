"""Merchants, numbers and leads for the benchmarks of calls, and what the carrier's ledger says about them."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.platform import BenchPlatform, Connection
from trunkline.client import TrunklineClient
from trunkline.model import new_id
from trunkline.telephony.simulator.ledger import Dial, double_dials, over_capacity

RESELLER, POOL = "bench", "bench"
AREA_CODES = (212, 303, 404, 512, 617, 702, 808, 916)
# The loader looks at every flow each 2 s; leads that are loaded so early are there in time.
HEAD_START_S = 5.0
_COLUMNS = (
    "id",
    "reseller_id",
    "merchant_id",
    "request_id",
    "request_hash",
    "phone",
    "pool_id",
    "scheduled_at",
    "due_at",
)


@dataclass(frozen=True, slots=True)
class BenchLead:
    """Each has a number of its own, so that the ledger's dials can be told apart."""

    no: int
    merchant_id: str
    due_s: float

    @property
    def phone(self) -> str:
        return f"+1{AREA_CODES[self.no % len(AREA_CODES)]}{2_000_000 + self.no // len(AREA_CODES)}"


async def prepare(
    client: TrunklineClient, merchants: Sequence[str], channels: Sequence[int]
) -> dict[str, int]:
    """A pool, its merchants and its numbers; the channels by number."""
    await client.create_reseller(RESELLER, "Benchmark")
    await client.create_pool(POOL, "Benchmark", reseller_id=RESELLER)
    for merchant_id in merchants:
        await client.create_merchant(
            merchant_id, merchant_id, reseller_id=RESELLER, default_region="US", default_pool=POOL
        )
    numbers = {f"+1415{2_000_000 + n}": count for n, count in enumerate(channels)}
    for e164, count in numbers.items():
        await client.create_number(e164, pool=POOL, carrier="twilio", max_channels=count)
    return numbers


async def load(database: Connection, leads: Iterable[BenchLead]) -> None:
    """Straight into the table: ingest is a question of its own."""
    await database.copy_records_to_table("leads", columns=_COLUMNS, records=map(_row, leads))


def _row(lead: BenchLead) -> tuple[object, ...]:
    due_at = datetime.fromtimestamp(lead.due_s, UTC)
    return (
        new_id(),
        RESELLER,
        lead.merchant_id,
        str(lead.no),
        bytes(32),
        lead.phone,
        POOL,
        due_at,
        due_at,
    )


async def unfinished(database: Connection) -> int:
    return int(await database.fetchval("SELECT count(*) FROM leads WHERE status <> 'FINISHED'"))


async def until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - time.time()))


async def until_finished(platform: BenchPlatform, limit_s: float = 30.0) -> int:
    """How many leads are still not finished when nothing changes any more, or at the limit."""
    deadline_s = time.time() + limit_s
    left = await unfinished(platform.database)
    while left and time.time() < deadline_s:
        await asyncio.sleep(0.5)
        left = await unfinished(platform.database)
    return left


def judge(dials: Sequence[Dial], numbers: dict[str, int]) -> None:
    """A fast dialler that rings somebody twice is worth nothing."""
    doubled, over = double_dials(dials), over_capacity(dials, numbers)
    if doubled or over:
        raise RuntimeError(
            f"the carrier's ledger shows {len(doubled)} double dials, {len(over)} numbers over"
        )


def lateness_ms(dials: Iterable[Dial], leads: Iterable[BenchLead]) -> list[float]:
    """Of each dial: the moment the carrier had the request, against the lead's due. An early one is no result."""
    due_s = {lead.phone: lead.due_s for lead in leads}
    late_ms = [1000 * (dial.requested_at - due_s[dial.to]) for dial in dials if dial.to in due_s]
    if late_ms and min(late_ms) < 0:
        raise RuntimeError(f"a call left {-min(late_ms):.3f} ms before its time")
    return late_ms


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def spread(
    first: int, count: int, merchants: Sequence[str], due_s: Callable[[int], float]
) -> Iterator[BenchLead]:
    """Leads numbered from `first`, merchants in turn."""
    for n in range(count):
        yield BenchLead(first + n, merchants[n % len(merchants)], due_s(n))
