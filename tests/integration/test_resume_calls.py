"""A call whose stream closed, on real engines: whether it is resumed or over, and at which pod.

Each test runs twice: with a Valkey that knows the pods and proposes them, and with one that has lost its projection.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.router.world import RouterWorld
from tests.support.world import ALL_STANDARD
from trunkline.agent import token
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.allocator import Allocator
from trunkline.router.config import RouterConfig
from trunkline.router.tokens import StreamKeys
from trunkline.routing import Allocation, EndedAllocation, Unallocated
from trunkline.settings.tiers import parse_tiers
from trunkline.store.database import Database

CALL = "CA1"
STREAMS = StreamKeys.from_secrets(["a secret"])


@dataclass
class Desk:
    dialing: Dialing
    router: RouterWorld
    allocator: Allocator
    attempt: UUID
    is_known_to_valkey: bool

    async def pod(self, name: str) -> int:
        """A free pod; its incarnation."""
        slot = await self.dialing.pod(name)
        if self.is_known_to_valkey:
            await self.router.beat(name)
            await self.router.client.hset(self.router.keys.pod(name), "incarnation", slot.incarnation)
        return slot.incarnation

    async def talk(self, pod: str) -> Allocation:
        """The call has this pod, and the pod names it."""
        incarnation = await self.pod(pod)
        await self.dialing.run(
            "INSERT INTO allocations (id, has_attempt, merchant_id, pod, slot, incarnation)"
            " VALUES ($1, true, 'm', $2, 1, $3)",
            self.attempt,
            pod,
            incarnation,
        )
        given = await self.allocator.begin(self.attempt, CALL)
        assert given is not None
        await self.allocator.drain()
        await self.name(pod, CALL)
        return given

    async def name(self, pod: str, *calls: str) -> None:
        await self.dialing.run("UPDATE pods SET named = $2 WHERE name = $1", pod, list(calls))
        if self.is_known_to_valkey:
            await self.router.beat(pod, calls)

    async def resume(self, turn: int = 0) -> object:
        found = await self.allocator.resume(CALL, self.attempt, turn)
        await self.allocator.drain()
        return found

    async def why_not(self, turn: int = 0) -> str:
        found = await self.resume(turn)
        assert isinstance(found, Unallocated), found
        return found.why

    async def resumed(self, turn: int = 0) -> Allocation:
        found = await self.resume(turn)
        assert isinstance(found, Allocation), found
        return found

    async def why(self) -> str | None:
        row = await self.dialing.row("SELECT why FROM allocations WHERE id = $1", self.attempt)
        why: str | None = row["why"]
        return why


class NoDatabase:
    """Postgres while it is away."""

    def connection(self) -> None:
        raise ConnectionRefusedError("away")


def turn_of(given: Allocation) -> int:
    """As the pod reads it."""
    proven = token.verify(STREAMS.pod_secrets(given.pod), CALL, STREAMS.sign(given))
    assert proven is not None
    assert proven.turn == given.turn
    return proven.turn


@pytest.fixture(params=["valkey proposes", "valkey has lost its memory"])
async def desk(
    request: pytest.FixtureRequest, database_url: str, redis_url: str, key_prefix: str
) -> AsyncIterator[Desk]:
    is_known = request.param == "valkey proposes"
    bus, keys = connect(redis_url, Keys(prefix=key_prefix)), RouterKeys(key_prefix)
    config = RouterConfig(tiers=parse_tiers("{}"), hold_max_s=10)
    router = RouterWorld(bus, keys)
    if is_known:
        await router.begin(ALL_STANDARD)
    async with open_dialing(database_url) as dialing:
        notes = AllocationNotes(dialing.database)
        allocator = Allocator(router.router_bus, config, dialing.database, notes)
        attempt = await dialing.attempt("+12125550199", state="answered")
        yield Desk(dialing, router, allocator, attempt, is_known)
        await allocator.drain()
    await bus.close()


async def test_a_call_that_lost_its_agent_gets_another_pod(desk: Desk) -> None:
    first = await desk.talk("pod-1")
    await desk.pod("pod-2")

    second = await desk.resumed()

    assert (first.pod, turn_of(first)) == ("pod-1", 0)
    assert (second.pod, turn_of(second)) == ("pod-2", 1)


async def test_a_pod_that_lost_only_the_stream_takes_the_call_again(desk: Desk) -> None:
    await desk.talk("pod-1")
    assert await desk.why_not() == "hold", "the pod still names the call: it may be dead"

    await desk.name("pod-1")
    assert await desk.why_not() == "hold", "it has not been heard since"
    await desk.dialing.run("UPDATE pods SET heard_at = clock_timestamp() + interval '3 seconds'")

    again = await desk.resumed()
    assert (again.pod, turn_of(again)) == ("pod-1", 1)


async def test_a_pod_that_died_before_it_named_the_call_does_not_get_it_again(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.name("pod-1")
    await desk.pod("pod-2")
    await desk.pod("pod-3")
    for turn in (0, 1):
        given = await desk.resumed(turn)
        assert given.pod != "pod-1"
        await desk.dialing.run("UPDATE pods SET is_ready = false WHERE name = $1", given.pod)
        await desk.dialing.run(
            "UPDATE pods SET heard_at = clock_timestamp() WHERE is_ready AND name <> 'pod-1'"
        )


async def test_a_released_call_is_hung_up_instead_of_resumed(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    assert isinstance(await desk.allocator.release(CALL, "pod-1", 0), EndedAllocation)
    assert await desk.why_not() == "ended"


async def test_a_call_released_by_its_second_agent_is_hung_up(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    await desk.resumed()
    assert isinstance(await desk.allocator.release(CALL, "pod-2", 1), EndedAllocation)
    assert await desk.why_not(1) == "ended"


async def test_a_late_release_by_the_lost_agent_changes_nothing(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.name("pod-1", CALL)
    assert await desk.why_not() == "hold"

    assert await desk.allocator.release(CALL, "pod-1", 0) is None

    await desk.pod("pod-2")
    assert (await desk.resumed()).pod == "pod-2"
    assert await desk.allocator.release(CALL, "pod-1", 0) is None
    assert await desk.why() is None
    assert (await desk.resumed()).pod == "pod-2"


async def test_a_tombstone_in_valkey_does_not_keep_a_lost_call_from_resuming(desk: Desk) -> None:
    await desk.talk("pod-1")
    assert await desk.why_not() == "hold"
    await desk.router.client.set(desk.router.keys.ended(CALL), "1")
    await desk.pod("pod-2")
    second = await desk.resumed()
    assert (second.pod, turn_of(second)) == ("pod-2", 1)


async def test_two_requests_at_once_get_the_same_pod(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    await desk.pod("pod-3")

    one, other = await asyncio.gather(desk.resumed(), desk.resumed())

    assert (one.pod, STREAMS.sign(one)) == (other.pod, STREAMS.sign(other))
    assert turn_of(one) == 1


async def test_a_call_is_resumed_twice_at_most(desk: Desk) -> None:
    await desk.talk("pod-1")
    for turn in (0, 1):
        await desk.pod(f"pod-{turn + 2}")
        given = await desk.resumed(turn)
        assert (given.pod, turn_of(given)) == (f"pod-{turn + 2}", turn + 1)
        await desk.name(given.pod, CALL)
    await desk.pod("pod-4")

    assert await desk.why_not(2) == "busy"

    assert await desk.why() == "agents_lost"


async def test_an_ended_call_is_not_resumed(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    await desk.dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", desk.attempt)
    assert await desk.why_not() == "ended"


async def test_a_call_with_a_hang_up_order_is_not_resumed(desk: Desk) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    await desk.dialing.run("UPDATE attempts SET hang_up_at = clock_timestamp() WHERE id = $1", desk.attempt)
    assert await desk.why_not() == "superseded"


@pytest.mark.parametrize("desk", ["valkey proposes"], indirect=True)
async def test_without_postgres_valkey_alone_resumes_a_call_at_another_pod(
    desk: Desk, monkeypatch: Any
) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    away = cast(Database, NoDatabase())
    monkeypatch.setattr(desk.allocator, "_database", away)

    second = await desk.resumed()

    assert (second.pod, turn_of(second)) == ("pod-2", 1)
    await desk.router.beat("pod-2", [CALL])
    assert await desk.why_not(2) == "busy", "how many agents it had stands in its URL"


@pytest.mark.parametrize("desk", ["valkey proposes"], indirect=True)
async def test_without_postgres_a_release_still_ends_the_call(desk: Desk, monkeypatch: Any) -> None:
    await desk.talk("pod-1")
    await desk.pod("pod-2")
    away = cast(Database, NoDatabase())
    monkeypatch.setattr(desk.allocator, "_database", away)
    assert isinstance(await desk.allocator.release(CALL, "pod-1", 0), EndedAllocation)
    assert await desk.why_not() == "ended"
