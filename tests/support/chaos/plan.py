"""What happens in one run, drawn from its seed and printed: how the carriers misbehave, and which fault strikes when.

A plan is all that a run needs to be run again. When exactly a fault meets which line of the code is up to the machine.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trunkline.telephony.simulator.faults import Faults

# How long tenants use the platform while faults strike.
LASTS_S = 11.0
STRIKES = (6, 9)
# Faults that overlap are the point: the second begins before the first has healed, in a third of all cases.
TOGETHER = 0.35
# Shares of calls and of webhooks that go wrong at the carrier.
SHARES = (
    "slow_reply", "error_after_dial", "reply_lost", "reset_after_dial", "garbage_after_dial", "webhook_first",
    "throttled", "error_undialled", "reset_undialled", "redirect_undialled", "webhook_lost", "webhook_doubled",
    "webhook_reordered", "webhook_late",
)  # fmt: skip
SHARE_MAX = 0.06
AMOUNTS: Mapping[str, Any] = {
    "slow_reply_s": (0.1, 0.8),
    "reply_lost_s": 2.0,
    "webhook_late_s": (0.2, 2.0),
    "list_lag_s": 0.5,
}


class Strike(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault: when it begins, at whom, for how long, and how much of it."""

    at_s: float
    fault: str
    target: str = ""
    for_s: float = 0.0
    amount: float = 0.0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    seed: int
    lasts_s: float = LASTS_S
    # Fields of the simulator's `Faults`.
    carrier: dict[str, Any] = {}
    strikes: tuple[Strike, ...] = ()

    def carrier_faults(self, **more: Any) -> Faults:
        return msgspec.convert({**self.carrier, **more}, Faults)

    @property
    def sets_engine_clock(self) -> bool:
        return any(strike.fault == "engine clock set" for strike in self.strikes)

    def without(self, strikes: Sequence[Strike]) -> "Plan":
        return msgspec.structs.replace(
            self, strikes=tuple(each for each in self.strikes if each not in strikes)
        )

    def only(self, strikes: Sequence[Strike]) -> "Plan":
        return msgspec.structs.replace(self, strikes=tuple(strikes))


class Kind(msgspec.Struct, frozen=True):
    """What may be drawn of one fault."""

    targets: tuple[str, ...] = ("",)
    for_s: tuple[float, float] = (0.0, 0.0)
    amounts: tuple[float, ...] = (0.0,)


def drawn(seed: int, kinds: Mapping[str, Kind], *, lasts_s: float = LASTS_S) -> Plan:
    """The plan of a seed. Long runs get as many faults a second as short ones."""
    chance = random.Random(seed)
    scale = lasts_s / LASTS_S
    count = round(chance.randint(*STRIKES) * scale)
    # From a shuffled deck, so that over many seeds every kind of fault has its turn.
    deck = _deck(seed, sorted(kinds), count)
    strikes, at_s = [], 1.0
    for name in deck:
        kind = kinds[name]
        for_s = round(chance.uniform(*kind.for_s), 2)
        strikes.append(
            Strike(round(at_s, 2), name, chance.choice(kind.targets), for_s, chance.choice(kind.amounts))
        )
        gap_s = (lasts_s - 2.0) / max(count, 1)
        at_s += gap_s * (0.2 if chance.random() < TOGETHER else chance.uniform(0.8, 1.6))
    carrier: dict[str, Any] = {
        share: round(chance.uniform(0.0, SHARE_MAX), 3) for share in SHARES if chance.random() < 0.7
    }
    return Plan(seed, lasts_s, {**carrier, **AMOUNTS}, tuple(each for each in strikes if each.at_s < lasts_s))


def _deck(seed: int, names: Sequence[str], count: int) -> list[str]:
    """Seeds that follow each other take cards that follow each other, of decks that are shuffled anew."""
    first = seed * STRIKES[1]
    cards = []
    for place in range(first, first + count):
        shuffled = list(names)
        random.Random(place // len(names)).shuffle(shuffled)
        cards.append(shuffled[place % len(names)])
    return cards
