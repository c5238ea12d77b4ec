"""The loader's jitter: it grows with the pile, is bounded, and is never negative."""

import pytest

from trunkline.dispatch.loader import FULL_JITTER_BACKLOG, jitter_s


@pytest.mark.parametrize(
    ("pile", "widest_s"),
    [(0, 0.0), (FULL_JITTER_BACKLOG // 10, 0.5), (FULL_JITTER_BACKLOG, 5.0), (FULL_JITTER_BACKLOG * 50, 5.0)],
)
def test_the_loaders_jitter_grows_with_the_waiting_leads(pile: int, widest_s: float) -> None:
    drawn = [jitter_s(pile, 5.0) for _ in range(500)]
    assert min(drawn) >= 0.0
    assert widest_s * 0.8 <= max(drawn) <= widest_s


def test_the_loaders_jitter_can_be_switched_off() -> None:
    assert jitter_s(FULL_JITTER_BACKLOG, 0.0) == 0.0
