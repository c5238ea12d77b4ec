"""The mass-free breaker: a healer that is about to free very much is more likely wrong than right.

Counted are only frees that the carrier has not confirmed call by call. After an outage in which two hundred calls
truly ended, two hundred channels are free, and healing must not stop.
"""

MASS_FREE_MIN = 50
MASS_FREE_SHARE = 0.2


def is_mass_free(unconfirmed: int, held: int) -> bool:
    """More than 50 channels and more than a fifth of those held."""
    return unconfirmed > MASS_FREE_MIN and unconfirmed > MASS_FREE_SHARE * held
