"""Which call has which slot: one pod per call, one call per slot, whoever asks at once and whoever ends meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from trunkline.model import Slot, new_id
from trunkline.store import allocations, attempts, resumptions
from trunkline.store.allocations import Allocation, Asked, Unallocated
from trunkline.testing.dialing import AGENTS_OURS, Dialing, open_dialing

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
) -> Allocation | Unallocated:
    asked = Asked(new_id(), call, attempt, "m", TIERS, proposal, wait_max_s)
    async with dialing.database.connection() as conn:
        return await allocations.allocate(conn, asked)


async def pod_of(dialing: Dialing, call: str, attempt: UUID | None = None, **more: Slot | None) -> str:
    found = await allocate(dialing, call, attempt, **more)  # type: ignore[arg-type]
    assert isinstance(found, Allocation), found
    return found.slot.pod


async def begin(dialing: Dialing, attempt: UUID, call: str) -> Allocation | None:
    async with dialing.database.connection() as conn:
        return await allocations.begin(conn, attempt, call)


async def release(dialing: Dialing, call: str, by_pod: str = "", turn: int | None = None) -> bool:
    async with dialing.database.connection() as conn:
        found = await allocations.release(
            conn, call, tombstone_id=new_id(), why="released", by_pod=by_pod, turn=turn
        )
    return found is not None


async def test_the_answer_of_a_kept_call_gets_the_pod_that_was_kept(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    attempt = await dialing.kept("+12125550001", slot)
    found = await begin(dialing, attempt, "CA1")
    assert found is not None
    assert (found.slot, found.base_url, found.merchant_id) == (slot, "ws://va-0.example.com", "m")
    again = await begin(dialing, attempt, "CA1")
    assert again == found, "the carrier asks twice"
    assert await begin(dialing, attempt, "CA2") is None, "another call under this attempt"


@pytest.mark.parametrize("state", ["ended", "rejected", "absent", "unknown"])
async def test_a_kept_row_means_that_the_attempt_is_current(dialing: Dialing, state: str) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run("UPDATE attempts SET state = $1", state)
    assert await begin(dialing, attempt, "CA1") is None


async def test_a_row_of_an_older_incarnation_is_lost_and_the_call_gets_another_pod(dialing: Dialing) -> None:
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


async def test_calls_that_ask_at_once_get_different_pods(dialing: Dialing) -> None:
    for n in range(6):
        await dialing.pod(f"va-{n}")
    pods = await asyncio.gather(*(pod_of(dialing, f"CA{n}") for n in range(6)))
    assert len(set(pods)) == 6
    assert await allocate(dialing, "CA7") == Unallocated("none")
    assert await dialing.value("SELECT count(*) FROM allocations") == 6, "who does not wait leaves no row"


async def test_a_proposal_is_taken_and_one_that_is_taken_is_not(dialing: Dialing) -> None:
    first, second = await dialing.pod("va-0"), await dialing.pod("va-1")
    assert await pod_of(dialing, "CA1", proposal=second) == "va-1"
    assert await pod_of(dialing, "CA2", proposal=second) == "va-0"
    assert first.pod == "va-0"


async def test_tiers_are_looked_at_in_order(dialing: Dialing) -> None:
    await dialing.pod("standard-0")
    await dialing.pod("gold-0", tier="gold")
    await dialing.pod("private-0", tier="merchant:another")
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["gold-0", "standard-0"]
    assert await allocate(dialing, "CA9") == Unallocated("none")


async def test_a_shared_pod_takes_as_many_as_it_may(dialing: Dialing) -> None:
    await dialing.pod("va-0", calls_max=2)
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["va-0", "va-0"]
    assert await allocate(dialing, "CA9") == Unallocated("none")


async def test_an_ended_call_gets_no_pod_again(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await pod_of(dialing, "CA1")
    assert await release(dialing, "CA1")
    assert not await release(dialing, "CA1")
    assert await allocate(dialing, "CA1") == Unallocated("ended")
    assert await pod_of(dialing, "CA2") == "va-0"


async def test_the_end_of_an_unknown_call_leaves_a_tombstone_too(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    assert not await release(dialing, "CA1")
    assert await allocate(dialing, "CA1") == Unallocated("ended")


async def test_who_tries_the_router_out_may_use_the_same_id_after_ten_minutes(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await pod_of(dialing, "test-call-001")
    await release(dialing, "test-call-001")
    await dialing.run("UPDATE allocations SET ended_at = ended_at - interval '11 minutes'")
    assert await pod_of(dialing, "test-call-001") == "va-0"


async def test_an_agent_that_lost_the_call_to_another_ends_nothing(dialing: Dialing) -> None:
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


async def test_a_call_that_somebody_wants_ended_gets_no_pod(dialing: Dialing) -> None:
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
async def test_a_call_that_was_given_up_has_to_be_adopted_first(dialing: Dialing, state: str) -> None:
    await dialing.pod("va-0")
    attempt = await dialing.attempt("+12125550001", state=state)
    assert await allocate(dialing, "CA1", attempt) == Unallocated("given_up")


async def test_a_second_call_under_one_attempt_is_told_that_it_is_taken(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.pod("va-1")
    attempt = await dialing.kept("+12125550001", slot)
    assert await begin(dialing, attempt, "CA1")
    assert await allocate(dialing, "CA2", attempt) == Unallocated("taken")


async def test_a_call_whose_doubt_lasted_too_long_still_gets_a_pod(dialing: Dialing) -> None:
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    await dialing.run("UPDATE allocations SET ended_at = clock_timestamp(), why = 'doubt'")
    assert await begin(dialing, attempt, "CA1") is None
    assert await pod_of(dialing, "CA1", attempt) == "va-0"


async def test_race_a_fold_in_flight_is_waited_for(dialing: Dialing) -> None:
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


async def test_race_of_two_requests_for_one_call_the_loser_reads_what_the_winner_got(
    dialing: Dialing,
) -> None:
    await dialing.pod("va-0")
    await dialing.pod("va-1")
    first = await dialing.open_transaction()
    asked = Asked(new_id(), "CA1", None, "m", TIERS)
    won = await allocations.allocate(first, asked)
    second = await dialing.blocked(allocate(dialing, "CA1"))
    await dialing.commit(first)
    lost = await second
    assert isinstance(won, Allocation)
    assert isinstance(lost, Allocation)
    assert (lost.slot, lost.id) == (won.slot, won.id)


async def test_race_an_intent_in_flight_has_the_slot_that_a_caller_was_proposed(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.pod("va-1")
    grant = dialing.grant(await dialing.lead())
    intent, _ = await dialing.half_an_intent(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    asked = await dialing.blocked(pod_of(dialing, "CA1", proposal=slot))
    await dialing.commit(intent)
    assert await asked == "va-1"


async def test_waiters_are_served_oldest_first(dialing: Dialing) -> None:
    assert await allocate(dialing, "CA1", wait_max_s=30) == Unallocated("waits", 0)
    assert await allocate(dialing, "CA2", wait_max_s=30) == Unallocated("waits", 1)
    await dialing.pod("va-0")
    assert await allocate(dialing, "CA2", wait_max_s=30) == Unallocated("waits", 1)
    assert isinstance(await allocate(dialing, "CA1", wait_max_s=30), Allocation)


async def test_a_waiter_who_hung_up_holds_up_nobody(dialing: Dialing) -> None:
    await allocate(dialing, "CA1", wait_max_s=30)
    await dialing.run("UPDATE allocations SET polled_at = polled_at - interval '8 seconds'")
    await dialing.pod("va-0")
    assert await pod_of(dialing, "CA2") == "va-0"


async def test_who_has_waited_long_enough_is_told_so(dialing: Dialing) -> None:
    await allocate(dialing, "CA1", wait_max_s=30)
    await dialing.run("UPDATE allocations SET asked_at = asked_at - interval '31 seconds'")
    assert await allocate(dialing, "CA1", wait_max_s=30) == Unallocated("none")
    assert await dialing.value("SELECT count(*) FROM allocations") == 0


async def test_a_silent_pod_is_tried_only_when_nobody_else_is_free(dialing: Dialing) -> None:
    await dialing.run("UPDATE pod_hearing SET since = clock_timestamp() - interval '1 hour'")
    await dialing.pod("silent-0")
    await dialing.run("UPDATE pods SET heard_at = clock_timestamp() - interval '1 minute'")
    await dialing.pod("va-0")
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["va-0", "silent-0"]


async def test_a_note_of_what_was_given_without_postgres_lets_the_end_win(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    attempt = await dialing.kept("+12125550001", slot)
    await dialing.run("UPDATE attempts SET state = 'ended' WHERE id = $1", attempt)
    async with dialing.database.connection() as conn:
        await allocations.note(conn, attempt, "CA1", has_attempt=True, merchant_id="m", slot=slot)
    assert await dialing.value("SELECT ended_at IS NOT NULL FROM allocations WHERE id = $1", attempt)


async def test_a_note_that_meets_another_call_on_its_slot_is_written_without_a_pod(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0")
    await dialing.kept("+12125550001", slot)
    noted = new_id()
    async with dialing.database.connection() as conn:
        is_free = await allocations.note(conn, noted, "CA9", has_attempt=False, merchant_id="m", slot=slot)
    found = await dialing.row("SELECT * FROM allocations WHERE id = $1", noted)
    assert (is_free, found["pod"], found["call"], found["ended_at"]) == (False, None, "CA9", None)


async def test_tombstones_are_forgotten(dialing: Dialing) -> None:
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


async def test_intents_folds_answers_and_releases_beside_each_other_never_deadlock(dialing: Dialing) -> None:
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


async def test_a_pod_that_missed_two_calls_is_the_last_that_is_asked_and_gets_one_at_a_time(
    dialing: Dialing,
) -> None:
    await dialing.pod("broken-0", calls_max=3)
    await dialing.run("UPDATE pods SET missed = 2, missed_at = clock_timestamp()")
    await dialing.pod("va-0")
    assert [await pod_of(dialing, f"CA{n}") for n in range(2)] == ["va-0", "broken-0"]
    assert await allocate(dialing, "CA9") == Unallocated("none")


async def test_dials_are_kept_on_such_a_pod_only_now_and_then(dialing: Dialing) -> None:
    slot = await dialing.pod("broken-0")
    await dialing.run("UPDATE pods SET missed = 2, missed_at = clock_timestamp()")
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert intents.lost_slots == (slot,)
    await dialing.run("UPDATE pods SET missed_at = missed_at - interval '31 seconds'")
    await dialing.kept("+12125550001", slot)


async def test_only_calls_that_no_agent_of_the_pod_ever_took_count_as_missed(dialing: Dialing) -> None:
    for name, call, joined in (("va-0", "CA1", True), ("va-1", "CA2", False)):
        attempt = await dialing.kept(f"+1212555000{call[-1]}", await dialing.pod(name))
        assert await begin(dialing, attempt, call)
        if joined:
            await dialing.run("UPDATE allocations SET joined_at = clock_timestamp() WHERE id = $1", attempt)
        async with dialing.database.connection() as conn:
            assert isinstance(await resumptions.resume(conn, attempt, call, 0, turn_max=2), resumptions.Lost)
    rows = await dialing.database.pool.fetch("SELECT name, missed FROM pods ORDER BY name")
    assert [tuple(row) for row in rows] == [("va-0", 0), ("va-1", 1)]


async def test_a_call_that_lost_its_pod_and_finds_no_other_keeps_its_row(dialing: Dialing) -> None:
    """It says that no agent took the call."""
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    assert await begin(dialing, attempt, "CA1")
    async with dialing.database.connection() as conn:
        await resumptions.resume(conn, attempt, "CA1", 0, turn_max=2)
    await dialing.run("DELETE FROM pods")
    assert await allocate(dialing, "CA1", attempt) == Unallocated("none")
    async with dialing.database.transaction() as tx:
        found = (await attempts.lock(tx, [attempt]))[attempt]
    assert found.allocation is not None
    assert (found.allocation.was_refused, found.allocation.has_joined) == (True, False)
    assert await dialing.value("SELECT why FROM allocations") == "no_agent"


async def test_a_call_that_lost_its_agent_goes_to_a_pod_that_was_heard_since(dialing: Dialing) -> None:
    """Pods that died together were all heard before, and not since."""
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    assert await begin(dialing, attempt, "CA1")
    for n in range(1, 8):
        await dialing.pod(f"va-{n}")
    async with dialing.database.connection() as conn:
        await resumptions.resume(conn, attempt, "CA1", 0, turn_max=2)
        await dialing.run("UPDATE pods SET heard_at = clock_timestamp() - interval '1 second'")
        assert isinstance(await allocate(dialing, "CA1", attempt), Allocation), "nobody was heard since: any"
        await dialing.run("UPDATE pods SET heard_at = clock_timestamp() WHERE name = 'va-5'")
        await dialing.run("UPDATE allocations SET pod = NULL, slot = NULL, incarnation = NULL")
        await resumptions.resume(conn, attempt, "CA1", 1, turn_max=2)
    assert await pod_of(dialing, "CA1", attempt) == "va-5"
