"""When healing stops itself."""

import pytest

from trunkline.dispatch.channel_reconciler import is_mass_free


@pytest.mark.parametrize(
    ("unconfirmed", "held", "stops"),
    [
        (0, 0, False),
        (50, 50, False),
        (51, 51, True),
        (51, 1000, False),
        (201, 1000, True),
        (200, 1000, False),
    ],
)
def test_freeing_over_50_channels_and_20_percent_is_a_mass_free(
    unconfirmed: int, held: int, stops: bool
) -> None:
    assert is_mass_free(unconfirmed, held) is stops
