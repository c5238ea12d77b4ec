"""The races of mailboxes, each forced: two sessions, stopped at the statement where it matters."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.mailbox.world import KIND, MailboxWorld, event, mailbox_world, names
from tests.support.waiting import eventually
from trunkline.store import mailboxes


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        yield world


async def test_an_event_appended_while_its_mailbox_is_processed_is_not_stranded(world: MailboxWorld) -> None:
    """The append has inserted and not committed; completion waits for its lock, and compares the counter it finds."""
    await world.append(event(name="first"))
    [claim] = await world.claim()
    async with world.database.transaction() as tx:
        await mailboxes.append(tx, [event(name="second")])
        completing = asyncio.create_task(world.complete(claim))
        await eventually(world.waiting_for_a_lock)
    assert await completing == {"a": "queued"}
    [again] = await world.claim()
    assert names([again]) == ["second"]


async def test_an_append_that_waits_for_a_completion_queues_the_mailbox_again(world: MailboxWorld) -> None:
    await world.append(event(name="first"))
    [claim] = await world.claim()
    async with world.database.transaction() as tx:
        await mailboxes.complete(tx, [claim])
        appending = asyncio.create_task(world.append(event(name="second")))
        await eventually(world.waiting_for_a_lock)
    await appending
    assert await world.status() == "queued"
    assert names(await world.claim()) == ["second"]


async def test_a_claim_skips_a_mailbox_that_an_append_has_locked(
    world: MailboxWorld,
) -> None:
    """A claim passes over a mailbox that an append has locked; whoever claims it afterwards sees both events."""
    await world.append(event(name="first"))
    async with world.database.transaction() as tx:
        await mailboxes.append(tx, [event(name="second")])
        assert await world.claim() == []
    assert names(await world.claim()) == ["first", "second"]


async def test_a_mailbox_whose_worker_died_is_claimed_again_when_its_lease_ends(world: MailboxWorld) -> None:
    """Also when its wakeup was read and acknowledged before: only the lease says that it is free."""
    await world.append(event())
    await world.claim(worker="dead")
    assert await world.claim() == []
    await world.expire_leases()
    [claim] = await world.claim()
    assert (names([claim]), claim.claim.failures) == (["1"], 1)


async def test_a_claim_by_key_takes_a_mailbox_whose_lease_ended(world: MailboxWorld) -> None:
    await world.append(event())
    await world.claim(worker="dead")
    await world.expire_leases()
    await world.append(event("b"))
    assert [each.claim.key for each in await world.claim(["a", "unknown"])] == ["a"]


async def test_a_worker_that_lost_its_lease_completes_nothing(world: MailboxWorld) -> None:
    await world.append(event(name="first"))
    [slow] = await world.claim(worker="slow")
    await world.expire_leases()
    [quick] = await world.claim(worker="quick")
    assert await world.complete(slow) == {}
    assert await world.unprocessed() == ["first"]
    assert await world.complete(quick) == {"a": "idle"}
    assert await world.complete(slow) == {}


async def test_a_worker_that_lost_its_lease_fails_renews_and_gives_back_nothing(world: MailboxWorld) -> None:
    await world.append(event())
    [slow] = await world.claim(worker="slow")
    await world.expire_leases()
    [quick] = await world.claim(worker="quick")
    async with world.database.connection() as conn:
        assert await mailboxes.fail(conn, slow.claim, "late", failures_max=1, delay_s=0) is None
        assert await mailboxes.renew(conn, KIND, [slow.claim, quick.claim], lease_s=60) == {slow.claim.fence}
        until = await conn.fetchval("SELECT claimable_at FROM mailboxes")
        assert await mailboxes.renew(conn, KIND, [slow.claim], lease_s=6000) == {slow.claim.fence}
        assert await conn.fetchval("SELECT claimable_at FROM mailboxes") == until
        assert await mailboxes.release(conn, KIND, [slow.claim]) == []
        assert await mailboxes.bury(conn, slow.claim) is None
    assert await world.status() == "processing"


async def test_a_completed_mailbox_does_not_fail(world: MailboxWorld) -> None:
    """It has the fence of its last claim until the next one."""
    await world.append(event())
    [done] = await world.claim()
    assert await world.complete(done) == {"a": "idle"}
    async with world.database.connection() as conn:
        assert await mailboxes.fail(conn, done.claim, "late", failures_max=1, delay_s=0) is None
    assert await world.status() == "idle"


async def test_the_fence_of_a_removed_mailbox_is_not_used_again(world: MailboxWorld) -> None:
    """Retention removes idle mailboxes. A worker that slept through that must not complete the next of that name."""
    await world.append(event(name="first"))
    [sleeper] = await world.claim()
    await world.value("DELETE FROM mailbox_events")
    await world.value("DELETE FROM mailboxes")
    await world.append(event(name="second"))
    [claim] = await world.claim()
    assert claim.claim.fence != sleeper.claim.fence
    assert await world.complete(sleeper) == {}


async def test_the_fence_of_a_claim_that_a_crashed_server_forgot_is_not_used_again(
    world: MailboxWorld,
) -> None:
    """A claim does not wait for the disk. A server that goes down at once comes back without it, and the worker that
    had it is still there: the next claim of the same mailbox must not get the same fence."""
    await world.append(event(name="first"))
    async with world.database.connection() as conn:
        going_down = conn.transaction()
        await going_down.start()
        [survivor] = await mailboxes.claim(conn, KIND, None, limit=1, worker="w", lease_s=60, events_max=10)
        assert await conn.fetchval("SHOW synchronous_commit") == "off"
        await going_down.rollback()
    [successor] = await world.claim(worker="successor")
    assert successor.claim.fence != survivor.claim.fence
    assert await world.complete(survivor) == {}
    assert await world.complete(successor) == {"a": "idle"}


async def test_an_append_and_a_completion_wait_for_the_disk(world: MailboxWorld) -> None:
    async with world.database.transaction() as tx:
        await mailboxes.append(tx, [event()])
        assert await tx.fetchval("SHOW synchronous_commit") == "on"
    [claim] = await world.claim()
    async with world.database.transaction() as tx:
        await mailboxes.complete(tx, [claim])
        assert await tx.fetchval("SHOW synchronous_commit") == "on"


async def test_a_duplicate_event_does_not_raise_the_mailboxs_counter(world: MailboxWorld) -> None:
    """Raised by a duplicate, the counter would send a mailbox round again with nothing to do."""
    [first] = await world.append(event())
    [claim] = await world.claim()
    [again] = await world.append(event())
    assert (again.seq, again.created) == (first.seq, False)
    assert await world.complete(claim) == {"a": "idle"}
    [late] = await world.append(event())
    assert not late.created
    assert await world.status() == "idle"


async def test_the_same_event_delivered_twice_at_the_same_moment_is_one(world: MailboxWorld) -> None:
    async with world.database.transaction() as tx:
        [first] = await mailboxes.append(tx, [event()])
        doubling = asyncio.create_task(world.append(event()))
        await eventually(world.waiting_for_a_lock)
    [second] = await doubling
    assert (first.seq, first.created, second.seq, second.created) == (1, True, 1, False)
    assert await world.value("SELECT appended FROM mailboxes") == 1


async def test_the_same_event_twice_in_one_batch_is_one(world: MailboxWorld) -> None:
    receipts = await world.append(event(name="1"), event(name="2"), event(name="1"))
    assert [receipt.seq for receipt in receipts] == [1, 2, 1]
    assert await world.value("SELECT appended FROM mailboxes") == 2


async def test_one_dedupe_key_in_two_mailboxes_is_two_events(world: MailboxWorld) -> None:
    receipts = await world.append(event("a", "same"), event("b", "same"))
    assert [receipt.created for receipt in receipts] == [True, True]


async def test_batches_that_name_the_same_mailboxes_in_opposite_order_do_not_deadlock(
    world: MailboxWorld,
) -> None:
    """Each stops between its locks and its insert, holding the lock that the other needs next if they were unsorted."""
    await world.append(event("a", "0"), event("b", "0"))
    async with world.database.transaction() as holder:
        await mailboxes.lock(holder, {(KIND, "a")})
        both = [
            asyncio.create_task(world.append(event("a", "1"), event("b", "1"))),
            asyncio.create_task(world.append(event("b", "2"), event("a", "2"))),
        ]
        await eventually(lambda: world.waiting_for_a_lock(2))
    await asyncio.gather(*both)
    assert await world.value("SELECT sum(appended) FROM mailboxes") == 6


async def test_a_mailbox_that_retention_removes_under_an_append_is_made_again(world: MailboxWorld) -> None:
    """The append has seen that the mailbox is there, waits for its lock, and finds it gone."""
    await world.append(event(name="first"))
    await world.complete(*await world.claim())
    async with world.database.transaction() as tx:
        await tx.execute("SELECT FROM mailboxes FOR UPDATE")
        appending = asyncio.create_task(world.append(event(name="second")))
        await eventually(world.waiting_for_a_lock)
        await tx.execute("DELETE FROM mailbox_events")
        await tx.execute("DELETE FROM mailboxes")
    [receipt] = await appending
    assert receipt.created
    assert names(await world.claim()) == ["second"]


async def test_an_append_that_waits_for_retention_makes_the_mailbox_again(world: MailboxWorld) -> None:
    await world.append(event(name="first"))
    await world.complete(*await world.claim())
    async with world.database.transaction() as tx:
        await tx.execute("DELETE FROM mailbox_events")
        await tx.execute("DELETE FROM mailboxes")
        appending = asyncio.create_task(world.append(event(name="second")))
        await eventually(world.waiting_for_a_lock)
    [receipt] = await appending
    assert receipt.created
    assert names(await world.claim()) == ["second"]


async def test_an_event_appended_after_the_claim_is_handled_in_the_next_turn(world: MailboxWorld) -> None:
    """Marked with the others it would be lost; its mailbox goes round again with it alone."""
    await world.append(event(name="first"))
    [claim] = await world.claim()
    await world.append(event(name="second"))
    assert names([claim]) == ["first"]
    assert await world.complete(claim) == {"a": "queued"}
    assert await world.unprocessed() == ["second"]
    assert names(await world.claim()) == ["second"]


async def test_completions_and_appends_of_the_same_mailboxes_do_not_deadlock(world: MailboxWorld) -> None:
    keys = [f"{n:02}" for n in range(40)]
    for turn in range(5):
        await world.append(*(event(key, f"{turn}") for key in keys))
        claims = await world.claim()
        await asyncio.gather(
            world.complete(*reversed(claims)),
            *(
                world.append(*(event(key, f"{turn}-{n}") for key in keys[::step]))
                for n, step in enumerate((1, -1, 1, -1))
            ),
        )
    assert await world.value("SELECT sum(appended) FROM mailboxes") == 40 * 5 * 5


@pytest.mark.usefixtures("impatient")
async def test_an_append_to_a_mailbox_locked_for_long_fails_by_lock_timeout(
    world: MailboxWorld,
) -> None:
    await world.append(event(name="first"))
    async with world.database.transaction() as stuck:
        await mailboxes.lock(stuck, {(KIND, "a")})
        with pytest.raises(Exception, match="lock timeout"):
            await world.append(event(name="second"))


async def test_a_process_stopped_between_completion_and_commit_loses_its_transaction(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "COMMIT_TIMEOUT_MS", 50)
    await world.append(event(name="first"))
    [claim] = await world.claim()

    async def stop_before_the_commit() -> None:
        async with world.database.transaction() as tx:
            await mailboxes.complete(tx, [claim])
            await eventually(tx.is_closed)

    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await stop_before_the_commit()
    assert await world.status() == "processing"
    assert await world.unprocessed() == ["first"]
