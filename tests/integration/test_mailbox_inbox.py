"""Appends share commits, and a failing or blocked append affects no other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.support.faults.proxy import TcpProxy
from tests.support.mailbox.world import KIND, MailboxWorld, Recorder, event, mailbox_world, running
from tests.support.waiting import eventually
from trunkline.errors import StoreUnavailable
from trunkline.mailbox.inbox import BadEvent, Inbox, InboxLimits
from trunkline.store import mailboxes
from trunkline.store.database import Connection
from trunkline.store.mailboxes import NewEvent, Receipt


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        yield world


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The dedupe keys of each transaction that was begun."""
    seen: list[list[str]] = []
    append = mailboxes.append

    async def noted(tx: Connection, events: Sequence[NewEvent], **options: Any) -> list[Receipt]:
        seen.append([each.dedupe_key for each in events])
        return await append(tx, events, **options)

    monkeypatch.setattr(mailboxes, "append", noted)
    return seen


async def test_an_append_is_durable_when_it_returns(world: MailboxWorld) -> None:
    receipt = await world.inbox.append(event(name="first"))
    assert (receipt.seq, receipt.created) == (1, True)
    assert await world.unprocessed() == ["first"]


async def test_concurrent_appends_share_a_commit(world: MailboxWorld, commits: list[list[str]]) -> None:
    await world.inbox.append_all(event(str(n % 7), str(n)) for n in range(100))
    assert [len(batch) for batch in commits] == [100]
    assert await world.value("SELECT count(*) FROM mailbox_events") == 100


async def test_a_batch_is_written_while_further_appends_keep_coming(
    world: MailboxWorld, commits: list[list[str]]
) -> None:
    loop = asyncio.get_running_loop()
    sent: list[asyncio.Task[Receipt]] = []

    def one_more() -> None:
        # Ahead of whatever the last one has scheduled.
        if not commits and len(sent) < 2000:
            loop.call_soon(one_more)
            sent.append(loop.create_task(world.inbox.append(event(name=str(len(sent))))))

    one_more()
    await eventually(lambda: commits or len(sent) == 2000)
    await asyncio.gather(*sent)
    assert len(sent) < 2000, "the first left while others were still coming"


async def test_appends_during_a_batchs_write_go_into_the_next_one(
    world: MailboxWorld, commits: list[list[str]]
) -> None:
    async with world.database.transaction() as tx:
        await mailboxes.lock(tx, {(KIND, "a")})
        first = asyncio.ensure_future(world.inbox.append(event(name="1")))
        await eventually(world.waiting_for_a_lock)
        later = [asyncio.ensure_future(world.inbox.append(event(name=name))) for name in "23"]
    await asyncio.gather(first, *later)
    assert commits == [["1"], ["2", "3"]]


async def test_a_batch_is_bounded(world: MailboxWorld, commits: list[list[str]]) -> None:
    inbox = Inbox(world.database, world.bus, InboxLimits(batch_max=10))
    await inbox.append_all(event(name=str(n)) for n in range(25))
    assert [len(batch) for batch in commits] == [10, 10, 5]


async def test_the_events_of_a_mailbox_keep_their_append_order(world: MailboxWorld) -> None:
    names = [str(n) for n in range(50)]
    await world.inbox.append_all(event(name=name) for name in names)
    assert await world.unprocessed() == names


async def test_a_second_batch_overtakes_no_event_of_the_first(world: MailboxWorld) -> None:
    """The first waits for `0` and has not come to `a` yet. The second takes what is for others and leaves `a`."""
    inbox = Inbox(world.database, world.bus, InboxLimits(batch_max=2, linger_s=0))
    async with world.database.transaction() as holder:
        await mailboxes.lock(holder, {(KIND, "0")})
        first = asyncio.ensure_future(inbox.append_all(event(key, "1") for key in ("0", "a")))
        await eventually(world.waiting_for_a_lock)
        later = [asyncio.ensure_future(inbox.append(event("a", name))) for name in ("2", "3")]
        await asyncio.gather(*(inbox.append(event("b", name)) for name in ("1", "2")))
        assert not any(append.done() for append in later)
    receipts = [*await first, *await asyncio.gather(*later)]
    assert [receipt.seq for receipt in receipts] == [1, 1, 2, 3]
    await inbox.aclose()


