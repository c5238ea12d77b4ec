"""Postgres' clock on our own: a little late at most, never early."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trunkline.queues.server_clock import WINDOW_S, ServerClock

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)
# When it is noon there, our clock says this.
OURS_S = 5000.0


def answered(clock: ServerClock, at_s: float, took_s: float, *, shift_s: float = 0.0) -> None:
    """An answer made `at_s` after noon, that came `took_s` later."""
    clock.note(NOON + timedelta(seconds=at_s + shift_s), OURS_S + at_s + took_s)


def test_the_server_clock_uses_the_quickest_answer() -> None:
    clock = ServerClock()
    for took_s in (0.5, 0.01, 0.2):
        answered(clock, 0, took_s)
    assert abs(clock.local_s(NOON) - OURS_S - 0.01) < 1e-6


@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 5)), min_size=1))
def test_the_server_clock_is_never_early(answers: list[tuple[float, float]]) -> None:
    clock = ServerClock()
    for at_s, took_s in sorted(answers):
        answered(clock, at_s, took_s)
        assert clock.local_s(NOON) >= OURS_S - 1e-6


def test_the_server_clock_follows_a_clock_that_was_set_back() -> None:
    clock = ServerClock()
    answered(clock, 0, 0.01)
    for n in range(1, 4):
        answered(clock, n * WINDOW_S, 0.01, shift_s=-10)
    assert abs(clock.local_s(NOON) - OURS_S - 10.01) < 1e-6


def test_the_server_clock_is_unknown_until_the_first_answer() -> None:
    clock = ServerClock()
    assert not clock.is_known
    answered(clock, 0, 0.1)
    assert clock.is_known
