"""Seeded randomness: the same seed and key always give the same number, in any order and on any machine."""

from hashlib import blake2b


def roll(seed: int, *key: object) -> float:
    """A number in [0, 1)."""
    text = ":".join([str(seed), *map(str, key)])
    # 53 bits are what a float holds; more would round up to 1.
    return (int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 11) / (1 << 53)


def between(low_high: tuple[float, float], chance: float) -> float:
    low, high = low_high
    return low + (high - low) * chance
