"""How many calls a share of abandoned ones allows: the limit that `may_dial` finds call by call."""

from trunkline.leads.abandonment import NOTHING_RINGS, Ringing, expected_share


def dials_max(
    rate: float, free: int, abandon_max: float, ringing: Ringing = NOTHING_RINGS, most: int = 10_000
) -> int:
    """How many calls of this rate may be added to those that ring: a search, as the share grows with every call."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if expected_share(ringing.plus(rate, middle), free) <= abandon_max:
            low = middle
        else:
            high = middle - 1
    return low
