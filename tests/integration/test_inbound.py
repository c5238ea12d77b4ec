"""Admission of calls that come in: the same channels and the same index as every dial, decided in Postgres."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.bus import channels, epoch
from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.dispatch.inbound import Inbound, Taken, Turned, inbound_attempt_id
from trunkline.store import schedule
from trunkline.store.database import Database

CALLER = "+14155550123"
_TAKE_CHANNEL = """
    INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                          to_phone, from_phone, dialer, state)
    VALUES (gen_random_uuid(), 'inbound', 1, 'a', 'a1', $1, $2, 'twilio', 'default', '+1', '+2', 'test', 'accepted')
"""


@dataclass
class Switchboard:
    world: ApiWorld
    inbound: Inbound
    bus: Bus
    number_id: str
    e164: str = "+14155550190"

    @property
    def database(self) -> Database:
        return self.world.database

    async def ring(
        self, call_id: str, from_: str = CALLER, to: str = "", account: str = "default"
    ) -> Taken | Turned:
        return await self.inbound.admit("twilio", account, call_id, to or self.e164, from_)

    async def policy(self, **body: object) -> None:
        path = f"/api/v1/numbers/{self.number_id}/inbound"
        expect(await self.world.admin.request("PUT", path, json=body), 200)

    async def channels(self) -> list[int]:
        async with self.database.connection() as conn:
            rows = await conn.fetch("SELECT channel_no FROM attempts WHERE holds_channel ORDER BY channel_no")
        return [row["channel_no"] for row in rows]

    async def end(self, call_id: str) -> None:
        async with self.database.connection() as conn:
            await conn.execute(
                "UPDATE attempts SET state = 'ended', holds_channel = false WHERE carrier_call_id = $1",
                call_id,
            )


@pytest.fixture
async def board(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Switchboard]:
    async with open_api(database_url) as world:
        number = {"e164": "+14155550190", "pool": "a1-pool", "carrier": "twilio", "max_channels": 2}
        made = expect(await world.admin.post("/api/v1/numbers", number), 201)
        bus = bus_connection.connect(redis_url, Keys(key_prefix))
        yield Switchboard(world, Inbound(world.database, bus, "test"), bus, made["id"])
        await bus.close()


async def test_a_call_takes_the_lowest_free_channel_and_the_numbers_merchant(board: Switchboard) -> None:
    first, second = await board.ring("CA1"), await board.ring("CA2")
    assert first == Taken(inbound_attempt_id("twilio", "CA1"), "a1")
    assert isinstance(second, Taken)
    assert await board.channels() == [1, 2]
    await board.end("CA1")
    assert isinstance(await board.ring("CA3"), Taken)
    async with board.database.connection() as conn:
        row = await conn.fetchrow("SELECT * FROM attempts WHERE carrier_call_id = 'CA3'")
    assert row is not None
    assert (row["channel_no"], row["direction"], row["state"]) == (1, "inbound", "answered")
    assert (row["to_phone"], row["from_phone"], row["reseller_id"]) == (board.e164, CALLER, "a")


async def test_an_inbound_call_over_capacity_is_stored_as_rejected_with_its_reason(
    board: Switchboard,
) -> None:
    for n in range(2):
        assert isinstance(await board.ring(f"CA{n}"), Taken)
    assert await board.ring("CA9") == Turned("CAPACITY_REJECTED")
    async with board.database.connection() as conn:
        row = await conn.fetchrow("SELECT * FROM attempts WHERE carrier_call_id = 'CA9'")
    assert row is not None
    assert (row["state"], row["end_reason"], row["channel_no"]) == ("rejected", "CAPACITY_REJECTED", None)
    assert not row["holds_channel"]


async def test_a_repeated_inbound_webhook_is_one_attempt_with_the_same_decision(board: Switchboard) -> None:
    first = await board.ring("CA1")
    assert await board.ring("CA1") == first
    assert await board.channels() == [1]
    for n in range(2, 4):
        await board.ring(f"CA{n}")
    assert await board.ring("CA3") == Turned("CAPACITY_REJECTED")
    await board.end("CA1")
    # A channel is free now, and still the webhook that comes again gets the answer of the first.
    assert await board.ring("CA3") == Turned("CAPACITY_REJECTED")
    again = await board.ring("CA1")
    assert isinstance(again, Taken)
    assert again.is_over


async def test_an_inbound_calls_channel_is_held_in_valkey_at_once(board: Switchboard) -> None:
    assert await epoch.begin(board.bus, 1) is not None
    assert await epoch.publish(board.bus, 1)
    await board.ring("CA1")
    (holder,) = await channels.holders(board.bus)
    assert (holder.attempt_id, holder.channel_no) == (inbound_attempt_id("twilio", "CA1"), 1)


async def test_an_inbound_calls_channel_is_restored_without_a_flow(board: Switchboard) -> None:
    await board.ring("CA1")
    async with board.database.connection() as conn:
        (holder,) = await schedule.holders(conn)
    assert (holder.attempt_id, holder.lead_id, holder.flow) == (
        inbound_attempt_id("twilio", "CA1"),
        None,
        None,
    )


async def test_concurrent_inbound_calls_never_exceed_the_channels(board: Switchboard) -> None:
    results = await asyncio.gather(*(board.ring(f"CA{n}") for n in range(20)))
    assert sum(isinstance(result, Taken) for result in results) == 2
    assert await board.channels() == [1, 2]


async def test_the_same_call_many_times_at_once_takes_one_channel(board: Switchboard) -> None:
    results = await asyncio.gather(*(board.ring("CA1") for _ in range(10)))
    assert len(set(results)) == 1
    assert await board.channels() == [1]


async def test_an_inbound_call_waits_for_a_dial_that_locks_the_number_and_counts_it(
    board: Switchboard,
) -> None:
    """A dial locks the number FOR SHARE until its commit. Counted before that, its channel would seem free."""
    async with board.database.connection() as dialer:
        transaction = dialer.transaction()
        await transaction.start()
        await dialer.execute("SELECT id FROM numbers WHERE id = $1 FOR SHARE", UUID(board.number_id))
        for channel_no in (1, 2):
            await dialer.execute(_TAKE_CHANNEL, UUID(board.number_id), channel_no)
        ringing = asyncio.create_task(board.ring("CA1"))
        await board.world.somebody_waits_for_a_lock()
        assert not ringing.done()
        await transaction.commit()
        assert await ringing == Turned("CAPACITY_REJECTED")


async def test_calls_above_a_lowered_maximum_count_against_an_inbound_call(board: Switchboard) -> None:
    for n in range(2):
        await board.ring(f"CA{n}")
    await board.end("CA0")
    path = f"/api/v1/numbers/{board.number_id}"
    expect(await board.world.admin.patch(path, {"max_channels": 1}), 200)
    # Channel 1 is free, and channel 2 is one call too many already.
    assert await board.channels() == [2]
    assert await board.ring("CA9") == Turned("CAPACITY_REJECTED")


async def test_a_number_without_channels_refuses_inbound_calls(board: Switchboard) -> None:
    expect(await board.world.admin.patch(f"/api/v1/numbers/{board.number_id}", {"max_channels": 0}), 200)
    assert await board.ring("CA1") == Turned("CAPACITY_REJECTED")


@pytest.mark.parametrize("status", ["draining", "disabled"])
async def test_a_number_that_is_off_refuses_inbound_calls(board: Switchboard, status: str) -> None:
    expect(await board.world.admin.patch(f"/api/v1/numbers/{board.number_id}", {"status": status}), 200)
    assert await board.ring("CA1") == Turned("NUMBER_OFF")


@pytest.mark.parametrize(("to", "account"), [("+14155550191", "default"), ("", "other")])
async def test_a_number_of_another_account_refuses_inbound_calls(
    board: Switchboard, to: str, account: str
) -> None:
    assert await board.ring("CA1", to=to, account=account) == Turned("NUMBER_UNKNOWN")
    assert await board.channels() == []


@pytest.mark.parametrize("from_", ["", "anonymous", "+266696687"])
async def test_callers_without_a_number_are_admitted_in_parallel(board: Switchboard, from_: str) -> None:
    assert isinstance(await board.ring("CA1", from_), Taken)
    assert isinstance(await board.ring("CA2", from_), Taken)


async def test_a_whitelist_admits_its_phones_and_redirects_others(board: Switchboard) -> None:
    await board.policy(
        admits="whitelist", whitelist=["+1 415 555 0123"], otherwise="redirect", redirect_to="+14155550199"
    )
    assert isinstance(await board.ring("CA1", CALLER), Taken)
    assert await board.ring("CA2", "+14155550124") == Turned(
        "NOT_ALLOWED", "redirect", redirect_to="+14155550199"
    )


async def test_refused_inbound_calls_get_the_policys_message(
    board: Switchboard,
) -> None:
    await board.policy(admits="nobody", otherwise="message", message="We are closed.")
    assert await board.ring("CA1") == Turned("NOT_ALLOWED", "message", message="We are closed.")
    await board.policy(admits="everybody", otherwise="message", message="All lines are busy.")
    for n in range(2, 4):
        assert isinstance(await board.ring(f"CA{n}"), Taken)
    assert await board.ring("CA9") == Turned("CAPACITY_REJECTED", "message", message="All lines are busy.")


async def test_a_shared_number_refuses_inbound_calls_until_it_names_a_merchant(board: Switchboard) -> None:
    number = {"e164": "+14155550195", "pool": "a-pool", "carrier": "twilio", "max_channels": 1}
    made = expect(await board.world.admin.post("/api/v1/numbers", number), 201)
    assert await board.ring("CA1", to="+14155550195") == Turned("NO_MERCHANT")
    path = f"/api/v1/numbers/{made['id']}/inbound"
    refused = await board.world.admin.request("PUT", path, json={"merchant_id": "b1"})
    assert (refused.status, refused.json()["fields"][0]["field"]) == (422, "merchant_id")
    expect(await board.world.admin.request("PUT", path, json={"merchant_id": "a2"}), 200)
    taken = await board.ring("CA2", to="+14155550195")
    assert isinstance(taken, Taken)
    assert taken.merchant_id == "a2"


async def test_inbound_calls_are_admitted_without_valkey(database_url: str) -> None:
    async with open_api(database_url) as world:
        number = {"e164": "+14155550190", "pool": "a1-pool", "carrier": "twilio", "max_channels": 1}
        expect(await world.admin.post("/api/v1/numbers", number), 201)
        bus = bus_connection.connect("redis://127.0.0.1:9", Keys("away"))
        inbound = Inbound(world.database, bus, "test")
        assert isinstance(await inbound.admit("twilio", "default", "CA1", "+14155550190", CALLER), Taken)
        await bus.close()


# --- the policy's own face


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"otherwise": "message"}, "message"),
        ({"otherwise": "redirect"}, "redirect_to"),
        ({"message": "Hello."}, "message"),
        ({"otherwise": "redirect", "redirect_to": "12"}, "redirect_to"),
        ({"admits": "whitelist", "whitelist": ["nobody"]}, "whitelist"),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(
    board: Switchboard, body: dict[str, object], field: str
) -> None:
    answer = await board.world.admin.request("PUT", f"/api/v1/numbers/{board.number_id}/inbound", json=body)
    assert answer.status == 422
    assert field in [problem["field"] for problem in answer.json()["fields"]]


async def test_a_policy_is_shown_and_taken_back(board: Switchboard) -> None:
    path = f"/api/v1/numbers/{board.number_id}/inbound"
    assert expect(await board.world.admin.get(path), 200)["updated_at"] is None
    await board.policy(admits="nobody")
    assert expect(await board.world.tenant("a1").get(path), 200)["admits"] == "nobody"
    assert (await board.world.tenant("a1").delete(path)).status == 204
    assert isinstance(await board.ring("CA1"), Taken)
