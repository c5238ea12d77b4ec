"""What the called person does: decided by the seed, the number and how often it was called before."""

from dataclasses import dataclass
from typing import Literal

from trunkline.telephony.simulator.dice import between, roll
from trunkline.value import Value

Reaction = Literal["answer", "busy", "no_answer", "failed"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Shares of reactions (weights, not necessarily summing to 1) and ranges of simulated seconds."""

    answer: float = 0.7
    busy: float = 0.1
    no_answer: float = 0.15
    failed: float = 0.05
    # The share of answered calls that a machine answers.
    machine: float = 0.0
    ring_s: tuple[float, float] = (2.0, 8.0)
    talk_s: tuple[float, float] = (20.0, 80.0)
    # Real seconds for which a person without an agent stays. None: their talk time, and `patience_s` more.
    silence_s: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        weights = (self.answer, self.busy, self.no_answer, self.failed)
        if min(weights) < 0 or sum(weights) <= 0 or not 0 <= self.machine <= 1:
            raise ValueError("shares are not negative, and one of them is above 0")
        if not 0 <= self.ring_s[0] <= self.ring_s[1] or not 0 <= self.talk_s[0] <= self.talk_s[1]:
            raise ValueError("ranges are (shortest, longest), in seconds")
        if self.silence_s is not None and not 0 < self.silence_s[0] <= self.silence_s[1]:
            raise ValueError("silence_s is (shortest, longest), above 0")


class Fate(Value, frozen=True):
    """The course of one call unless it is hung up."""

    reaction: Reaction
    ring_s: float
    talk_s: float
    machine: bool = False
    # Whether the person waits for an agent (`SimulatorConfig.patience_s`), or hangs up after `talk_s` either way.
    is_patient: bool = True
    # Real seconds that the person stays without an agent; None: by `patience_s`.
    silence_s: float | None = None


def fate(behaviour: Behaviour, seed: int, to: str, nth: int) -> Fate:
    return Fate(
        reaction=_reaction(behaviour, roll(seed, "reaction", to, nth)),
        ring_s=between(behaviour.ring_s, roll(seed, "ring", to, nth)),
        talk_s=between(behaviour.talk_s, roll(seed, "talk", to, nth)),
        silence_s=(
            between(behaviour.silence_s, roll(seed, "silence", to, nth)) if behaviour.silence_s else None
        ),
        machine=behaviour.machine > 0 and roll(seed, "machine", to, nth) < behaviour.machine,
    )


def _reaction(behaviour: Behaviour, chance: float) -> Reaction:
    left = chance * (behaviour.answer + behaviour.busy + behaviour.no_answer + behaviour.failed)
    shares: tuple[tuple[Reaction, float], ...] = (
        ("busy", behaviour.busy),
        ("no_answer", behaviour.no_answer),
        ("failed", behaviour.failed),
    )
    for reaction, share in shares:
        if left < share:
            return reaction
        left -= share
    return "answer"
