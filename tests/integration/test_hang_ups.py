"""Hang-up orders: the loop requests the carrier until the calls are over."""

from collections.abc import AsyncIterator
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.api.world import ApiWorld, open_api
from trunkline.dispatch.hang_ups import RETRY_S, HangUps
from trunkline.model import new_id
from trunkline.telephony.carrier import (
    AlreadyOver,
    HangUpAsked,
    HangUpResult,
    Limits,
    NoSuchCall,
    Unavailable,
)
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

DIAL = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer, state, carrier_call_id, hang_up_at)
VALUES ($1, $2, 1, 'a', 'a1', gen_random_uuid(), 1, 'twilio', $5, '+14155550123', '+14155550100', 'test', $3, $4, now())
"""


class Carriers:
    """A carrier that answers as the test says, and remembers what it was asked."""

    def __init__(self, result: HangUpResult, *, can_hang_up: bool = True) -> None:
        self.result = result
        self.limits = Limits(starts_per_s=1, queues_excess=False, list_lag_s=0, can_hang_up=can_hang_up)
        self.asked: list[str] = []

    def get(self, carrier: str, account: str) -> "Carriers":
        if account == "gone":
            raise CarrierConfigError("no such account")
        return self

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        self.asked.append(call_id)
        return self.result


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def wanted(
    world: ApiWorld, state: str = "ringing", call_id: str | None = "CA1", account: str = "default"
) -> UUID:
    lead, attempt_id = await world.make_lead("a1"), new_id()
    async with world.database.connection() as connection:
        await connection.execute(DIAL, attempt_id, UUID(lead["id"]), state, call_id, account)
    return attempt_id


async def again_in_s(world: ApiWorld, attempt_id: UUID) -> float | None:
    async with world.database.connection() as connection:
        left: Any = await connection.fetchval(
            "SELECT extract(epoch FROM hang_up_at - now())::float8 FROM attempts WHERE id = $1", attempt_id
        )
    return cast("float | None", left)


def hang_ups(world: ApiWorld, carriers: Carriers) -> HangUps:
    return HangUps(world.database, cast(CarrierDirectory, carriers))


async def test_a_hang_up_is_requested_once_and_again_only_after_a_while(world: ApiWorld) -> None:
    attempt_id, carriers = await wanted(world), Carriers(HangUpAsked("completed"))
    loop = hang_ups(world, carriers)
    assert (await loop.run_once(), await loop.run_once()) == (1, 0)
    assert carriers.asked == ["CA1"]
    left = await again_in_s(world, attempt_id)
    assert left is not None
    assert left > 0, "until the end is known, it is wanted"


async def test_a_hang_up_waits_until_the_carriers_call_id_is_known(world: ApiWorld) -> None:
    attempt_id, carriers = await wanted(world, "dialing", None), Carriers(HangUpAsked("completed"))
    loop = hang_ups(world, carriers)
    assert await loop.run_once() == 0
    async with world.database.connection() as connection:
        await connection.execute(
            "UPDATE attempts SET state = 'accepted', carrier_call_id = 'CA2' WHERE id = $1", attempt_id
        )
    assert await loop.run_once() == 1
    assert carriers.asked == ["CA2"]


@pytest.mark.parametrize(("state", "call_id"), [("ended", "CA1"), ("rejected", None)])
async def test_no_hang_up_is_requested_for_an_ended_attempt(
    world: ApiWorld, state: str, call_id: str | None
) -> None:
    attempt_id, carriers = await wanted(world, state, call_id), Carriers(AlreadyOver())
    await hang_ups(world, carriers).run_once()
    assert carriers.asked == []
    assert await again_in_s(world, attempt_id) is None


@pytest.mark.parametrize("result", [AlreadyOver(), NoSuchCall()])
@pytest.mark.parametrize(("state", "stays"), [("answered", True), ("absent", False)])
async def test_a_hang_up_order_stays_while_the_end_of_a_live_attempt_is_not_written(
    world: ApiWorld, result: HangUpResult, state: str, stays: bool
) -> None:
    attempt_id = await wanted(world, state)
    await hang_ups(world, Carriers(result)).run_once()
    assert (await again_in_s(world, attempt_id) is not None) == stays


async def test_a_failed_hang_up_request_is_retried_soon(world: ApiWorld) -> None:
    attempt_id, carriers = await wanted(world), Carriers(Unavailable("timeout"))
    loop = hang_ups(world, carriers)
    await loop.run_once()
    left = await again_in_s(world, attempt_id)
    assert left is not None
    async with world.database.connection() as connection:
        await connection.execute("UPDATE attempts SET hang_up_at = now()")
    await loop.run_once()
    assert carriers.asked == ["CA1", "CA1"]


async def test_a_carrier_that_cannot_hang_up_is_queried_once_a_minute(world: ApiWorld) -> None:
    """Exotel: a look costs as much of its quota as a dial, and cannot end the call sooner."""
    attempt_id = await wanted(world)
    await hang_ups(world, Carriers(Unavailable("no such request"), can_hang_up=False)).run_once()
    left = await again_in_s(world, attempt_id)
    assert left is not None
    assert left > RETRY_S


async def test_a_hang_up_order_of_a_missing_account_stays(world: ApiWorld) -> None:
    attempt_id = await wanted(world, account="gone")
    assert await hang_ups(world, Carriers(AlreadyOver())).run_once() == 1
    assert await again_in_s(world, attempt_id) is not None


async def test_two_hang_up_loops_do_not_request_the_same_call(world: ApiWorld) -> None:
    await wanted(world)
    carriers = Carriers(HangUpAsked("completed"))
    async with world.database.transaction() as tx:
        await tx.execute("SELECT 1 FROM attempts FOR NO KEY UPDATE")
        assert await hang_ups(world, carriers).run_once() == 0
    assert carriers.asked == []
