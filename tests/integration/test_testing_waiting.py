"""`eventually` returns what it waited for, or says what it did not see."""

import pytest

from tests.support.waiting import eventually


async def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, 0, 7, 8])
    assert await eventually(lambda: next(values)) == 7


async def test_eventually_awaits_an_async_condition() -> None:
    values = iter([None, "here"])

    async def condition() -> str | None:
        return next(values)

    assert await eventually(condition) == "here"


async def test_eventually_fails_with_what_it_waited_for_and_saw_last() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: a second dial \(last seen: 0\)"):
        await eventually(lambda: 0, timeout_s=0, what="a second dial")


async def test_eventually_quotes_an_unnamed_condition() -> None:
    dials: list[str] = []
    with pytest.raises(AssertionError, match="len\\(dials\\) > 1"):
        await eventually(lambda: len(dials) > 1, timeout_s=0)
