"""Which call has which slot: one pod per call, one call per slot, whoever asks at once and whoever ends meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from tests.support.dispatch.dialing import AGENTS_OURS, Dialing, open_dialing
from trunkline.model import Slot, new_id
from trunkline.routing import Allocation, EndedAllocation, Unallocated
from trunkline.store import allocations, attempts
from trunkline.store.allocations import AllocationRequest, Release
from trunkline.store.group_commit import GroupCommit
from trunkline.value import replace

TIERS = ("gold", "standard", "overflow", "basic")


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


async def allocate(
    dialing: Dialing,
    call: str,
    attempt: UUID | None = None,
    proposal: Slot | None = None,
    wait_max_s: float = 0,
    tiers: tuple[str, ...] = TIERS,
) -> Allocation | Unallocated:
    asked = AllocationRequest(new_id(), call, attempt, "m", proposal, wait_max_s)
    async with dialing.database.connection() as conn:
        return await allocations.allocate(conn, asked, tiers)


async def pod_of(dialing: Dialing, call: str, attempt: UUID | None = None, **more: Slot | None) -> str:
    found = await allocate(dialing, call, attempt, **more)  # type: ignore[arg-type]
    assert isinstance(found, Allocation), found
    return found.slot.pod


async def begin(dialing: Dialing, attempt: UUID, call: str) -> Allocation | None:
    async with dialing.database.connection() as conn:
        return await allocations.begin(conn, attempt, call)


async def release(dialing: Dialing, call: str, by_pod: str = "", turn: int | None = None) -> bool:
    async with dialing.database.connection() as conn:
        (found,) = await allocations.release(conn, [Release(call, new_id(), by_pod, turn)])
    return found is not None


async def test_an_answered_call_begins_on_the_slot_reserved_with_its_dial(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    attempt = await dialing.kept("+12125550001", slot)
    found = await begin(dialing, attempt, "CA1")
    assert found is not None
    assert (found.slot, found.base_url, found.merchant_id) == (slot, "ws://va-0.example.com", "m")
    again = await begin(dialing, attempt, "CA1")
    assert again == found, "the carrier asks twice"
    assert await begin(dialing, attempt, "CA2") is None, "another call under this attempt"


@pytest.mark.parametrize("state", ["ended", "rejected", "absent", "unknown"])
async def test_a_reservation_of_an_attempt_that_is_over_cannot_begin(dialing: Dialing, state: str) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run("UPDATE attempts SET state = $1", state)
    assert await begin(dialing, attempt, "CA1") is None


async def test_a_reservation_on_an_older_incarnation_is_lost_and_the_call_gets_another_pod(
    dialing: Dialing,
) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    await dialing.run("UPDATE pods SET incarnation = nextval('pod_incarnations')")
    assert await begin(dialing, attempt, "CA1") is None
    await dialing.run("DELETE FROM pods")
    await dialing.pod("va-1")
    assert await pod_of(dialing, "CA1", attempt) == "va-1"


async def test_requests_for_one_call_all_get_the_same_pod(dialing: Dialing) -> None:
    for n in range(8):
        await dialing.pod(f"va-{n}")
    pods = await asyncio.gather(*(pod_of(dialing, "CA1") for _ in range(6)))
    assert len(set(pods)) == 1
    assert await dialing.value("SELECT count(*) FROM allocations") == 1


async def test_concurrent_calls_get_different_pods(dialing: Dialing) -> None:
    for n in range(6):
        await dialing.pod(f"va-{n}")
    pods = await asyncio.gather(*(pod_of(dialing, f"CA{n}") for n in range(6)))
    assert len(set(pods)) == 6
    assert await allocate(dialing, "CA7") == Unallocated("busy")
    assert await dialing.value("SELECT count(*) FROM allocations") == 6, "who does not wait leaves no row"


async def test_a_proposed_slot_is_allocated_unless_it_is_taken(dialing: Dialing) -> None:
    first, second = await dialing.pod("va-0"), await dialing.pod("va-1")
    assert await pod_of(dialing, "CA1", proposal=second) == "va-1"
    assert await pod_of(dialing, "CA2", proposal=second) == "va-0"
    assert first.pod == "va-0"


async def test_tiers_are_searched_in_order(dialing: Dialing) -> None:
    await dialing.pod("standard-0")
    await dialing.pod("gold-0", tier="gold")
    await dialing.pod("private-0", tier="merchant:another")
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["gold-0", "standard-0"]
    assert await allocate(dialing, "CA9") == Unallocated("busy")


async def test_a_shared_pod_takes_calls_up_to_calls_max(dialing: Dialing) -> None:
    await dialing.pod("va-0", calls_max=2)
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["va-0", "va-0"]
    assert await allocate(dialing, "CA9") == Unallocated("busy")


async def test_an_ended_call_gets_no_pod_again(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await pod_of(dialing, "CA1")
    assert await release(dialing, "CA1")
    assert not await release(dialing, "CA1")
    assert await allocate(dialing, "CA1") == Unallocated("ended")
    assert await pod_of(dialing, "CA2") == "va-0"


async def test_releasing_an_unknown_call_leaves_a_tombstone(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    assert not await release(dialing, "CA1")
    assert await allocate(dialing, "CA1") == Unallocated("ended")


async def test_a_released_call_id_can_be_allocated_again_after_ten_minutes(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await pod_of(dialing, "test-call-001")
    await release(dialing, "test-call-001")
    await dialing.run("UPDATE allocations SET ended_at = ended_at - interval '11 minutes'")
    assert await pod_of(dialing, "test-call-001") == "va-0"


async def test_a_release_by_a_pod_or_turn_that_lost_the_call_changes_nothing(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await pod_of(dialing, "CA1")
    assert not await release(dialing, "CA1", by_pod="va-9")
    assert not await release(dialing, "CA1", by_pod="va-0", turn=1)
    assert await release(dialing, "CA1", by_pod="va-0", turn=0)


@pytest.mark.parametrize("state", ["ended", "rejected"])
async def test_the_call_of_an_attempt_that_is_over_gets_no_pod(dialing: Dialing, state: str) -> None:
    await dialing.pod("va-0")
    attempt = await dialing.attempt("+12125550001", state=state)
    assert await allocate(dialing, "CA1", attempt) == Unallocated("ended")


async def test_a_call_with_a_hang_up_order_gets_no_pod(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    attempt = await dialing.attempt("+12125550001", state="ringing")
    await dialing.run("UPDATE attempts SET hang_up_at = clock_timestamp()")
    assert await allocate(dialing, "CA1", attempt) == Unallocated("superseded")


async def test_a_call_that_a_newer_attempt_superseded_gets_no_pod(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    first = await dialing.attempt("+12125550001", state="absent", ago_s=600)
    await dialing.run(
        "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
        " account, to_phone, from_phone, dialer)"
        " SELECT $1, lead_id, 2, 'r', 'm', number_id, 50, carrier, account, to_phone, from_phone, 'another'"
        " FROM attempts",
        new_id(),
    )
    assert await allocate(dialing, "CA1", first) == Unallocated("superseded")


@pytest.mark.parametrize("state", ["absent", "unknown"])
async def test_a_written_off_call_gets_no_pod_before_it_is_reattached(dialing: Dialing, state: str) -> None:
    await dialing.pod("va-0")
    attempt = await dialing.attempt("+12125550001", state=state)
    assert await allocate(dialing, "CA1", attempt) == Unallocated("given_up")


async def test_a_second_call_under_one_attempt_is_refused_as_taken(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.pod("va-1")
    attempt = await dialing.kept("+12125550001", slot)
    assert await begin(dialing, attempt, "CA1")
    assert await allocate(dialing, "CA2", attempt) == Unallocated("taken")


async def test_an_in_doubt_call_whose_reservation_ended_still_gets_a_pod(dialing: Dialing) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run("UPDATE allocations SET ended_at = clock_timestamp(), why = 'doubt'")
    assert await begin(dialing, attempt, "CA1") is None
    assert await pod_of(dialing, "CA1", attempt) == "va-0"


async def test_race_an_allocation_waits_for_a_fold_in_flight(dialing: Dialing) -> None:
    """Without the lock on the attempt the call would get a live row after its attempt has ended."""
    await dialing.pod("va-0")
    attempt = await dialing.attempt("+12125550001", state="ringing")
    fold = await dialing.open_transaction()
    await fold.execute("SELECT attempts_lock($1)", [attempt])
    await fold.execute("UPDATE attempts SET state = 'ended', holds_channel = false")
    asked = await dialing.blocked(allocate(dialing, "CA1", attempt))
    await dialing.commit(fold)
    assert await asked == Unallocated("ended")
    assert await dialing.value("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == 0


async def test_race_two_requests_for_one_call_get_the_same_allocation(
    dialing: Dialing,
) -> None:
    await dialing.pod("va-0")
    await dialing.pod("va-1")
    first = await dialing.open_transaction()
    asked = AllocationRequest(new_id(), "CA1", None, "m")
    won = await allocations.allocate(first, asked, TIERS)
    second = await dialing.blocked(allocate(dialing, "CA1"))
    await dialing.commit(first)
    lost = await second
    assert isinstance(won, Allocation)
    assert isinstance(lost, Allocation)
    assert (lost.slot, lost.id) == (won.slot, won.id)


async def test_race_an_intent_in_flight_keeps_its_slot_and_the_caller_gets_another(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.pod("va-1")
    grant = dialing.grant(await dialing.lead())
    intent, _ = await dialing.half_an_intent(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    asked = await dialing.blocked(pod_of(dialing, "CA1", proposal=slot))
    await dialing.commit(intent)
    assert await asked == "va-1"


async def test_waiting_calls_are_served_oldest_first(dialing: Dialing) -> None:
    assert await allocate(dialing, "CA1", wait_max_s=30) == Unallocated("hold", 0)
    assert await allocate(dialing, "CA2", wait_max_s=30) == Unallocated("hold", 1)
    await dialing.pod("va-0")
    assert await allocate(dialing, "CA2", wait_max_s=30) == Unallocated("hold", 1)
    assert isinstance(await allocate(dialing, "CA1", wait_max_s=30), Allocation)


async def test_a_free_pod_is_not_reserved_for_waiters_of_other_tiers(dialing: Dialing) -> None:
    assert await allocate(dialing, "CA1", wait_max_s=30, tiers=("standard",)) == Unallocated("hold", 0)
    assert await allocate(dialing, "CA2", wait_max_s=30, tiers=("merchant:x",)) == Unallocated("hold", 0)
    assert await allocate(dialing, "CA3", wait_max_s=30, tiers=("gold", "standard")) == Unallocated("hold", 1)
    await dialing.pod("gold-0", tier="gold")
    await dialing.pod("gold-1", tier="gold")
    found = await allocate(dialing, "CA4", tiers=("gold",))
    assert isinstance(found, Allocation), "of two free ones the waiter in gold is left one"
    found = await allocate(dialing, "CA3", wait_max_s=30, tiers=("gold", "standard"))
    assert isinstance(found, Allocation), "nobody else waits in gold"


async def test_a_call_that_cannot_wait_gets_a_pod_without_waiters(dialing: Dialing) -> None:
    await allocate(dialing, "CA1", wait_max_s=30, tiers=("standard",))
    await dialing.pod("gold-0", tier="gold")
    assert await pod_of(dialing, "CA2") == "gold-0"


async def test_each_waiter_is_left_one_slot_whichever_tiers_it_waits_in(dialing: Dialing) -> None:
    """Slots as a caller of all tiers sees them: gold, gold, standard, basic."""
    await allocate(dialing, "CA1", wait_max_s=30, tiers=("gold", "standard"))
    await allocate(dialing, "CA2", wait_max_s=30, tiers=("gold",))
    await allocate(dialing, "CA3", wait_max_s=30, tiers=("gold", "standard"))
    for name, tier in (("gold-0", "gold"), ("gold-1", "gold"), ("standard-0", "standard")):
        await dialing.pod(name, tier=tier)
    assert await allocate(dialing, "CA4") == Unallocated("busy"), "three wait for these three"
    await dialing.pod("basic-0", tier="basic")
    assert await pod_of(dialing, "CA4") == "basic-0"
    for call, tiers in (("CA3", ("gold", "standard")), ("CA2", ("gold",)), ("CA1", ("gold", "standard"))):
        assert isinstance(await allocate(dialing, call, wait_max_s=30, tiers=tiers), Allocation), call


async def test_a_waiter_that_stopped_polling_delays_no_other_call(dialing: Dialing) -> None:
    await allocate(dialing, "CA1", wait_max_s=30)
    await dialing.run("UPDATE allocations SET polled_at = polled_at - interval '8 seconds'")
    await dialing.pod("va-0")
    assert await pod_of(dialing, "CA2") == "va-0"


async def test_a_waiter_past_its_maximum_wait_gets_none_and_leaves_no_row(dialing: Dialing) -> None:
    await allocate(dialing, "CA1", wait_max_s=30)
    await dialing.run("UPDATE allocations SET asked_at = asked_at - interval '31 seconds'")
    assert await allocate(dialing, "CA1", wait_max_s=30) == Unallocated("busy")
    assert await dialing.value("SELECT count(*) FROM allocations") == 0


async def test_a_silent_pod_is_allocated_only_when_no_other_is_free(dialing: Dialing) -> None:
    await dialing.run("UPDATE pod_hearing SET since = clock_timestamp() - interval '1 hour'")
    await dialing.pod("silent-0")
    await dialing.run("UPDATE pods SET heard_at = clock_timestamp() - interval '1 minute'")
    await dialing.pod("va-0")
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["va-0", "silent-0"]


async def test_a_late_note_of_an_ended_attempt_is_written_as_ended(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    attempt = await dialing.kept("+12125550001", slot)
    await dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", attempt)
    async with dialing.database.connection() as conn:
        await allocations.note(conn, Allocation(attempt, "CA1", slot, "m"), has_attempt=True)
    assert await dialing.value("SELECT ended_at IS NOT NULL FROM allocations WHERE id = $1", attempt)


async def test_a_late_note_on_a_taken_slot_is_written_without_a_pod(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.kept("+12125550001", slot)
    noted = new_id()
    async with dialing.database.connection() as conn:
        is_free = await allocations.note(conn, Allocation(noted, "CA9", slot, "m"), has_attempt=False)
    found = await dialing.row("SELECT * FROM allocations WHERE id = $1", noted)
    assert (is_free, found["pod"], found["call"], found["ended_at"]) == (False, None, "CA9", None)


async def test_tombstones_are_deleted_after_their_age(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    attempt = await dialing.kept("+12125550001", slot)
    await dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", attempt)
    await pod_of(dialing, "CA2")
    await release(dialing, "CA2")
    await dialing.run("UPDATE allocations SET ended_at = ended_at - interval '11 minutes'")
    async with dialing.database.connection() as conn:
        await allocations.forget(conn, 600)
        assert await dialing.value("SELECT count(*) FROM allocations WHERE has_attempt") == 1
        assert await dialing.value("SELECT count(*) FROM allocations") == 1
        await dialing.run("UPDATE allocations SET ended_at = ended_at - interval '1 day'")
        await allocations.forget(conn, 600)
    assert await dialing.value("SELECT count(*) FROM allocations") == 0


async def test_concurrent_intents_folds_answers_and_releases_never_deadlock(dialing: Dialing) -> None:
    """Every pair of them meets on few pods, in the orders of the product; Postgres counts deadlocks itself."""
    pods = [await dialing.pod(f"va-{n}") for n in range(6)]
    await dialing.run("UPDATE numbers SET max_channels = 1000")
    answered: set[str] = set()

    async def dials(turn: int) -> None:
        for n in range(12):
            slots = [pods[(turn + n + k) % 6] for k in range(3)]
            grants = [dialing.grant(lead) for lead in await dialing.leads(3)]
            proposed = {grant.attempt_id: slot for grant, slot in zip(grants, slots, strict=True)}
            intents = await dialing.intend(*grants, slots=proposed, agents=AGENTS_OURS)
            ids = [intent.attempt_id for intent in intents.committed]
            for attempt in ids:
                if await begin(dialing, attempt, f"CA-{attempt}"):
                    answered.add(f"CA-{attempt}")
            async with dialing.database.transaction() as tx:
                await tx.execute("SELECT attempts_lock($1)", ids)
                await tx.execute(
                    "UPDATE attempts SET state = 'ended', holds_channel = false WHERE id = ANY($1)", ids
                )

    async def callers(turn: int) -> None:
        for n in range(20):
            call = f"CA-in-{turn}-{n}"
            found = await allocate(dialing, call, proposal=pods[(turn + n) % 6])
            if isinstance(found, Allocation):
                await release(dialing, call)

    async def loses_pods() -> None:
        for _ in range(20):
            async with dialing.database.transaction() as tx:
                await tx.execute(
                    "UPDATE allocations SET pod = NULL, slot = NULL, incarnation = NULL FROM"
                    " (SELECT id FROM allocations WHERE ended_at IS NULL AND begun_at IS NOT NULL ORDER BY id"
                    " FOR NO KEY UPDATE) AS lost WHERE allocations.id = lost.id"
                )

    await asyncio.gather(dials(0), dials(3), callers(1), callers(4), loses_pods())
    assert answered, "some calls were answered on their pods"
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await dialing.value(deadlocks) == 0
    assert await dialing.value("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == 0


# --- a pod that sends heartbeats and takes no stream


async def test_a_pod_that_missed_two_calls_comes_last_and_gets_one_call_at_a_time(
    dialing: Dialing,
) -> None:
    await dialing.pod("broken-0", calls_max=3)
    await dialing.run("UPDATE pods SET missed = 2, missed_at = clock_timestamp()")
    await dialing.pod("va-0")
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["va-0", "broken-0"]
    assert await allocate(dialing, "CA9") == Unallocated("busy")


async def test_a_pod_that_missed_two_calls_takes_a_reservation_only_after_30_seconds(
    dialing: Dialing,
) -> None:
    slot = await dialing.pod("broken-0")
    await dialing.run("UPDATE pods SET missed = 2, missed_at = clock_timestamp()")
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert intents.lost_slots == (slot,)
    await dialing.run("UPDATE pods SET missed_at = missed_at - interval '31 seconds'")
    await dialing.kept("+12125550001", slot)


async def test_only_calls_that_the_pods_agent_never_joined_count_as_missed(dialing: Dialing) -> None:
    for name, call, joined in (("va-0", "CA1", True), ("va-1", "CA2", False)):
        attempt = await dialing.kept(f"+1212555000{call[-1]}", await dialing.pod(name))
        assert await begin(dialing, attempt, call)
        if joined:
            await dialing.run("UPDATE allocations SET joined_at = clock_timestamp() WHERE id = $1", attempt)
        async with dialing.database.connection() as conn:
            assert isinstance(
                await allocations.resume(conn, attempt, call, 0, turn_max=2), allocations.LostAgent
            )
    rows = await dialing.database.pool.fetch("SELECT name, missed FROM pods ORDER BY name")
    assert [tuple(row) for row in rows] == [("va-0", 0), ("va-1", 1)]


async def test_a_call_that_lost_its_pod_and_finds_no_other_keeps_its_row(dialing: Dialing) -> None:
    """It says that no agent took the call."""
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    assert await begin(dialing, attempt, "CA1")
    async with dialing.database.connection() as conn:
        await allocations.resume(conn, attempt, "CA1", 0, turn_max=2)
    await dialing.run("DELETE FROM pods")
    assert await allocate(dialing, "CA1", attempt) == Unallocated("busy")
    async with dialing.database.transaction() as tx:
        found = (await attempts.lock(tx, [attempt]))[attempt]
    assert found.allocation is not None
    assert (found.allocation.was_refused, found.allocation.has_joined) == (True, False)
    assert await dialing.value("SELECT why FROM allocations") == "no_agent"


async def test_a_call_that_lost_its_agent_prefers_a_pod_with_a_later_heartbeat(dialing: Dialing) -> None:
    """Pods that died together all sent a heartbeat before, and none since."""
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    assert await begin(dialing, attempt, "CA1")
    for n in range(1, 8):
        await dialing.pod(f"va-{n}")
    async with dialing.database.connection() as conn:
        await allocations.resume(conn, attempt, "CA1", 0, turn_max=2)
        await dialing.run("UPDATE pods SET heard_at = clock_timestamp() - interval '1 second'")
        assert isinstance(await allocate(dialing, "CA1", attempt), Allocation), "nobody was heard since: any"
        await dialing.run("UPDATE pods SET heard_at = clock_timestamp() WHERE name = 'va-5'")
        await dialing.run("UPDATE allocations SET pod = NULL, slot = NULL, incarnation = NULL")
        await allocations.resume(conn, attempt, "CA1", 1, turn_max=2)
    assert await pod_of(dialing, "CA1", attempt) == "va-5"


async def lose_two_agents(dialing: Dialing) -> UUID:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    assert await begin(dialing, attempt, "CA1")
    async with dialing.database.connection() as conn:
        for turn in range(2):
            await allocations.resume(conn, attempt, "CA1", turn, turn_max=2)
    return attempt


async def test_a_call_that_lost_two_agents_waits_for_a_pods_next_heartbeat(dialing: Dialing) -> None:
    """Of ten pods that died together a caller would else meet one after the other."""
    await dialing.pod("dead")
    await dialing.pod("alive")
    attempt = await lose_two_agents(dialing)
    assert await allocate(dialing, "CA1", attempt, wait_max_s=10) == Unallocated("hold")
    await dialing.run("UPDATE pods SET heard_at = clock_timestamp() WHERE name = 'alive'")
    found = await allocate(dialing, "CA1", attempt, wait_max_s=10)
    assert isinstance(found, Allocation)
    assert found.slot.pod == "alive"


async def test_a_call_that_lost_two_agents_stops_waiting_for_slow_heartbeats(dialing: Dialing) -> None:
    await dialing.pod("va-1")
    await dialing.run("UPDATE pods SET interval_s = 30")
    attempt = await lose_two_agents(dialing)
    assert await allocate(dialing, "CA1", attempt, wait_max_s=10) == Unallocated("hold")
    await dialing.run("UPDATE allocations SET asked_at = asked_at - interval '3 seconds'")
    found = await allocate(dialing, "CA1", attempt, wait_max_s=10)
    assert isinstance(found, Allocation)
    assert found.slot.pod == "va-1"


async def give_new(dialing: Dialing, *wanted: tuple[str, Slot]) -> list[str | None]:
    asked = [AllocationRequest(new_id(), call, None, "m", slot) for call, slot in wanted]
    async with dialing.database.connection() as conn:
        given = await allocations.allocate_new(conn, asked)
    return [one.slot.pod if one else None for one in given]


async def test_a_group_allocates_each_free_proposal_and_leaves_out_the_others(dialing: Dialing) -> None:
    free, taken, leaving = [await dialing.pod(f"va-{n}") for n in range(3)]
    await dialing.run("UPDATE pods SET leaving_since = now() WHERE name = 'va-2'")
    assert await pod_of(dialing, "CA0", proposal=taken) == "va-1"
    found = await give_new(dialing, ("CA1", free), ("CA2", taken), ("CA3", leaving), ("CA0", free))
    assert found == ["va-0", None, None, None]
    assert await dialing.value("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == 2


async def test_a_group_allocates_no_pod_to_an_ended_call(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    assert await give_new(dialing, ("CA1", slot)) == ["va-0"]
    assert await release(dialing, "CA1")
    assert await give_new(dialing, ("CA1", slot)) == [None]


async def test_a_group_allocates_no_slot_of_an_earlier_incarnation(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.run("UPDATE pods SET incarnation = nextval('pod_incarnations')")
    assert await give_new(dialing, ("CA1", slot)) == [None]


async def test_a_group_of_releases_ends_each_call_once_and_returns_its_pod(dialing: Dialing) -> None:
    for n in range(2):
        slot = await dialing.pod(f"va-{n}")
        assert await pod_of(dialing, f"CA{n}", proposal=slot) == f"va-{n}"
    wanted = [
        Release("CA0", new_id(), "va-0", 0),
        Release("CA1", new_id(), "va-0", 0),  # another pod's call
        Release("CA0", new_id(), "va-0", 0),  # again
        Release("CA9", new_id()),  # never seen: its answer may come late
    ]
    async with dialing.database.connection() as conn:
        found = await allocations.release(conn, wanted)
    assert [one.pod if one else None for one in found] == ["va-0", None, None, None]
    assert await allocate(dialing, "CA9") == Unallocated("ended")
    assert await dialing.value("SELECT pod FROM allocations WHERE ended_at IS NULL") == "va-1"


async def test_a_release_by_the_pod_sets_joined_at_and_removes_the_named_call(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await pod_of(dialing, "CA1", proposal=slot)
    await dialing.run("UPDATE pods SET named = '{CA1,CA2}'")
    assert await release(dialing, "CA1", "va-0", 0)
    assert await dialing.value("SELECT named FROM pods") == ["CA2"]
    assert await dialing.value("SELECT joined_at IS NOT NULL FROM allocations WHERE call = 'CA1'")


async def test_a_release_does_not_wait_for_the_row_lock_of_another_call(dialing: Dialing) -> None:
    for n in range(2):
        await pod_of(dialing, f"CA{n}", proposal=await dialing.pod(f"va-{n}"))
    group = GroupCommit(dialing.database, allocations.release, 5.0)
    async with dialing.database.transaction() as stranger:
        await stranger.execute("SELECT FROM allocations WHERE call = 'CA0' FOR UPDATE")
        found = await asyncio.gather(
            *(group.ask(Release(f"CA{n}", new_id())) for n in range(2)), return_exceptions=True
        )
    assert isinstance(found[0], asyncpg.LockNotAvailableError)
    assert isinstance(found[1], EndedAllocation)
    assert found[1].pod == "va-1"


async def test_the_pod_view_agrees_with_the_function_that_picks_slots(dialing: Dialing) -> None:
    """The view and the function are two ways to ask one thing."""
    odd = {
        "ready": "is_ready = false",
        "changing": "changing_since = now()",
        "leaving": "leaving_since = now()",
        "draining": "draining_until = now() + interval '1 hour'",
        "drained": "draining_until = now() - interval '1 hour'",
        "names": "named = '{CA-foreign}'",
        "missed": "missed = 2, missed_at = now()",
        "silent": "sequence = 1, heard_at = now() - interval '1 hour'",
        "spoke": "sequence = 1",
        "shrunk": "calls_max = 1",
        "hangs": "calls_max = 3, hanging = '{CA-over}'",
        "hangs_full": "hanging = '{CA-over}'",
    }
    for name, change in odd.items():
        slot = await dialing.pod(name, calls_max=2)
        await pod_of(dialing, f"CA-{name}", proposal=replace(slot, no=2))
        await dialing.run(f"UPDATE pods SET {change} WHERE name = '{name}'")
    await dialing.run("UPDATE pod_hearing SET since = now() - interval '2 hours'")
    await dialing.run("UPDATE pods SET named = '{CA-spoke}' WHERE name = 'spoke'")
    said = await dialing.database.pool.fetch(
        "SELECT name, pod_takes(p, false) AS call, pod_takes(p, true) AS dial FROM pods AS p"
    )
    for for_dials in (False, True):
        where = (
            "NOT is_silent AND (missed < 2 OR missed_at <= now() - interval '30 s')" if for_dials else "true"
        )
        rows = await dialing.database.pool.fetch(f"SELECT DISTINCT name FROM free_pod_slots WHERE {where}")
        found = {row["name"] for row in rows}
        assert found == {row["name"] for row in said if row["dial" if for_dials else "call"]}


async def test_a_group_gives_what_a_pod_takes_and_leaves_rare_ones_to_a_call_alone(dialing: Dialing) -> None:
    """`allocate_new_calls` spells out what `pod_takes` asks."""
    states = {
        "free": "calls_max = 2",
        "unready": "is_ready = false",
        "changing": "changing_since = now()",
        "leaving": "leaving_since = now()",
        "draining": "draining_until = now() + interval '1 hour'",
        "drained": "draining_until = now() - interval '1 hour'",
        "names_its_own": "named = '{CA-names_its_own}'",
        "names_another": "named = '{CA-foreign}'",
        "shrunk": "calls_max = 1",
        "missed_once": "missed = 1",
        "missed": "missed = 2, missed_at = now()",
        "hangs": "calls_max = 3, hanging = '{CA-over}'",
    }
    slots = {name: await dialing.pod(name, calls_max=2) for name in states}
    for name, change in states.items():
        await pod_of(dialing, f"CA-{name}", proposal=replace(slots[name], no=2))
        await dialing.run(f"UPDATE pods SET {change} WHERE name = '{name}'")
    said = await dialing.database.pool.fetch("SELECT name FROM pods AS p WHERE pod_takes(p, false)")
    found = await give_new(dialing, *((f"CB-{name}", slot) for name, slot in slots.items()))
    takes, given = {row["name"] for row in said}, {pod for pod in found if pod}
    assert takes == {"free", "drained", "names_its_own", "missed_once", "hangs"}
    assert given == takes - {"hangs"}
    assert await pod_of(dialing, "CB-hangs", proposal=slots["hangs"]) == "hangs"


async def test_a_release_reads_its_own_rows_also_by_a_plan_of_when_the_table_was_empty(
    dialing: Dialing,
) -> None:
    rows = 2000
    async with dialing.database.connection() as conn:
        await allocations.release(conn, [Release("CA-planned", new_id())])
        await conn.execute(
            "INSERT INTO allocations (id, has_attempt, call, begun_at) "
            "SELECT gen_random_uuid(), false, 'CA' || n, now() FROM generate_series(1, $1::int) AS n",
            rows,
        )
        async with conn.transaction():
            known, unknown = Release("CA1", new_id()), Release("CA-unknown", new_id())
            found = await allocations.release(conn, [known, unknown])
            read = await conn.fetchval(
                "SELECT pg_stat_get_xact_tuples_fetched(oid) + pg_stat_get_xact_tuples_returned(oid) "
                "FROM pg_class WHERE oid = 'allocations'::regclass"
            )
    assert [one is not None for one in found] == [True, False]
    assert read < 20
