"""An answered call and its agent: the reserved one, the one its URL names, another free one, or none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from trunkline.bus.router import RouterBus
from trunkline.bus.scripts import Script, Word
from trunkline.clock import SystemClock
from trunkline.dispatch import late_facts
from trunkline.dispatch.policy_cache import Policies
from trunkline.errors import BusUnavailable
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.allocator import Allocator, CallToConnect, Connector, Stream
from trunkline.router.config import RouterConfig
from trunkline.router.tokens import CallKeys, StreamKeys
from trunkline.routing import Allocation, Unallocated, WhyUnallocated
from trunkline.store import database as store_database
from trunkline.telephony.carrier import ReservedAgent

LATER_S = 2**40


class NoValkey:
    """A Valkey that is away: Postgres picks."""

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any:
        raise BusUnavailable("away")

    def wake_dialers(self) -> None: ...


@dataclass
class Gate:
    dialing: Dialing
    connector: Connector
    allocator: Allocator
    notes: AllocationNotes
    addresses: PodAddresses
    way: TcpProxy

    async def ask(self, attempt: UUID, call: str = "CA1", agent: ReservedAgent | None = None) -> object:
        return await self.connector.connect(CallToConnect(call, attempt, is_dialled=True, agent=agent))

    async def pod_for(self, attempt: UUID, call: str = "CA1", agent: ReservedAgent | None = None) -> str:
        found = await self.ask(attempt, call, agent)
        assert isinstance(found, Allocation), found
        return found.pod


@asynccontextmanager
async def open_gate(
    database_url: str, *, elsewhere: bool = False, hold_max_s: float = 0
) -> AsyncIterator[Gate]:
    async with (
        open_dialing(database_url) as dialing,
        TcpProxy.before(database_url) as way,
    ):
        database = await store_database.connect(way.url, pool_size=3)
        notes, addresses = AllocationNotes(database), PodAddresses(dialing.database)
        config = RouterConfig(hold_max_s=hold_max_s)
        allocator = Allocator(RouterBus(NoValkey(), RouterKeys("voice")), config, database, notes)
        connector = Connector(
            allocator, addresses, StreamKeys.from_secrets(["a secret"]), CallKeys.from_secrets(["a secret"]),
            database, SystemClock(), Policies().on_abandonment, partial(late_facts.reattach, dialing.database),
            are_agents_elsewhere=elsewhere,
        )  # fmt: skip
        try:
            yield Gate(dialing, connector, allocator, notes, addresses, way)
        finally:
            await allocator.drain()
            await database.close()


@pytest.fixture
async def gate(database_url: str) -> AsyncIterator[Gate]:
    async with open_gate(database_url) as gate:
        yield gate


async def test_a_call_with_a_reservation_gets_the_same_pod_at_every_answer_request(gate: Gate) -> None:
    attempt = await gate.dialing.kept("+12125550001", await gate.dialing.pod("va-0"))
    await gate.dialing.pod("va-1")
    call = CallToConnect("CA1", attempt, is_dialled=True)
    found = [await gate.connector.find_stream(call) for _ in range(3)]
    assert isinstance(found[0], Stream)
    assert found == [found[0]] * 3
    assert found[0].url == "ws://va-0.example.com/ws/pod/va-0/CA1"


async def test_another_call_under_the_attempt_is_hung_up(gate: Gate) -> None:
    attempt = await gate.dialing.kept("+12125550001", await gate.dialing.pod("va-0"))
    await gate.dialing.pod("va-1")
    await gate.pod_for(attempt, "CA1")
    assert await gate.ask(attempt, "CA2") == Unallocated("taken")


async def test_a_call_whose_pod_was_lost_while_it_rang_gets_another(gate: Gate) -> None:
    attempt = await gate.dialing.kept("+12125550001", await gate.dialing.pod("va-0"))
    await gate.dialing.run("DELETE FROM pods")
    await gate.dialing.pod("va-1")
    assert await gate.pod_for(attempt) == "va-1"


async def test_a_call_dialled_without_a_reservation_gets_a_free_pod(gate: Gate) -> None:
    attempt = await gate.dialing.attempt("+12125550001", state="ringing")
    assert await gate.ask(attempt) == Unallocated("busy")
    await gate.dialing.pod("va-0")
    assert await gate.pod_for(attempt) == "va-0"


@pytest.mark.parametrize("hold_max_s", [0, 10])
async def test_an_overdialled_call_without_a_free_agent_is_reported_as_such(
    database_url: str, hold_max_s: float
) -> None:
    async with open_gate(database_url, hold_max_s=hold_max_s) as gate:
        attempt = await gate.dialing.attempt("+12125550001", state="ringing", from_phone="+14155550000")
        await gate.dialing.run("UPDATE attempts SET overdial_group = 'common'")
        await gate.dialing.policy(
            CallingPolicy(abandon_message="{caller}: call {number}.", abandon_threshold_s=3)
        )
        found = await gate.ask(attempt)
        why: WhyUnallocated = "hold" if hold_max_s > 0 else "busy"
        told = "m: call 1 4 1 5 5 5 5 0 0 0 0."
        assert found == Unallocated(why, message=told, wait_max_s=3)
        await gate.dialing.pod("va-0")
        assert await gate.pod_for(attempt) == "va-0"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE attempts SET state = 'ended'", "ended"),
        ("UPDATE attempts SET state = 'rejected'", "ended"),
        ("UPDATE attempts SET hang_up_at = clock_timestamp()", "superseded"),
    ],
)
@pytest.mark.parametrize("is_kept", [True, False])
async def test_race_1_25_a_call_with_a_hang_up_order_is_hung_up_at_its_answer(
    gate: Gate, change: str, reason: WhyUnallocated, is_kept: bool
) -> None:
    slot = await gate.dialing.pod("va-0")
    if is_kept:
        attempt = await gate.dialing.kept("+12125550001", slot)
    else:
        attempt = await gate.dialing.attempt("+12125550001", state="ringing")
    await gate.dialing.run(change)
    assert await gate.ask(attempt) == Unallocated(reason)


async def test_a_call_waits_for_an_agent_where_hold_is_allowed(database_url: str) -> None:
    async with open_gate(database_url, hold_max_s=30) as gate:
        attempt = await gate.dialing.attempt("+12125550001", state="ringing")
        assert await gate.ask(attempt) == Unallocated("hold", 0)
        await gate.dialing.pod("va-0")
        assert await gate.pod_for(attempt) == "va-0"


async def test_a_call_of_external_agents_makes_no_allocation(database_url: str) -> None:
    async with open_gate(database_url, elsewhere=True, hold_max_s=30) as gate:
        attempt = await gate.dialing.attempt("+12125550001", state="ringing")
        assert await gate.ask(attempt) == Unallocated("elsewhere")
        assert await gate.dialing.value("SELECT count(*) FROM allocations") == 0


async def test_a_merchant_with_external_agents_gets_no_pod_of_ours(gate: Gate) -> None:
    attempt = await gate.dialing.attempt("+12125550001", state="ringing")
    await gate.dialing.run("UPDATE merchants SET agents = 'elsewhere'")
    assert await gate.ask(attempt) == Unallocated("elsewhere")


# --- a call that was written off


@pytest.mark.parametrize("state", ["absent", "unknown"])
async def test_a_written_off_call_is_reattached_and_then_connected(gate: Gate, state: str) -> None:
    dialing = gate.dialing
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run(
        "UPDATE attempts SET state = $1, holds_channel = false, next_check_at = NULL, ended_at = now()", state
    )
    finished = "FINISHED', outcome = 'UNKNOWN', finished_at = now()" if state == "unknown" else "BACKLOG'"
    await dialing.run(f"UPDATE leads SET status = '{finished}")
    assert await gate.ask(attempt) == Unallocated("given_up")
    assert await late_facts.reattach(dialing.database, attempt, "CA1")
    assert await dialing.state_of(attempt) == "answered"
    assert await dialing.value("SELECT subject FROM alarms WHERE name = 'late_fact'") == "adopted"
    assert await dialing.value("SELECT holds_channel FROM attempts")
    if state == "absent":
        assert await dialing.value("SELECT status FROM leads") == "PROCESSING"
    assert await gate.pod_for(attempt) == "va-0"


async def test_race_a_reattachment_yields_to_a_newer_attempt(gate: Gate) -> None:
    """The reattachment waits for the lead's lock, finds a newer attempt, and leaves the call alone."""
    dialing = gate.dialing
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run(
        "UPDATE attempts SET state = 'absent', holds_channel = false, next_check_at = NULL, ended_at = now()"
    )
    await dialing.run("UPDATE leads SET status = 'BACKLOG', version = 1")
    lead = await dialing.value("SELECT id FROM leads")
    newer, _ = await dialing.half_an_intent(dialing.grant(lead))
    adopting = await dialing.blocked(late_facts.reattach(dialing.database, attempt, "CA1"))
    await dialing.commit(newer)
    assert await adopting is False
    assert await gate.ask(attempt) == Unallocated("superseded")


