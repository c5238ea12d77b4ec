"""Every verdict is written or its job let go: one that is neither would be held, and its lease renewed, for ever."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from trunkline.clock import ManualClock
from trunkline.jobs import finisher
from trunkline.jobs.finisher import Finisher
from trunkline.jobs.held import Held, Hold
from trunkline.jobs.poker import Poker
from trunkline.model import new_id
from trunkline.store import jobs
from trunkline.store.jobs import Claimed, End, Ended

NOW = datetime(2025, 1, 1, tzinfo=UTC)
Refuse = Callable[[Sequence[End]], None]


class Desk:
    """A finisher whose Postgres refuses what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuse: Refuse):
        self.written: list[str] = []
        self.hold = Hold()
        self._refuse = refuse
        monkeypatch.setattr(jobs, "finish", self.finish)
        monkeypatch.setattr(finisher, "RETRY_FIRST_S", 0.0)
        self.clock = ManualClock()
        database: Any = self
        self.finisher = Finisher(
            database, self.hold, Poker(None), "w1", {}, now_s=self.clock.boottime_s, on_room=lambda: None
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        yield None

    async def finish(self, _conn: object, ends: Sequence[End], _worker: str) -> list[Ended]:
        self._refuse(ends)
        self.written += [end.result or "" for end in ends]
        return [Ended(end.id, "work", None) for end in ends]

    def ended(self, *results: str) -> None:
        for result in results:
            job = Claimed(new_id(), 1, "work", 50, NOW, NOW, 1, 4, None, None, None, None, "{}")
            held = Held(job, self.clock.boottime_s(), 15.0)
            self.hold.add(held)
            self.finisher.add(held, End(job.id, 1, result=result))


def refusing(result: str, error: Exception) -> Refuse:
    def refuse(ends: Sequence[End]) -> None:
        if any(end.result == result for end in ends):
            raise error

    return refuse


@pytest.mark.parametrize(
    "error", [asyncpg.DataError("no text"), asyncpg.CheckViolationError("too long"), ZeroDivisionError()]
)
async def test_a_verdict_that_cannot_be_written_is_let_go_and_its_neighbours_are_written(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    desk = Desk(monkeypatch, refusing("bad", error))
    desk.ended("a", "bad", "b")
    await desk.finisher.flushed()
    assert desk.written == ["a", "b"]
    assert len(desk.hold) == 0


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
async def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    errors = [error, error]

    def refuse(_ends: Sequence[End]) -> None:
        if errors:
            raise errors.pop()

    desk = Desk(monkeypatch, refuse)
    desk.ended("a", "b")
    await desk.finisher.flushed()
    assert desk.written == ["a", "b"]
    assert len(desk.hold) == 0


async def test_what_cannot_be_written_before_its_lease_ends_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_ends: Sequence[End]) -> None:
        desk.clock.advance(20)
        raise ConnectionRefusedError

    desk = Desk(monkeypatch, refuse)
    desk.ended("a")
    await desk.finisher.flushed()
    assert desk.written == []
    assert len(desk.hold) == 0
