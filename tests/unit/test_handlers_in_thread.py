"""What blocks is called in a thread: bounded, reported if it outlives its cancellation, and never waited for."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.waiting import eventually
from trunkline.handlers import HandlerScope, HandlerThreads, in_thread


class Blocking:
    """A function that blocks until it is let go of."""

    def __init__(self) -> None:
        self.began = 0
        self.let_go = threading.Event()

    def __call__(self) -> str:
        self.began += 1
        self.let_go.wait()
        return "ended"


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    blocking = Blocking()
    yield blocking
    blocking.let_go.set()


class Told:
    def __init__(self) -> None:
        self.stuck: list[tuple[str, str]] = []
        self.threads = HandlerThreads(most=2)

    def scope(self, name: str, *, grace_s: float = 0.0) -> HandlerScope:
        return HandlerScope(
            "job",
            name,
            self.threads,
            grace_s=grace_s,
            on_stuck_thread=lambda *stuck: self.stuck.append(stuck),
        )

    async def run(self, name: str, blocking: Blocking) -> str:
        with self.scope(name):
            return await in_thread(blocking)


async def cancelled(task: "asyncio.Task[str]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_in_thread_returns_the_functions_result_or_raises_its_exception() -> None:
    def divide(dividend: int, *, by: int) -> float:
        assert threading.current_thread().daemon
        return dividend / by

    assert await in_thread(divide, 6, by=3) == 2
    with pytest.raises(ZeroDivisionError):
        await in_thread(divide, 6, by=0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_in_thread_runs_the_function_in_its_callers_context() -> None:
    variable = contextvars.ContextVar[str]("variable")
    variable.set("of the caller")
    assert await in_thread(variable.get) == "of the caller"


async def test_handler_types_have_separate_threads(blocking: Blocking) -> None:
    told = Told()
    hung = [asyncio.create_task(told.run("bad", blocking)) for _ in range(2)]
    await eventually(lambda: blocking.began == 2)
    quick = Blocking()
    quick.let_go.set()
    assert await told.run("innocent", quick) == "ended"
    third = asyncio.create_task(told.run("bad", quick))
    # The threads stay the type's when their callers are gone.
    for task in hung:
        await cancelled(task)
    assert quick.began == 1
    blocking.let_go.set()
    assert await asyncio.wait_for(third, 20) == "ended"


async def test_waiting_for_a_thread_can_be_cancelled(blocking: Blocking) -> None:
    told = Told()
    tasks = [asyncio.create_task(told.run("bad", blocking)) for _ in range(3)]
    await eventually(lambda: blocking.began == 2)
    await cancelled(tasks[2])
    assert blocking.began == 2
    blocking.let_go.set()
    assert await asyncio.gather(*tasks[:2]) == ["ended", "ended"]
    assert told.stuck == []


async def test_a_thread_that_outlives_its_cancellation_is_reported_once(blocking: Blocking) -> None:
    told = Told()
    task = asyncio.create_task(told.run("bad", blocking))
    await eventually(lambda: blocking.began)
    await cancelled(task)
    await eventually(lambda: told.stuck)
    [(function, place)] = told.stuck
    assert "Blocking" in function
    assert "in Blocking.__call__" in place
    assert await told.threads.end(0) == [f"bad in a thread at {place}"]
    assert len(told.stuck) == 1


async def test_a_thread_that_ends_within_its_grace_is_not_reported(blocking: Blocking) -> None:
    told = Told()
    with told.scope("slow", grace_s=600):
        task = asyncio.create_task(in_thread(blocking))
    await eventually(lambda: blocking.began)
    await cancelled(task)
    blocking.let_go.set()
    assert await told.threads.end(20) == []
    assert told.stuck == []


def test_a_failing_release_does_not_keep_the_others_from_being_released() -> None:
    given_back: list[str] = []

    def broken() -> None:
        given_back.append("broken")
        raise RuntimeError("released already")

    scope = HandlerScope("job", "bad")
    with scope.holding(broken), scope.holding(lambda: given_back.append("sound")):
        scope.abandon()
    assert sorted(given_back) == ["broken", "sound"]
    scope.abandon()
    assert len(given_back) == 2
