"""An intent reserves a slot: no slot, no dial, and a reservation lasts exactly as long as its attempt may need it."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import AGENTS_OURS, Dialing, open_dialing
from trunkline.dispatch.intent import disown
from trunkline.model import Blocks, RefusalReason, Slot, new_id
from trunkline.states import AttemptState
from trunkline.store import allocations, attempts

R = RefusalReason


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


async def row(dialing: Dialing, allocation: UUID) -> dict[str, object]:
    return await dialing.row("SELECT * FROM allocations WHERE id = $1", allocation)


async def test_an_intent_without_a_slot_is_refused_for_agents(dialing: Dialing) -> None:
    intents = await dialing.intend(dialing.grant(await dialing.lead()), agents=AGENTS_OURS)
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.blocks, refusal.subject) == (R.AGENTS, Blocks.FLOW, "no_agent_free")
    assert await dialing.value("SELECT count(*) FROM attempts") == 0


async def test_an_intent_reserves_the_proposed_slot(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    grant = dialing.grant(await dialing.lead())
    (intent,) = (await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)).committed
    assert intent.slot == slot
    kept = await row(dialing, grant.attempt_id)
    assert (kept["pod"], kept["slot"], kept["incarnation"], kept["call"]) == (
        "va-0",
        1,
        slot.incarnation,
        None,
    )
    assert (kept["merchant_id"], kept["has_attempt"], kept["ended_at"]) == ("m", True, None)


@pytest.mark.parametrize("change", ["merchants", "pools"])
async def test_a_lead_of_external_agents_needs_no_slot(dialing: Dialing, change: str) -> None:
    await dialing.run(f"UPDATE {change} SET agents = 'elsewhere'")
    intents = await dialing.intend(dialing.grant(await dialing.lead()), agents=AGENTS_OURS)
    assert len(intents.committed) == 1
    assert await dialing.value("SELECT count(*) FROM allocations") == 0


async def test_a_carrier_with_its_own_agents_needs_no_slot(dialing: Dialing) -> None:
    await dialing.run("UPDATE numbers SET carrier = 'vapi'")
    slot = await dialing.pod("va-0")
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert [intent.slot for intent in intents.committed] == [None]
    assert await dialing.value("SELECT count(*) FROM allocations") == 0, "the proposal is given back"


async def test_race_two_dialers_cannot_both_reserve_the_last_slot(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    one, two = [dialing.grant(lead) for lead in await dialing.leads(2)]
    first, _ = await dialing.half_an_intent(one, slots={one.attempt_id: slot}, agents=AGENTS_OURS)
    second = await dialing.blocked(dialing.intend(two, slots={two.attempt_id: slot}, agents=AGENTS_OURS))
    await dialing.commit(first)
    intents = await second
    assert [(r.reason, r.subject) for r in intents.refused.values()] == [(R.AGENTS, "slot_taken")]
    assert intents.lost_slots == (slot,)
    assert await dialing.value("SELECT count(*) FROM attempts") == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pods SET incarnation = nextval('pod_incarnations')",
        "UPDATE pods SET leaving_since = clock_timestamp()",
        "UPDATE pods SET changing_since = clock_timestamp()",
        "UPDATE pods SET is_ready = false",
        "UPDATE pods SET draining_until = clock_timestamp() + interval '1 minute'",
        "UPDATE pods SET named = '{CA-of-nobody}'",
        "DELETE FROM pods",
        "UPDATE pods SET heard_at = clock_timestamp() - interval '20 seconds'",
    ],
)
async def test_a_pod_that_takes_no_calls_is_reserved_for_no_dial(dialing: Dialing, change: str) -> None:
    await dialing.run("UPDATE pod_hearing SET since = clock_timestamp() - interval '1 hour'")
    slot = await dialing.pod("va-0")
    await dialing.run(change)
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert [(r.reason, r.subject) for r in intents.refused.values()] == [(R.AGENTS, "slot_taken")]


async def test_a_silent_pod_is_reserved_while_heartbeats_could_not_be_received(dialing: Dialing) -> None:
    await dialing.run("UPDATE pod_hearing SET since = clock_timestamp()")
    slot = await dialing.pod("va-0")
    await dialing.run("UPDATE pods SET heard_at = clock_timestamp() - interval '1 hour'")
    await dialing.kept("+12125550001", slot)


async def test_a_pod_that_beats_slowly_is_silent_after_three_of_its_own_intervals(dialing: Dialing) -> None:
    await dialing.run("UPDATE pod_hearing SET since = clock_timestamp() - interval '1 hour'")
    slot = await dialing.pod("va-0")
    await dialing.run("UPDATE pods SET interval_s = 30, heard_at = clock_timestamp() - interval '80 seconds'")
    attempt = await dialing.kept("+12125550001", slot)
    await dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", attempt)
    await dialing.run("UPDATE pods SET heard_at = clock_timestamp() - interval '100 seconds'")
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert intents.committed == ()


async def test_a_pod_with_a_call_above_its_lowered_maximum_is_not_reserved(dialing: Dialing) -> None:
    """Slot 1 is free, and an exclusive pod would get a second call on it."""
    slot = await dialing.pod("va-0", calls_max=3)
    await dialing.kept("+12125550001", Slot("va-0", 3, slot.incarnation, slot.source_pool))
    await dialing.run("UPDATE pods SET calls_max = 1")
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert intents.committed == ()


async def test_a_reservation_whose_attempt_was_not_committed_is_dropped(dialing: Dialing) -> None:
    """Another attempt has the channel."""
    slot = await dialing.pod("va-0")
    await dialing.attempt("+12125550009", state="ringing", channel=7)
    grant = dialing.grant(await dialing.lead(), 7)
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert [r.reason for r in intents.refused.values()] == [R.CHANNEL]
    assert await dialing.value("SELECT count(*) FROM allocations") == 0


@pytest.mark.parametrize("state", ["ended", "rejected", "absent", "unknown"])
async def test_the_end_of_an_attempt_releases_its_slot(dialing: Dialing, state: str) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run("UPDATE attempts SET state = $2 WHERE id = $1", attempt, state)
    kept = await row(dialing, attempt)
    assert (kept["ended_at"] is not None, kept["why"]) == (True, state)


async def test_an_attempt_keeps_its_slot_through_its_live_states(dialing: Dialing) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="dialing")
    for state in ("accepted", "ringing", "answered"):
        await dialing.run("UPDATE attempts SET state = $2 WHERE id = $1", attempt, state)
    assert (await row(dialing, attempt))["ended_at"] is None


async def test_a_hang_up_order_releases_a_reservation_and_not_a_call_in_progress(dialing: Dialing) -> None:
    waiting = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    talking = await dialing.kept("+12125550002", await dialing.pod("va-1"))
    async with dialing.database.connection() as conn:
        assert await allocations.begin(conn, talking, "CA2")
    await dialing.run("UPDATE attempts SET hang_up_at = clock_timestamp()")
    assert (await row(dialing, waiting))["why"] == "cancelled"
    assert (await row(dialing, talking))["ended_at"] is None


async def test_disowning_an_attempt_releases_its_slot(dialing: Dialing) -> None:
    """Its COMMIT was not answered, and had gone through."""
    slot = await dialing.pod("va-0")
    grant = dialing.grant(await dialing.lead())
    connection, batch = await dialing.half_an_intent(
        grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS
    )
    await dialing.commit(connection)
    await disown(dialing.database, batch.attempts, "another dialer")
    assert (await row(dialing, grant.attempt_id))["why"] == "rejected"


async def test_disowning_an_attempt_that_was_never_committed_leaves_its_slot_free(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    grant = dialing.grant(await dialing.lead())
    connection, batch = await dialing.half_an_intent(
        grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS
    )
    await connection.execute("ROLLBACK")
    await disown(dialing.database, batch.attempts, "another dialer")
    assert await dialing.value("SELECT count(*) FROM allocations") == 0
    await dialing.kept("+12125550077", slot)


async def test_a_call_that_reappears_after_it_was_written_off_gets_an_allocation_without_a_pod(
    dialing: Dialing,
) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run("UPDATE attempts SET state = 'absent' WHERE id = $1", attempt)
    await dialing.run("UPDATE attempts SET state = 'ringing' WHERE id = $1", attempt)
    back = await row(dialing, attempt)
    assert (back["ended_at"], back["pod"], back["slot"]) == (None, None, None)


async def test_an_in_doubt_attempt_keeps_its_slot_until_it_cannot_ring(dialing: Dialing) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    async with dialing.database.connection() as conn:
        assert await allocations.end_doubts(conn, 60) == []
        await dialing.run("UPDATE attempts SET send_at = send_at - interval '61 seconds'")
        (ended,) = await allocations.end_doubts(conn, 60)
    assert (ended.id, ended.pod, await dialing.state_of(attempt)) == (attempt, "va-0", "in_doubt")


async def test_end_strays_ends_an_allocation_without_an_attempt(dialing: Dialing) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    async with dialing.database.connection() as conn:
        assert await allocations.end_strays(conn) == []
        await dialing.run("UPDATE allocations SET asked_at = asked_at - interval '1 minute'")
        assert await allocations.end_strays(conn) == [], "its attempt rings"
        await dialing.run("DELETE FROM attempts WHERE id = $1", attempt)
        (ended,) = await allocations.end_strays(conn)
    assert ended.id == attempt


async def test_postgres_picks_slots_by_tier_and_leaves_10_percent_to_callers(dialing: Dialing) -> None:
    for n in range(20):
        await dialing.pod(f"va-{n}")
    await dialing.pod("gold-0", tier="gold")
    async with dialing.database.connection() as conn:
        free = await allocations.free_slots(conn, {"standard": -1, "gold": -1, "basic": -1}, 50, 7)
        few = await allocations.free_slots(conn, {"standard": 19}, 50, 7)
        three = await allocations.free_slots(conn, {"standard": -1}, 3, 7)
    assert {tier: len(slots) for tier, slots in free.items()} == {"standard": 18, "gold": 1, "basic": 0}
    assert (len(few["standard"]), len(three["standard"])) == (1, 3)


async def test_no_slot_is_reserved_for_a_dial_while_a_caller_waits(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await dialing.run(
        "INSERT INTO allocations (id, has_attempt, call, waits_in) VALUES ($1, false, 'CA-of-a-caller', '{standard}')",
        new_id(),
    )
    async with dialing.database.connection() as conn:
        assert await allocations.free_slots(conn, {"standard": 0}, 5, 7) == {"standard": []}
        await dialing.run("UPDATE allocations SET polled_at = polled_at - interval '8 seconds'")
        assert len((await allocations.free_slots(conn, {"standard": 0}, 5, 7))["standard"]) == 1


async def test_a_waiting_caller_holds_back_dials_of_its_own_tiers_only(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await dialing.run(
        "INSERT INTO allocations (id, has_attempt, call, waits_in) VALUES ($1, false, 'CA1', '{merchant:x}')",
        new_id(),
    )
    async with dialing.database.connection() as conn:
        assert len((await allocations.free_slots(conn, {"standard": 0}, 5, 7))["standard"]) == 1


async def test_an_intent_reserves_no_proposed_slot_while_a_call_waits(dialing: Dialing) -> None:
    """Valkey does not know of a call that lost its agent and waits."""
    slot = await dialing.pod("va-0")
    await dialing.run(
        "INSERT INTO allocations (id, has_attempt, call, waits_in) VALUES ($1, false, 'CA1', '{standard}')",
        new_id(),
    )
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert not intents.committed
    await dialing.run("UPDATE allocations SET ended_at = now()")
    grant = dialing.grant(await dialing.lead("+12125550002"))
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert len(intents.committed) == 1


async def test_a_rejected_dial_releases_its_slot(dialing: Dialing) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="dialing")
    async with dialing.database.connection() as conn:
        await attempts.write_results(
            conn, [attempts.Result(attempt, AttemptState.REJECTED, reason="refused:13224")]
        )
    assert (await row(dialing, attempt))["why"] == "rejected"


async def test_owners_returns_the_attempt_of_each_taken_slot(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    attempt = await dialing.kept("+12125550001", slot)
    async with dialing.database.connection() as conn:
        assert await allocations.owners(conn, [slot]) == {("va-0", 1): attempt}
