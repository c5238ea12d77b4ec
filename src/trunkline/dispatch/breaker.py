"""The mass-free breaker: a healer that is about to free very much is more likely wrong than right.

Counted are only frees that nothing confirms: neither the carrier, call by call, nor the certainty that nothing was
dialled. After an outage in which two hundred calls
truly ended, two hundred channels are free, and healing must not stop.
"""

MASS_FREE_MIN = 50
MASS_FREE_SHARE = 0.2


def is_mass_free(unconfirmed: int, held: int) -> bool:
    """More than 50 channels and more than a fifth of those held."""
    return unconfirmed > MASS_FREE_MIN and unconfirmed > MASS_FREE_SHARE * held