async def test_an_append_to_a_mailbox_in_hand_does_not_wait_for_its_handler(world: MailboxWorld) -> None:
    handler = Recorder()
    let_go = handler.hold("a")
    async with running(world.worker(handler)):
        await world.inbox.append(event(name="1"))
        await handler.until(lambda: bool(handler.given))
        await world.inbox.append(event(name="2"))
        assert await world.status() == "processing"
        let_go()


async def test_an_event_that_cannot_be_written_fails_alone(world: MailboxWorld) -> None:
    """Postgres takes no NUL inside JSON; no rule of ours knows that before it is tried."""
    bad = NewEvent(KIND, "a", "bad", "happened", {"text": "a\x00b"})
    async with asyncio.timeout(30):
        results = await asyncio.gather(
            world.inbox.append(event("a", "1")),
            world.inbox.append(bad),
            world.inbox.append(event("a", "2")),
            world.inbox.append(event("b", "3")),
            return_exceptions=True,
        )
    assert [type(result).__name__ for result in results] == [
        "Receipt", "UntranslatableCharacterError", "Receipt", "Receipt",
    ]  # fmt: skip
    assert await world.unprocessed() == ["1", "2", "3"]


async def test_an_event_that_cannot_be_encoded_fails_alone(world: MailboxWorld) -> None:
    bad = NewEvent(KIND, "a", "bad", "happened", {"text": "\ud800"})
    results = await asyncio.gather(
        world.inbox.append(bad), world.inbox.append(event("a", "1")), return_exceptions=True
    )
    assert isinstance(results[0], Exception)
    assert isinstance(results[1], Receipt)


@pytest.mark.parametrize(
    "bad",
    [
        event(key=""),
        event(key="k" * 501),
        event(key="ü" * 251),
        event(name=""),
        event(name="n" * 501),
        event(kind="k" * 64),
        event(kind=""),
        event(type_=""),
        event(key="a\x00b"),
    ],
)
async def test_an_event_that_no_mailbox_can_hold_is_refused_before_it_costs_anything(
    world: MailboxWorld, commits: list[list[str]], bad: NewEvent
) -> None:
    with pytest.raises(BadEvent):
        await world.inbox.append(bad)
    assert commits == []


async def test_the_longest_names_that_are_taken_fit_into_the_indexes(world: MailboxWorld) -> None:
    await world.inbox.append(event("ü" * 250, "ö" * 250, kind="k" * 63))


# A locked mailbox


@asynccontextmanager
async def held_open(world: MailboxWorld, *keys: str, is_new: bool) -> AsyncIterator[None]:
    """An application has appended `0` to these mailboxes and does not commit before the end of the block."""
    if not is_new:
        await world.append(*(event(key, "before") for key in keys))
    async with world.database.transaction() as tx:
        await mailboxes.append(tx, [event(key, "0") for key in keys])
        yield


