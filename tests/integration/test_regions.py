"""Region affinity: a pool may prefer numbers of the callee's region."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.store import schedule


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.mark.parametrize(
    ("phone", "region"),
    [
        ("+14155550123", "+1415"),
        ("+442071234567", "+44"),
        ("+919876543210", "+91"),
        ("+79161234567", "+7"),
        ("+35312345678", "+353"),
        ("+4930123456", "+49"),
    ],
)
async def test_phone_region_returns_the_region_of_a_phone(dialing: Dialing, phone: str, region: str) -> None:
    assert await dialing.value("SELECT phone_region($1)", phone) == region


async def test_leads_and_numbers_have_a_region_only_in_a_pool_with_region_affinity(dialing: Dialing) -> None:
    lead = await dialing.lead("+14155550123")
    for prefers, region in ((False, None), (True, "+1415")):
        await dialing.run("UPDATE pools SET region_affinity = $1", prefers)
        async with dialing.database.connection() as conn:
            (place,) = await schedule.entries(conn, [lead])
            (head,) = await schedule.heads(conn, place.flow, horizon_s=60, limit=10)
            ((number, _),) = await schedule.numbers(conn)
        assert (place.region, head.region, number.region) == (region, region, region)
