"""Concurrent requests are one transaction, and none fails for another's error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest

from tests.support.waiting import eventually
from trunkline.store.database import Database
from trunkline.store.group_commit import GROUP_MAX, GroupCommit


class NoDatabase:
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        yield None


class Written:
    """Answers each with itself. `gate` holds every group back until it is open."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refused: set[str] = set()
        self.error: BaseException | None = None

    async def __call__(self, _conn: Any, items: Sequence[str]) -> Sequence[str]:
        self.groups.append(list(items))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.refused & set(items):
            raise asyncpg.LockNotAvailableError("held by a stranger")
        return [item.upper() for item in items]


@pytest.fixture
def written() -> Written:
    return Written()


def commits(written: Written, timeout_s: float = 60.0) -> GroupCommit[str, str]:
    return GroupCommit(cast(Database, NoDatabase()), written, timeout_s)


async def test_a_request_during_a_groups_write_goes_with_the_next_group(written: Written) -> None:
    group = commits(written)
    written.gate.clear()
    first = asyncio.create_task(group.ask("a"))
    await eventually(lambda: written.groups == [["a"]])
    others = [asyncio.create_task(group.ask(item)) for item in "bcd"]
    await asyncio.sleep(0)
    written.gate.set()
    assert await asyncio.gather(first, *others) == ["A", "B", "C", "D"]
    assert written.groups == [["a"], ["b", "c", "d"]]


async def test_a_group_is_bounded(written: Written) -> None:
    group = commits(written)
    answers = await asyncio.gather(*(group.ask(f"n{n}") for n in range(GROUP_MAX + 1)))
    assert answers == [f"N{n}" for n in range(GROUP_MAX + 1)]
    assert [len(one) for one in written.groups] == [GROUP_MAX, 1]


async def test_a_refused_request_of_a_group_fails_alone(written: Written) -> None:
    group = commits(written)
    written.refused = {"b"}
    answers = await asyncio.gather(*(group.ask(item) for item in "abc"), return_exceptions=True)
    assert answers[0] == "A"
    assert isinstance(answers[1], asyncpg.LockNotAvailableError)
    assert answers[2] == "C"


async def test_requests_behind_a_hanging_group_time_out_with_it(written: Written) -> None:
    """Those behind the group have waited as long as it."""
    group = commits(written, timeout_s=0.5)
    written.gate.clear()
    first = asyncio.create_task(group.ask("a"))
    await eventually(lambda: written.groups == [["a"]])
    second = asyncio.create_task(group.ask("b"))
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(one) for one in answers] == [TimeoutError, TimeoutError]
    assert written.groups == [["a"]]


async def test_a_broken_connection_fails_the_whole_group_and_the_next_one_is_tried(written: Written) -> None:
    group = commits(written)
    written.error = ConnectionResetError("gone")
    answers = await asyncio.gather(*(group.ask(item) for item in "ab"), return_exceptions=True)
    assert [type(one) for one in answers] == [ConnectionResetError, ConnectionResetError]
    written.error = None
    assert await group.ask("c") == "C"


async def test_a_cancelled_request_does_not_fail_the_others_of_its_group(written: Written) -> None:
    group = commits(written)
    written.gate.clear()
    left, stays = (asyncio.create_task(group.ask(item)) for item in "ab")
    await eventually(lambda: written.groups == [["a", "b"]])
    left.cancel()
    written.gate.set()
    assert await stays == "B"
