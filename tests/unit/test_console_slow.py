import asyncio
from datetime import UTC, datetime

import pytest

from trunkline.clock import ManualClock
from trunkline.console.asking import Refused
from trunkline.console.slow import FRESH_S, SlowAnswers


async def test_a_page_does_not_wait_and_nobody_asks_twice() -> None:
    clock = ManualClock(datetime(2030, 1, 7, tzinfo=UTC))
    slow, asked, let_go = SlowAnswers(clock), 0, asyncio.Event()

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await let_go.wait()
        return asked

    assert await slow.get("a", ask) is None
    assert await slow.get("a", ask) is None
    let_go.set()
    assert await slow.get("a", ask) == 1
    assert await slow.get("a", ask) == 1, "it is kept"
    clock.advance(FRESH_S)
    assert await slow.get("a", ask) == 2
    assert asked == 2


async def test_a_refusal_is_an_answer_too() -> None:
    async def refuse() -> None:
        raise Refused(404, "not_found", "There is no such campaign.")

    with pytest.raises(Refused) as refused:
        await SlowAnswers(ManualClock(datetime(2030, 1, 7, tzinfo=UTC))).get("a", refuse)
    assert refused.value.status == 404
