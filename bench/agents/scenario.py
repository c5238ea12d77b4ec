"""What is dialled, from where, for whom: the same in every run of the benchmark."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from bench._calls import BenchLead
from trunkline.telephony.simulator.behaviour import Behaviour

RESELLER, POOL = "bench", "bench"
GOLD, STANDARD = "bench-gold", "bench-standard"
# 30 channels, and ten more for those who ring us: a backlog of dials takes every channel that it may use.
NUMBERS: dict[str, tuple[str, int]] = {
    "+14155550101": ("twilio", 14),
    "+14155550102": ("plivo", 10),
    "+14155550103": ("exotel", 6),
}
INBOUND_NUMBERS = {"+14155550111": "twilio", "+14155550112": "plivo", "+14155550113": "exotel"}
INBOUND_CHANNELS = 10
CALLERS = 20
# A fifth of those who ring us come by Exotel, which can neither hold nor ask again.
CALLERS_BY = ("twilio", "plivo", "twilio", "plivo", "exotel")

OFFERED_PER_S = 3.0
SEED = 16
# The shortest and the longest ring. Where a fault stops dialling, phones ring longer: only those that ring when it
# begins are answered while it lasts.
RING_S, LONG_RING_S = (1.0, 3.0), (3.0, 8.0)
FIRST_CALLER = 7_000_000

# The least that says something, with each number of pods: so many answers to all faults together, and so many while an
# engine was away to each fault that takes one away.
ANSWERS_MIN, AWAY_MIN = 300, 60


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a fault is repeated."""

    answers: int
    # Of them, while an engine is away: only where the fault takes one away.
    answers_away: int
    limit_s: float

    @classmethod
    def chosen(cls, *, is_quick: bool) -> "Extent":
        answers = int(os.environ.get("BENCH_AGENTS_ANSWERS", "40" if is_quick else str(ANSWERS_MIN)))
        away = int(os.environ.get("BENCH_AGENTS_AWAY", "8" if is_quick else str(AWAY_MIN)))
        # At 1.2 answers a second, which 20 pods allow, and three times the patience.
        return cls(answers, away, 120.0 + 2.5 * answers)

    def of(self, *, takes_engine_away: bool, patience: float) -> "Extent":
        """For one fault."""
        return Extent(self.answers, self.answers_away if takes_engine_away else 0, patience * self.limit_s)


def leads(began_s: float, limit_s: float) -> Iterator[BenchLead]:
    """A third are a gold merchant's."""
    for no in range(int(OFFERED_PER_S * limit_s)):
        yield BenchLead(no, GOLD if no % 3 == 0 else STANDARD, began_s + no / OFFERED_PER_S)


def people(ring_s: tuple[float, float]) -> Behaviour:
    return Behaviour(answer=0.85, busy=0.15, no_answer=0.0, failed=0.0, ring_s=ring_s, talk_s=(8.0, 20.0))


def caller(no: int) -> str:
    return f"+1650{FIRST_CALLER + no}"


def tier_config(pods: int) -> str:
    gold = pods // 5
    return (
        f'{{"gold": {{"type": "exclusive", "target": {gold}}}, '
        f'"standard": {{"type": "exclusive", "target": {pods - gold}}}}}'
    )
