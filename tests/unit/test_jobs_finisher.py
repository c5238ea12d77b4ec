"""Every verdict is written or its job let go: one that is neither would be held, and its lease renewed, for ever."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from trunkline.jobs import finisher
from trunkline.jobs.finisher import Finisher, WrittenVerdicts
from trunkline.jobs.outcomes import JobVerdict
from trunkline.jobs.run import ClaimedJob, ClaimedJobs
from trunkline.jobs.wakeups import JobNotifier
from trunkline.model import new_id
from trunkline.store import jobs
from trunkline.store.jobs import Claimant, End, EndedJob, JobClaim, ReturnedClaim
from trunkline.testing.clock import ManualClock

NOW = datetime(2025, 1, 1, tzinfo=UTC)
Refuse = Callable[[Sequence[End]], None]


class Desk:
    """A finisher whose Postgres refuses what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuse: Refuse):
        self.written: list[str] = []
        self.tries = 0
        self._refuse = refuse
        monkeypatch.setattr(jobs, "finish", self.finish)
        monkeypatch.setattr(jobs, "finish_at_once", self.finish)
        monkeypatch.setattr(finisher, "RETRY_FIRST_S", 0.0)
        self.clock = ManualClock()
        self.claimed_jobs = ClaimedJobs(Claimant("w1"), self.clock.boottime_s)
        database: Any = self
        self.finisher = Finisher(database, self.claimed_jobs, JobNotifier(None), {}, on_room=lambda: None)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    transaction = connection

    async def execute(self, _statement: str, *_values: object) -> None:
        """A limit on waiting."""

    def is_in_transaction(self) -> bool:
        return False

    async def finish(self, _conn: object, ends: Sequence[End], _worker: str) -> list[EndedJob]:
        self.tries += 1
        self._refuse(ends)
        self.written += [end.result or "" for end in ends]
        return [EndedJob(end.id, "work", None) for end in ends]

    def returned(self, unique_key: str) -> None:
        """A run failed: its job goes back under its unique key."""
        job = JobClaim(new_id(), 1, "work", 50, NOW, NOW, 1, 4, unique_key, None, None, None, "{}")
        held = ClaimedJob(job, self.clock.boottime_s(), self.clock.boottime_s() + 15)
        self.claimed_jobs.add(held)
        self.finisher.add(held, ReturnedClaim(job.id, 1, 1.0))

    def ended(self, *results: str) -> None:
        for result in results:
            job = JobClaim(new_id(), 1, "work", 50, NOW, NOW, 1, 4, None, None, None, None, "{}")
            held = ClaimedJob(job, self.clock.boottime_s(), self.clock.boottime_s() + 15)
            self.claimed_jobs.add(held)
            self.finisher.add(held, End(job.id, 1, result=result))


def refusing(result: str, error: Exception) -> Refuse:
    def refuse(ends: Sequence[End]) -> None:
        if any(end.result == result for end in ends):
            raise error

    return refuse


@pytest.mark.parametrize(
    "error", [asyncpg.DataError("no text"), asyncpg.CheckViolationError("too long"), ZeroDivisionError()]
)
async def test_a_verdict_that_cannot_be_written_is_dropped_and_the_others_are_written(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    desk = Desk(monkeypatch, refusing("bad", error))
    desk.ended("a", "bad", "b")
    await desk.finisher.flushed()
    assert desk.written == ["a", "b"]
    assert len(desk.claimed_jobs) == 0


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.LockNotAvailableError("canceling statement due to lock timeout"),
        asyncpg.DiskFullError("could not extend file"),
        ConnectionRefusedError(),
    ],
)
async def test_a_transient_error_is_retried(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    errors = [error, error]

    def refuse(_ends: Sequence[End]) -> None:
        if errors:
            raise errors.pop()

    desk = Desk(monkeypatch, refuse)
    desk.ended("a", "b")
    await desk.finisher.flushed()
    assert sorted(desk.written) == ["a", "b"]
    assert len(desk.claimed_jobs) == 0


async def test_a_verdict_not_written_before_its_lease_ends_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_ends: Sequence[End]) -> None:
        desk.clock.advance(20)
        raise ConnectionRefusedError

    desk = Desk(monkeypatch, refuse)
    desk.ended("a")
    await desk.finisher.flushed()
    assert desk.written == []
    assert len(desk.claimed_jobs) == 0


async def test_a_verdict_blocked_by_a_lock_is_isolated_by_halving_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone: list[str] = []

    def refuse(ends: Sequence[End]) -> None:
        # It is let go of once it was tried alone, in both ways.
        if len(alone) < 2 and any(end.result == "5" for end in ends):
            if len(ends) == 1:
                alone.append("5")
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")

    desk = Desk(monkeypatch, refuse)
    desk.ended(*(str(n) for n in range(16)))
    await desk.finisher.flushed()
    assert desk.written[-1] == "5"
    assert sorted(desk.written, key=int) == [str(n) for n in range(16)]
    assert desk.tries < 20
    assert len(desk.claimed_jobs) == 0


async def test_a_returned_claim_under_a_locked_key_is_tried_once_per_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second try at once would put it off twice, and end it twice later."""
    desk = Desk(monkeypatch, lambda _: None)
    tries: list[int] = []

    async def write(_tx: object, verdicts: Sequence[JobVerdict], *_: object) -> WrittenVerdicts:
        tries.append(len(verdicts))
        if len(tries) == 1:
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return WrittenVerdicts()

    monkeypatch.setattr(finisher, "write", write)
    desk.returned("daily")
    await desk.finisher.flushed()
    assert tries == [1, 1]
    assert len(desk.claimed_jobs) == 0


async def test_many_blocked_verdicts_do_not_delay_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for its key for a moment. After a few of them what is new has its turn."""
    desk = Desk(monkeypatch, lambda _: None)
    tries: list[str] = []

    async def write(_tx: object, verdicts: Sequence[JobVerdict], *_: object) -> WrittenVerdicts:
        keys = {held.job.id: held.job.unique_key for held in desk.claimed_jobs}
        [key, *more] = [keys[verdict.id] for verdict in verdicts]
        if "new" in tries:
            return WrittenVerdicts()
        if not more:
            assert key is not None
            if key in tries and len(desk.claimed_jobs) == 40:
                desk.returned("new")
                tries.clear()
            tries.append(key)
        if key == "new":
            return WrittenVerdicts()
        desk.clock.advance(0.05)
        raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")

    monkeypatch.setattr(finisher, "write", write)
    for n in range(40):
        desk.returned(f"held{n}")
    await desk.finisher.flushed()
    # The others took 50 ms each, and a turn of theirs is 200 ms.
    assert tries.index("new") <= 5
    assert len(desk.claimed_jobs) == 0
