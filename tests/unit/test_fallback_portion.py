"""Without Valkey: how much one ask may take and how long it waits then, which make the stated rate, and how often
Valkey is tried."""

import pytest

from trunkline.dispatch.dialer import VALKEY_RETRY_S, next_try_s
from trunkline.dispatch.fallback import CLAIMS_PER_S, portion


@pytest.mark.parametrize("starts_per_s", [1, 2, 3, 4, 5, 10, 20, 100])
def test_a_portion_and_its_pause_keep_starts_per_s(starts_per_s: int) -> None:
    pause_s = portion(1000, starts_per_s, since_s=0) / starts_per_s
    assert pause_s >= 1 / CLAIMS_PER_S
    assert portion(1000, starts_per_s, since_s=pause_s) == portion(1000, starts_per_s, since_s=0)


def test_a_portion_grows_with_the_time_since_the_last_up_to_a_second() -> None:
    assert [portion(1000, 20, since_s=since_s) for since_s in (0.1, 0.5, 1, 60)] == [5, 10, 20, 20]


@pytest.mark.parametrize("since_s", [0, 60])
def test_a_portion_is_bounded_by_the_room_in_flight(since_s: float) -> None:
    assert [portion(room, 20, since_s) for room in (0, 1, 3)] == [0, 1, 3]


@pytest.mark.parametrize("took_s", [0.0, 0.1, 2.0, 30.0])
def test_an_unreachable_valkey_is_tried_a_third_of_the_time_at_most(took_s: float) -> None:
    pause_s = next_try_s(100.0, 100.0 + took_s) - (100.0 + took_s)
    assert pause_s >= max(VALKEY_RETRY_S, 2 * took_s) - 1e-9
