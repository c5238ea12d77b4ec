"""Clocks: what is aware, what moves, what does not."""

from datetime import UTC, datetime, timedelta

import pytest

from trunkline.clock import Clock, SystemClock
from trunkline.testing.clock import ManualClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_now_is_aware_and_in_utc(clock: Clock) -> None:
    assert clock.now().utcoffset() == timedelta(0)


def test_system_clocks_do_not_go_back() -> None:
    clock = SystemClock()
    before = clock.monotonic_s(), clock.boottime_s()
    after = clock.monotonic_s(), clock.boottime_s()
    assert before <= after


def test_advance_moves_all_three_clocks() -> None:
    clock = ManualClock(datetime(2025, 3, 30, tzinfo=UTC))
    clock.advance(90)
    assert clock.now() == datetime(2025, 3, 30, 0, 1, 30, tzinfo=UTC)
    assert (clock.monotonic_s(), clock.boottime_s()) == (90, 90)


def test_suspend_advances_wall_and_boot_time_but_not_monotonic_time() -> None:
    clock = ManualClock()
    start = clock.now()
    clock.suspend(3600)
    assert clock.now() - start == timedelta(hours=1)
    assert (clock.monotonic_s(), clock.boottime_s()) == (0, 3600)


def test_set_wall_moves_neither_monotonic_nor_boot_time() -> None:
    clock = ManualClock()
    clock.set_wall(datetime(2020, 1, 1, tzinfo=UTC))
    assert clock.now().year == 2020
    assert (clock.monotonic_s(), clock.boottime_s()) == (0, 0)
