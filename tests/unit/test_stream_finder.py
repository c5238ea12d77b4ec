"""Of which streams the carrier is asked to report: those whose pod may not name the call before it is over."""

from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from trunkline.model import Slot
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import CallToConnect, Connector, Stream
from trunkline.router.tokens import CallKeys, StreamKeys
from trunkline.routing import Allocation
from trunkline.store.allocations import Address

NOBODY = cast(Any, None)


class OnePod:
    async def begin(self, attempt_id: UUID, call: str) -> Allocation:
        return Allocation(attempt_id, call, Slot("va-0", 1, 7))

    async def allocate(self, call: str, merchant_id: str, *, attempt_id: UUID, may_wait: bool) -> Allocation:
        return Allocation(attempt_id, call, Slot("va-0", 1, 7))


async def is_asked(*known: Address, is_dialled: bool = True) -> bool:
    addresses = PodAddresses(NOBODY)
    for address in known:
        addresses.learn(address)
    secrets = ["a secret"]
    connector = Connector(
        cast(Any, OnePod()), addresses, StreamKeys.from_secrets(secrets), CallKeys.from_secrets(secrets),
        NOBODY, NOBODY, NOBODY, NOBODY,
    )  # fmt: skip
    found = await connector.find_stream(CallToConnect("CA1", uuid4(), is_dialled))
    assert isinstance(found, Stream)
    return found.wants_status


@pytest.mark.parametrize(
    ("interval_s", "asks"), [(1.0, False), (5.0, False), (5.5, True), (30.0, True), (None, True)]
)
async def test_the_carrier_reports_on_streams_of_pods_that_speak_rarely_or_never(
    interval_s: float | None, asks: bool
) -> None:
    assert await is_asked(Address(7, "va-0", "", interval_s=interval_s)) is asks


async def test_the_newest_process_of_a_pod_counts() -> None:
    before = Address(7, "va-0", "", interval_s=5.0)
    assert await is_asked(before, Address(8, "va-0", "", interval_s=30.0))
    assert not await is_asked(before, Address(8, "va-1", "", interval_s=30.0))


async def test_the_carrier_reports_on_streams_of_pods_that_are_not_known_here() -> None:
    assert await is_asked()


async def test_a_call_that_came_in_needs_no_witness() -> None:
    assert not await is_asked(Address(7, "va-0", "", interval_s=30.0), is_dialled=False)
