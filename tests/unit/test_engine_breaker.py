"""An engine that does not answer is passed over for a second, after three silent answers in a row."""

import pytest

from trunkline.router import allocator
from trunkline.router.allocator import OPEN_S, EngineBreaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(allocator, "time", clock)
    return clock


def opened(breaker: EngineBreaker) -> bool:
    return breaker.is_open


def test_three_silent_answers_open_the_engine_breaker_for_a_second(clock: Clock) -> None:
    breaker = EngineBreaker()
    seen = []
    for _ in range(3):
        breaker.timed_out()
        seen.append(opened(breaker))
    assert seen == [False, False, True]
    clock.now_s += OPEN_S
    assert not opened(breaker), "then it is asked again"
    breaker.timed_out()
    assert opened(breaker), "and one more silence is enough"


def test_an_answer_resets_the_engine_breaker(clock: Clock) -> None:
    breaker = EngineBreaker()
    for _ in range(5):
        breaker.timed_out()
        breaker.timed_out()
        breaker.answered()
    assert not breaker.is_open