# --- without Postgres


async def test_without_both_engines_a_call_reaches_the_pod_that_its_url_names(gate: Gate) -> None:
    slot = await gate.dialing.pod("va-0")
    attempt = await gate.dialing.kept("+12125550001", slot)
    await gate.addresses.run_once()
    gate.way.refuse()
    gate.way.cut()
    assert await gate.pod_for(attempt, agent=ReservedAgent(slot.incarnation, LATER_S)) == "va-0"
    await gate.way.heal()
    await eventually(lambda: written(gate), what="the answer is written down")
    row = await gate.dialing.row("SELECT * FROM allocations")
    assert (row["call"], row["pod"], row["begun_at"] is not None) == ("CA1", "va-0", True)


async def written(gate: Gate) -> bool:
    try:
        return await gate.notes.run_once() > 0
    except store_database.UNAVAILABLE:
        return False


@pytest.mark.parametrize(
    "agent", [None, ReservedAgent(1, 0), ReservedAgent(999_999, LATER_S)], ids=["none", "too old", "unknown"]
)
async def test_without_both_engines_and_a_pod_in_the_url_availability_is_unknown(
    gate: Gate, agent: ReservedAgent | None
) -> None:
    await gate.dialing.pod("va-0")
    attempt = await gate.dialing.attempt("+12125550001", state="ringing")
    gate.way.refuse()
    gate.way.cut()
    assert await gate.ask(attempt, agent=agent) == Unallocated("unknown")


async def test_a_hanging_postgres_is_passed_over_after_three_silent_answers(gate: Gate) -> None:
    """After three silent answers it is passed over for a second; the driver's own time-outs are not waited for."""
    slot = await gate.dialing.pod("va-0")
    attempt = await gate.dialing.kept("+12125550001", slot)
    await gate.addresses.run_once()
    agent = ReservedAgent(slot.incarnation, LATER_S)
    await gate.pod_for(attempt, agent=agent)
    gate.way.black_hole()
    async with asyncio.timeout(20):
        for _ in range(6):
            assert await gate.pod_for(attempt, agent=agent) == "va-0"
    await gate.way.heal()
