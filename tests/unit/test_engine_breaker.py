"""An engine that does not answer is passed over for a second, after three silent answers in a row."""

import pytest

from trunkline.router import engine_breaker
from trunkline.router.engine_breaker import REST_S, EngineBreaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine_breaker, "time", clock)
    return clock


def test_three_silent_answers_open_it_for_a_second(clock: Clock) -> None:
    breaker = EngineBreaker()
    for _ in range(2):
        breaker.silent()
        assert not breaker.is_open
    breaker.silent()
    assert breaker.is_open
    clock.now_s += REST_S
    assert not breaker.is_open, "then it is asked again"
    breaker.silent()
    assert breaker.is_open, "and one more silence is enough"


def test_an_answer_in_between_closes_it(clock: Clock) -> None:
    breaker = EngineBreaker()
    for _ in range(5):
        breaker.silent()
        breaker.silent()
        breaker.heard()
    assert not breaker.is_open
