"""The scenarios of issue-centric processing, step by step, through the stores that it names.

Messages are wakeups on the stream; a worker that dies leaves its message pending, and another takes it over.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.mailbox.world import MailboxWorld, mailbox_world
from trunkline.bus import mailbox_wakeups
from trunkline.mailbox.stores import EventLogStore, IssueStore, issue_id_of
from trunkline.store.mailboxes import ClaimedMailbox, NewEvent

KIND = "issue"
ISSUE = "123"


class Crash(Exception):
    """The process is gone: its transaction is rolled back, and nobody acknowledges anything."""


@dataclass(slots=True)
class Tracker:
    """An issue tracker whose webhooks append and wake a worker."""

    world: MailboxWorld
    events: EventLogStore

    async def webhook(self, name: str) -> None:
        await self.events.create_or_get(NewEvent(KIND, ISSUE, name, "comment", {"name": name}))
        await mailbox_wakeups.send(self.world.bus, KIND, [ISSUE])

    async def status(self) -> str:
        return await self.world.status(ISSUE, KIND)

    async def lease_ends(self) -> None:
        await self.world.expire_leases()

    def worker(self, name: str) -> "Worker":
        return Worker(self, name, IssueStore(self.world.database, worker=name))


@dataclass(slots=True)
class Worker:
    """A worker, driven by hand."""

    tracker: Tracker
    name: str
    issues: IssueStore

    async def reads_message(self) -> str:
        heard = await mailbox_wakeups.receive(self.tracker.world.bus, KIND, self.name, count=1, timeout_s=0)
        [message] = heard.ids
        return message

    async def takes_over(self) -> list[str]:
        """XCLAIM of what dead workers left on the pending list."""
        _, entries, _ = await self.tracker.world.bus.client.xautoclaim(
            self.tracker.world.bus.keys.mailbox_wakeups(KIND),
            mailbox_wakeups.GROUP,
            self.name,
            min_idle_time=0,
        )
        return [message for message, _ in entries]

    async def acknowledges(self, *messages: str) -> None:
        await mailbox_wakeups.done(self.tracker.world.bus, KIND, messages)

    async def claims(self) -> ClaimedMailbox | None:
        return await self.issues.claim_queued(ISSUE)

    async def processes(self, claimed: ClaimedMailbox | None, *, crash: bool = False) -> list[str]:
        """All pending events together, in one transaction with the completion."""
        assert claimed is not None
        pending = await self.tracker.events.list_unprocessed_by_issue(ISSUE)
        async with self.tracker.world.database.transaction() as tx:
            await self.tracker.events.mark_batch_processed(
                tx, claimed.claim, [event.seq for event in pending]
            )
            assert await self.issues.set_processed(tx, claimed)
            if crash:
                raise Crash
        return [event.payload["name"] for event in pending]


@pytest.fixture
async def tracker(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Tracker]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        await mailbox_wakeups.receive(world.bus, KIND, "first", count=1, timeout_s=0)  # makes the group
        yield Tracker(world, EventLogStore(world.database))


async def test_two_webhooks_of_one_issue_are_processed_together_and_once(tracker: Tracker) -> None:
    await tracker.webhook("A")
    await tracker.webhook("B")
    worker = tracker.worker("w1")
    await worker.reads_message()
    assert await worker.processes(await worker.claims()) == ["A", "B"]
    await worker.reads_message()
    assert await worker.claims() is None
    assert await tracker.status() == "idle"


async def test_two_workers_with_the_same_message_process_it_once(tracker: Tracker) -> None:
    await tracker.webhook("A")
    first, second = tracker.worker("w1"), tracker.worker("w2")
    message = await first.reads_message()
    claim = await first.claims()
    assert await second.takes_over() == [message]
    assert await second.claims() is None
    assert await first.processes(claim) == ["A"]


async def test_a_crash_before_the_commit_is_recovered_by_the_lease(tracker: Tracker) -> None:
    await tracker.webhook("A")
    dead, reclaimer = tracker.worker("w1"), tracker.worker("w2")
    message = await dead.reads_message()
    claim = await dead.claims()
    with pytest.raises(Crash):
        await dead.processes(claim, crash=True)
    # Taken over too early the message finds nothing to claim. It may be acknowledged all the same.
    assert await reclaimer.takes_over() == [message]
    assert await reclaimer.claims() is None
    await reclaimer.acknowledges(message)
    await tracker.lease_ends()
    assert await reclaimer.processes(await reclaimer.claims()) == ["A"]
    assert await tracker.status() == "idle"


@pytest.fixture
async def crashed_after_commit(tracker: Tracker) -> str:
    """A and B are processed, and the message that said so is still pending."""
    await tracker.webhook("A")
    worker = tracker.worker("w1")
    message = await worker.reads_message()
    await tracker.events.create_or_get(NewEvent(KIND, ISSUE, "B", "comment", {"name": "B"}))
    assert await worker.processes(await worker.claims()) == ["A", "B"]
    return message


async def test_after_the_commit_a_no_new_events_arrive(tracker: Tracker, crashed_after_commit: str) -> None:
    reclaimer = tracker.worker("w2")
    assert await reclaimer.takes_over() == [crashed_after_commit]
    assert await reclaimer.claims() is None
    await reclaimer.acknowledges(crashed_after_commit)
    assert await tracker.status() == "idle"


async def test_after_the_commit_b_new_events_arrive_before_the_reclaim(
    tracker: Tracker, crashed_after_commit: str
) -> None:
    await tracker.webhook("C")
    reclaimer, third = tracker.worker("w2"), tracker.worker("w3")
    assert await reclaimer.takes_over() == [crashed_after_commit]
    assert await reclaimer.processes(await reclaimer.claims()) == ["C"]
    await reclaimer.acknowledges(crashed_after_commit)
    new_message = await third.reads_message()
    assert new_message != crashed_after_commit
    assert await third.claims() is None
    assert await tracker.status() == "idle"


async def test_after_the_commit_c_the_reclaim_comes_before_new_events(
    tracker: Tracker, crashed_after_commit: str
) -> None:
    reclaimer, third = tracker.worker("w2"), tracker.worker("w3")
    await reclaimer.takes_over()
    assert await reclaimer.claims() is None
    await reclaimer.acknowledges(crashed_after_commit)
    await tracker.webhook("C")
    await third.reads_message()
    assert await third.processes(await third.claims()) == ["C"]


async def test_an_event_of_an_issue_can_be_set_aside(tracker: Tracker) -> None:
    await tracker.webhook("A")
    await tracker.webhook("B")
    assert await tracker.events.mark_failed(ISSUE, 1, "cannot be read")
    assert not await tracker.events.mark_failed(ISSUE, 1, "again")
    worker = tracker.worker("w1")
    assert await worker.processes(await worker.claims()) == ["B"]
    parked = await tracker.events.get_by_id(ISSUE, 1)
    assert parked is not None
    assert parked.error == "cannot be read"


async def test_a_worker_that_lost_its_lease_marks_nothing(tracker: Tracker) -> None:
    await tracker.webhook("A")
    slow, quick = tracker.worker("slow"), tracker.worker("quick")
    old = await slow.claims()
    assert old is not None
    await tracker.lease_ends()
    assert await quick.claims() is not None
    async with tracker.world.database.transaction() as tx:
        assert not await tracker.events.mark_processed(tx, old.claim, 1)
        assert not await slow.issues.set_processed(tx, old)


async def test_an_issue_is_found_by_its_integration_and_external_id(tracker: Tracker) -> None:
    issues = IssueStore(tracker.world.database, worker="w")
    made = await issues.upsert(issue_id_of("github", "acme/site#12"))
    assert await issues.get_by_integration_and_external_id("github", "acme/site#12") == made
    assert await issues.get_by_integration_and_external_id("gitlab", "acme/site#12") is None


async def test_an_event_that_is_created_twice_is_the_first(tracker: Tracker) -> None:
    event = NewEvent(KIND, ISSUE, "A", "comment", {"name": "A"})
    assert await tracker.events.create(event) == await tracker.events.create(event)


async def test_queue_if_idle_queues_an_idle_issue_once(tracker: Tracker) -> None:
    issues = IssueStore(tracker.world.database, worker="w")
    assert (await issues.upsert(ISSUE)).processing_status == "idle"
    assert await issues.queue_if_idle(ISSUE)
    assert not await issues.queue_if_idle(ISSUE)
    row = await issues.get_by_id(ISSUE)
    assert row is not None
    assert row.processing_status == "queued"
    assert await issues.get_by_id("unknown") is None