async def of(world: MailboxWorld, key: str) -> list[str]:
    rows = await world.rows(
        """SELECT dedupe_key FROM mailbox_events AS e JOIN mailboxes AS m ON m.id = e.mailbox_id
           WHERE m.key = $1 ORDER BY seq""",
        key,
    )
    return [row["dedupe_key"] for row in rows]


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
async def test_an_append_in_an_open_transaction_delays_appends_to_its_own_mailbox_only(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """However long an append may wait for its mailbox: nobody else waits with it."""
    monkeypatch.setattr(mailboxes, "BATCH_LOCK_TIMEOUT_MS", 50)
    waiting: list[asyncio.Future[Receipt]] = []
    async with asyncio.timeout(50), held_open(world, "held", is_new=is_new):
        for n in range(1, 6):
            waiting.append(asyncio.ensure_future(world.inbox.append(event("held", str(n)))))
            others = [world.inbox.append(event(f"other{each}", str(n))) for each in range(20)]
            assert all(receipt.created for receipt in await asyncio.gather(*others))
        assert not any(append.done() for append in waiting)
    receipts = await asyncio.gather(*waiting)
    first = receipts[0].seq
    assert [receipt.seq for receipt in receipts] == [first, first + 1, first + 2, first + 3, first + 4]
    assert await of(world, "held") == [*([] if is_new else ["before"]), "0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
async def test_a_single_append_to_a_locked_mailbox_delays_no_other(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr(mailboxes, "BATCH_LOCK_TIMEOUT_MS", 50)
    async with asyncio.timeout(50), held_open(world, "held", is_new=is_new):
        alone = asyncio.ensure_future(world.inbox.append(event("held", "1")))
        await eventually(world.waiting_for_a_lock)
        assert (await world.inbox.append(event("other"))).created
        assert not alone.done()
    assert (await alone).created


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
async def test_only_separate_writers_wait_long_for_locked_mailboxes(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """With the limits of the product: what is refused is the held mailbox's, and no batch of others waits a second."""
    append = mailboxes.append
    patient: list[set[str]] = []

    async def noted(tx: Connection, events: Sequence[NewEvent], **options: Any) -> list[Receipt]:
        if options.get("lock_timeout_ms", mailboxes.LOCK_TIMEOUT_MS) > mailboxes.BATCH_LOCK_TIMEOUT_MS:
            patient.append({each.key for each in events})
        return await append(tx, events, **options)

    refused: list[asyncio.Future[Receipt]] = []
    async with held_open(world, "held", is_new=is_new):
        monkeypatch.setattr(mailboxes, "append", noted)
        for n in range(1, 6):
            refused.append(asyncio.ensure_future(world.inbox.append(event("held", str(n)))))
            others = [world.inbox.append(event(f"other{each}", str(n))) for each in range(20)]
            assert all(receipt.created for receipt in await asyncio.gather(*others))
        results = await asyncio.gather(*refused, return_exceptions=True)
    assert {type(result) for result in results} == {StoreUnavailable}
    assert {"held"} in patient
    assert all(keys == {"held"} for keys in patient)


async def test_appends_to_many_locked_mailboxes_are_refused_and_delay_no_other(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "BATCH_LOCK_TIMEOUT_MS", 50)
    monkeypatch.setattr(mailboxes, "LOCK_TIMEOUT_MS", 500)
    known, new = [f"known{n}" for n in range(30)], [f"new{n}" for n in range(30)]
    async with held_open(world, *known, is_new=False), held_open(world, *new, is_new=True):
        held = [asyncio.ensure_future(world.inbox.append(event(key, "1"))) for key in [*known, *new]]
        assert (await world.inbox.append(event("other"))).created
        results = await asyncio.gather(*held, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
    receipts = await world.inbox.append_all(event(key, "1") for key in [*known, *new])
    assert all(receipt.created for receipt in receipts)


async def test_a_cancelled_append_to_a_locked_mailbox_is_still_written(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "BATCH_LOCK_TIMEOUT_MS", 1)
    inbox = Inbox(world.database, world.bus)
    async with held_open(world, "held", is_new=True):
        callers = [asyncio.ensure_future(inbox.append(event("held", name))) for name in "12"]
        await eventually(lambda: len(inbox._held) == 1)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        closing = asyncio.ensure_future(inbox.aclose())
        await asyncio.wait([closing], timeout=0.01)
        assert not closing.done(), "it writes what it has taken"
    await closing
    assert await of(world, "held") == ["0", "1", "2"]


async def test_an_event_that_cannot_be_written_fails_alone_in_a_locked_mailbox(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "BATCH_LOCK_TIMEOUT_MS", 1)
    bad = NewEvent(KIND, "held", "bad", "happened", {"text": "a\x00b"})
    async with held_open(world, "held", is_new=False):
        first = asyncio.ensure_future(world.inbox.append(event("held", "1")))
        await eventually(lambda: len(world.inbox._held) == 1)
        others = [asyncio.ensure_future(world.inbox.append(each)) for each in (bad, event("held", "2"))]
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result).__name__ for result in results] == [
        "Receipt", "UntranslatableCharacterError", "Receipt",
    ]  # fmt: skip
    assert await of(world, "held") == ["before", "0", "1", "2"]


async def test_the_inbox_retries_a_deadlock_itself(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, deadlocks = mailboxes.append, [asyncpg.DeadlockDetectedError("first try")]

    async def unlucky(tx: Connection, events: Sequence[NewEvent], **options: Any) -> list[Receipt]:
        if deadlocks:
            raise deadlocks.pop()
        return await append(tx, events, **options)

    monkeypatch.setattr(mailboxes, "append", unlucky)
    assert (await world.inbox.append(event())).created


async def test_without_postgres_all_appends_of_a_batch_fail_at_once(
    world: MailboxWorld, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """One by one, a hundred callers would wait for a hundred time-outs."""
    async with (
        TcpProxy.before(database_url) as proxy,
        mailbox_world(proxy.url, redis_url, key_prefix) as behind,
    ):
        proxy.refuse()
        proxy.cut()
        results = await asyncio.gather(
            *(behind.inbox.append(event(name=str(n))) for n in range(100)), return_exceptions=True
        )
        assert {type(result) for result in results} == {StoreUnavailable}
        await proxy.heal()
        assert (await behind.inbox.append(event(name="later"))).created


async def test_an_append_sent_again_after_a_lost_reply_is_one_event(
    world: MailboxWorld, database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with (
        TcpProxy.before(database_url) as proxy,
        mailbox_world(proxy.url, redis_url, key_prefix) as behind,
    ):
        await behind.inbox.append(event(name="0"))
        proxy.swallow_reply(after=b"unlucky")
        with pytest.raises(StoreUnavailable):
            await behind.inbox.append(event(name="unlucky"))
        assert not (await behind.inbox.append(event(name="unlucky"))).created


async def test_a_cancelled_append_fails_no_other_of_its_batch(world: MailboxWorld) -> None:
    async with world.database.transaction() as tx:
        await mailboxes.lock(tx, {(KIND, "a")})
        callers = [asyncio.ensure_future(world.inbox.append(event(name=name))) for name in "12"]
        await eventually(world.waiting_for_a_lock)
        callers[0].cancel()
    assert (await callers[1]).created
    assert await world.unprocessed() == ["1", "2"]


async def test_an_event_whose_append_was_cancelled_is_still_written(world: MailboxWorld) -> None:
    async with world.database.transaction() as tx:
        await mailboxes.lock(tx, {(KIND, "a")})
        caller = asyncio.ensure_future(world.inbox.append(event(name="1")))
        await eventually(world.waiting_for_a_lock)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
    await world.inbox.aclose()
    assert await world.unprocessed() == ["1"]


async def test_an_append_after_the_inbox_closed_is_refused(world: MailboxWorld) -> None:
    inbox = Inbox(world.database, world.bus)
    await inbox.append(event(name="1"))
    await inbox.aclose()
    with pytest.raises(StoreUnavailable, match="closing"):
        await inbox.append(event(name="late"))


async def test_closing_the_inbox_waits_for_an_append_in_progress(world: MailboxWorld) -> None:
    inbox = Inbox(world.database, world.bus)
    async with world.database.transaction() as tx:
        await mailboxes.lock(tx, {(KIND, "a")})
        caller = asyncio.ensure_future(inbox.append(event(name="1")))
        await eventually(world.waiting_for_a_lock)
        closing = asyncio.ensure_future(inbox.aclose())
        await asyncio.wait([closing], timeout=0.01)
        assert not closing.done()
    await closing
    assert (await caller).created


async def test_closing_the_inbox_writes_accepted_events_and_refuses_new_ones(world: MailboxWorld) -> None:
    inbox = Inbox(world.database, world.bus, InboxLimits(batch_max=3))
    callers = [asyncio.ensure_future(inbox.append(event(name=str(n)))) for n in range(10)]
    await asyncio.sleep(0)
    await inbox.aclose()
    assert len(await asyncio.gather(*callers)) == 10
    assert await world.bus.client.xlen(world.bus.keys.mailbox_wakeups(KIND)) > 0
    with pytest.raises(StoreUnavailable):
        await inbox.append(event(name="late"))


async def test_an_inbox_past_its_limit_refuses_appends(world: MailboxWorld) -> None:
    inbox = Inbox(world.database, world.bus, InboxLimits(waiting_max=5))
    results = await asyncio.gather(
        *(inbox.append(event(name=str(n))) for n in range(8)), return_exceptions=True
    )
    written_at_once, waiting = 1, 5
    refused = [isinstance(result, StoreUnavailable) for result in results]
    assert refused == [False] * (written_at_once + waiting) + [True] * 2


async def test_a_hanging_valkey_delays_no_append(
    world: MailboxWorld, redis_url: str, key_prefix: str, database_url: str
) -> None:
    async with (
        TcpProxy.before(redis_url) as proxy,
        mailbox_world(database_url, proxy.url, key_prefix) as behind,
    ):
        await behind.inbox.append(event(name="0"))
        proxy.black_hole()
        async with asyncio.timeout(20):  # each of them would wait out a time-out
            for n in range(1, 20):
                await behind.inbox.append(event(name=str(n)))
        assert await world.value("SELECT count(*) FROM mailbox_events") == 20
        await proxy.heal()
