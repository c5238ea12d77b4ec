"""The world of the demo: two merchants of one reseller, a shared pool of numbers, and people to call."""

import random
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trunkline.client import ApiError, TrunklineClient

RESELLER = "demo"
MERCHANTS = ("demo-clinic", "demo-shop")
POOL = "demo"
# Number and its channels: 30 in all, enough for about 25 simulated calls a second.
NUMBERS = {"+14155550100": 5, "+14155550101": 10, "+14155550102": 15}
LEADS_PER_S = 25.0
AREA_CODES = (212, 303, 404, 512, 617, 702, 808, 916)
# Time to load the leads before the first is due, so that none is late from the start.
HEAD_START_S = 1.0


@dataclass(frozen=True, slots=True)
class DemoLead:
    merchant_id: str
    request_id: str
    phone: str
    scheduled_at: datetime


async def prepare(client: TrunklineClient) -> None:
    """Create what is missing: the demo may run again on the same folder."""
    await _once(client.create_reseller(RESELLER, "Demo"))
    await _once(client.create_pool(POOL, "Demo numbers", reseller_id=RESELLER))
    for merchant_id in MERCHANTS:
        await _once(
            client.create_merchant(
                merchant_id, merchant_id, reseller_id=RESELLER, default_region="US", default_pool=POOL
            )
        )
    for e164, max_channels in NUMBERS.items():
        await _once(client.create_number(e164, pool=POOL, carrier="twilio", max_channels=max_channels))


async def _once(creation: Awaitable[object]) -> None:
    try:
        await creation
    except ApiError as error:
        if error.status != 409:
            raise


def people(run: str, count: int, seed: int) -> Iterator[DemoLead]:
    """Leads with due times spread over the run, each to another person."""
    dice = random.Random(seed)  # noqa: S311 (a demo, not a secret)
    first = datetime.now(UTC) + timedelta(seconds=HEAD_START_S + count / 400)
    for n in range(count):
        yield DemoLead(
            merchant_id=dice.choice(MERCHANTS),
            request_id=f"{run}-{n}",
            phone=f"+1{dice.choice(AREA_CODES)}{200 + n // 10_000}{n % 10_000:04d}",
            scheduled_at=first + timedelta(seconds=dice.random() * count / LEADS_PER_S),
        )
