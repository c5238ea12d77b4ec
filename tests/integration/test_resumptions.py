"""A call that lost its agent goes into its next turn once, whatever changes its allocation at the same moment."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.store import allocations
from trunkline.store.allocations import LostAgent, Resumption
from trunkline.store.database import Connection

CALL = "CA1"


@dataclass
class Agents:
    dialing: Dialing
    attempt: UUID

    async def give(self, turn: int = 0, pod: str | None = "pod-1") -> None:
        """The call has this pod."""
        slot, incarnation = (1, 1) if pod else (None, None)
        await self.dialing.run(
            "INSERT INTO allocations (id, has_attempt, call, merchant_id, pod, slot, incarnation, turn)"
            " VALUES ($1, true, $2, 'm', $3, $4, $5, $6)",
            self.attempt,
            CALL,
            pod,
            slot,
            incarnation,
            turn,
        )

    async def resume(self, turn: int = 0, *, call: str = CALL, tx: "Connection | None" = None) -> Resumption:
        if tx is not None:
            return await allocations.resume(tx, self.attempt, call, turn, turn_max=2)
        async with self.dialing.database.connection() as conn:
            return await allocations.resume(conn, self.attempt, call, turn, turn_max=2)

    async def row(self) -> dict[str, Any]:
        return await self.dialing.row("SELECT * FROM allocations WHERE id = $1", self.attempt)


@pytest.fixture
async def agents(database_url: str) -> AsyncIterator[Agents]:
    async with open_dialing(database_url) as dialing:
        yield Agents(dialing, await dialing.attempt("+12125550199", state="answered"))


async def test_a_resumption_of_an_unreleased_call_clears_its_pod_and_raises_its_turn(agents: Agents) -> None:
    await agents.give()
    assert await agents.resume() == LostAgent("pod-1", "m")
    row = await agents.row()
    assert (row["turn"], row["pod"], row["slot"], row["incarnation"]) == (1, None, None, None)
    assert row["ended_at"] is None


async def test_a_repeated_resumption_raises_the_turn_once(agents: Agents) -> None:
    await agents.give()
    await agents.resume()
    assert await agents.resume() == LostAgent(None, "m")
    assert (await agents.row())["turn"] == 1


async def test_a_late_resumption_leaves_the_calls_new_pod(agents: Agents) -> None:
    await agents.give()
    await agents.resume()
    await agents.dialing.run("UPDATE allocations SET pod = 'pod-2', slot = 1, incarnation = 2")
    assert await agents.resume() == LostAgent(None, "m")
    row = await agents.row()
    assert (row["turn"], row["pod"]) == (1, "pod-2")


async def test_concurrent_resumptions_raise_the_turn_once(agents: Agents) -> None:
    await agents.give()
    tx = await agents.dialing.open_transaction()
    assert await agents.resume(tx=tx) == LostAgent("pod-1", "m")
    second = await agents.dialing.blocked(agents.resume())
    await agents.dialing.commit(tx)
    assert await second == LostAgent(None, "m")
    assert (await agents.row())["turn"] == 1


async def test_a_released_call_is_over_for_a_resumption(agents: Agents) -> None:
    await agents.give()
    await agents.dialing.run("UPDATE allocations SET ended_at = clock_timestamp(), why = 'released'")
    assert await agents.resume() == "over"
    assert (await agents.row())["turn"] == 0


async def test_a_release_committed_first_wins_over_a_resumption(agents: Agents) -> None:
    await agents.give()
    tx = await agents.dialing.open_transaction()
    await tx.execute("UPDATE allocations SET ended_at = clock_timestamp() WHERE turn = 0")
    resumed = await agents.dialing.blocked(agents.resume())
    await agents.dialing.commit(tx)
    assert await resumed == "over"


async def test_a_release_by_the_lost_agent_after_a_resumption_ends_nothing(agents: Agents) -> None:
    await agents.give()
    tx = await agents.dialing.open_transaction()
    await agents.resume(tx=tx)
    released = await agents.dialing.blocked(
        agents.dialing.run(
            "UPDATE allocations SET ended_at = clock_timestamp() WHERE call = $1 AND turn = 0", CALL
        )
    )
    await agents.dialing.commit(tx)
    await released
    assert (await agents.row())["ended_at"] is None


async def test_the_end_of_the_attempt_wins_over_a_resumption_in_flight(agents: Agents) -> None:
    await agents.give()
    tx = await agents.dialing.open_transaction()
    await tx.execute("UPDATE attempts SET state = 'ended' WHERE id = $1", agents.attempt)
    resumed = await agents.dialing.blocked(agents.resume())
    await agents.dialing.commit(tx)
    assert await resumed == "over"


async def test_the_end_of_the_attempt_ends_a_call_that_was_resumed_just_before(agents: Agents) -> None:
    await agents.give()
    tx = await agents.dialing.open_transaction()
    await agents.resume(tx=tx)
    ended = await agents.dialing.blocked(
        agents.dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", agents.attempt)
    )
    await agents.dialing.commit(tx)
    await ended
    assert (await agents.row())["why"] == "ended"
    assert await agents.resume(1) == "over"


async def test_a_third_lost_agent_exhausts_the_resumptions(agents: Agents) -> None:
    await agents.give(turn=2)
    assert await agents.resume(2) == "exhausted"
    assert (await agents.row())["why"] == "agents_lost"
    assert await agents.resume(2) == "over"


async def test_a_release_by_the_third_agent_is_over_not_exhausted(agents: Agents) -> None:
    await agents.give(turn=2)
    await agents.dialing.run("UPDATE allocations SET ended_at = clock_timestamp()")
    assert await agents.resume(2) == "over"


async def test_another_call_under_the_attempt_is_not_resumed(agents: Agents) -> None:
    await agents.give()
    assert await agents.resume(call="CA2") == "over"
    assert (await agents.row())["pod"] == "pod-1"


async def test_a_resumption_of_a_later_turn_advances_the_allocation_to_it(agents: Agents) -> None:
    await agents.give(turn=0)
    assert await agents.resume(1) == LostAgent("pod-1", "m")
    assert (await agents.row())["turn"] == 2


async def test_a_resumption_of_a_call_without_an_allocation_writes_one(agents: Agents) -> None:
    assert await agents.resume() == LostAgent(None, "m")
    row = await agents.row()
    assert (row["call"], row["turn"], row["has_attempt"]) == (CALL, 1, True)


async def test_a_resumption_of_an_ended_call_without_an_allocation_writes_none(agents: Agents) -> None:
    await agents.dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", agents.attempt)
    assert await agents.resume() == "over"
    assert (await agents.dialing.row("SELECT count(*) AS n FROM allocations"))["n"] == 0
