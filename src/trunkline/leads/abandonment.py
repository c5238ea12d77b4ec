"""Overdialling: how many calls may ring for fewer free agents, so that few answered calls are abandoned; and the
message of an abandoned call: who called, and where to call back. Pure.

The bound is on the expected share of abandoned calls among those that are answered, E[max(0, X - free)] / E[X], where
X is how many of the ringing calls are answered. A bound on the probability that any call is abandoned would be the
wrong one: with one free agent and 10 % answering, three ringing calls keep that probability under 3 %, and abandon
9.7 % of the answered calls. `docs/explanation/abandonment.md` has the terms and the law.
"""

import math
import string
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

from trunkline.model import Counted
from trunkline.value import Value

# The answer rate is measured on the newest calls of a campaign: this many of them, and none older than this.
RATE_CALLS = 500
RATE_WINDOW_S = 3600
# Before this many have ended, every call is expected to be answered: then as many may ring as agents are free.
RATE_CALLS_MIN = 50
RATE_CONFIDENCE = 0.95
# Overdialling ends at this share of the maximum, as measured over 30 days: calls that still ring then may be abandoned.
BRAKE_AT = 0.8
# More than any known regulator allows.
ABANDON_MAX_LIMIT = 0.1
# How long an answered call may wait for an agent before it counts as abandoned.
THRESHOLD_S = 2.0
# Sums of probabilities end where a term no longer changes them.
_NEGLIGIBLE = 1e-12


def _is_share(value: float) -> float:
    if value > ABANDON_MAX_LIMIT:
        raise ValueError(f"a share from 0 to {ABANDON_MAX_LIMIT}: 0.03 is 3 %")
    return value


Share = Annotated[float, Field(ge=0), AfterValidator(_is_share)]

# The fields of a message: the merchant, and the number that it called from.
FIELDS = ("caller", "number")
NAMES_THE_CALLER = (
    "This was a call from {caller}, and nobody was free to speak with you. "
    "To reach us, or to ask not to be called again, please call {number}."
)


def _is_message(text: str) -> str:
    try:
        fields = [each for each in string.Formatter().parse(text) if each[1] is not None]
    except ValueError as error:
        raise ValueError(f"not a message: {error}") from error
    for _, name, form, conversion in fields:
        if name not in FIELDS or form or conversion:
            known = " and ".join(f"{{{each}}}" for each in FIELDS)
            raise ValueError(f"it may name {known}, and nothing else in braces")
    return text


Message = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_is_message)]


def spoken(message: str, *, caller: str, number: str) -> str:
    """Digits one by one: a voice reads them as they are dialled."""
    return message.format(caller=caller, number=" ".join(number.removeprefix("+")))


class Ringing(Value, frozen=True):
    """Calls that ring without an agent reserved for them, and how many answers are expected of them: the sum of their
    answer rates, which may differ."""

    calls: int = 0
    answers_expected: float = 0.0

    def plus(self, rate: float, calls: int = 1) -> "Ringing":
        return Ringing(self.calls + calls, self.answers_expected + rate * calls)


NOTHING_RINGS = Ringing()


def may_dial(ringing: Ringing, rate: float, free: int, abandon_max: float) -> bool:
    """Whether one more call, answered with this probability, may ring beside these for `free` agents."""
    return expected_share(ringing.plus(rate), free) <= abandon_max


def expected_share(ringing: Ringing, free: int) -> float:
    """The expected share of abandoned calls among those that are answered."""
    if ringing.calls <= max(0, free) or ringing.answers_expected <= 0:
        return 0.0
    rate = min(1.0, ringing.answers_expected / ringing.calls)
    return expected_abandoned(ringing.calls, rate, max(0, free)) / ringing.answers_expected


def expected_abandoned(calls: int, rate: float, free: int) -> float:
    """E[max(0, X - free)] for X binomial. Calls of different rates count with their mean rate, which is exact where
    they agree and too high where they differ: of all sums of independent trials with the same mean and number, the
    binomial one gives a convex function its greatest expectation (Hoeffding 1956)."""
    if calls <= free:
        return 0.0
    if rate >= 1:
        return float(calls - free)
    if rate <= 0:
        return 0.0
    mean = calls * rate
    if free < mean:
        # Summed where the terms are small: below the number of free agents.
        return mean - free + _below(calls, rate, free)
    return _above(calls, rate, free)


@lru_cache(maxsize=16_384)
def answer_rate(answered: int, ended: int) -> float:
    """The upper 95 % bound of the share of calls that are answered (Clopper and Pearson, one-sided): 5 of 20 may be
    46 %. 1 while too few have ended."""
    if ended < RATE_CALLS_MIN or answered >= ended:
        return 1.0
    return upper_bound(max(0, answered), ended)


def upper_bound(hits: int, trials: int, confidence: float = RATE_CONFIDENCE) -> float:
    """The greatest rate under which so few hits have a probability of at least 1 - confidence."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    # To 2^-24: far finer than a sample of 500 can resolve.
    for _ in range(24):
        middle = (low + high) / 2
        if _at_most(trials, middle, hits) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def recent(counts: Sequence[tuple[datetime, Counted]], now: datetime) -> Counted:
    """The newest calls, for the answer rate. `counts` are newest first, each of a point in time or a minute; the last
    one that is needed counts whole."""
    total = Counted()
    for at, counted in counts:
        if total.ended >= RATE_CALLS or at < now - timedelta(seconds=RATE_WINDOW_S):
            break
        total += counted
    return total


def is_braked(measured: Counted, abandon_max: float) -> bool:
    """Whether a campaign, or its merchant, has abandoned so many calls within 30 days that it may not overdial."""
    share = measured.abandoned_share
    return share is not None and share > 0 and share >= BRAKE_AT * abandon_max


def _below(calls: int, rate: float, free: int) -> float:
    """E[max(0, free - X)]."""
    odds = (1 - rate) / rate
    total, answers = 0.0, free - 1
    term = _probability(calls, rate, answers) if answers >= 0 else 0.0
    while answers >= 0 and term > 0:
        total += (free - answers) * term
        if term * free < _NEGLIGIBLE * total:
            break
        term *= answers / (calls - answers + 1) * odds
        answers -= 1
    return total


def _above(calls: int, rate: float, free: int) -> float:
    """E[max(0, X - free)]."""
    odds = rate / (1 - rate)
    total, answers = 0.0, free + 1
    term = _probability(calls, rate, answers)
    while answers <= calls and term > 0:
        total += (answers - free) * term
        if term * calls < _NEGLIGIBLE * total:
            break
        term *= (calls - answers) / (answers + 1) * odds
        answers += 1
    return total


def _at_most(trials: int, rate: float, hits: int) -> float:
    """P(X <= hits), from above: the terms fall from there on, as `hits` lies below the mean."""
    odds = (1 - rate) / rate
    term, total = _probability(trials, rate, hits), 0.0
    while hits >= 0 and term > _NEGLIGIBLE * total:
        total += term
        term *= hits / (trials - hits + 1) * odds
        hits -= 1
    return total


def _probability(trials: int, rate: float, hits: int) -> float:
    """P(X = hits), by logarithms: powers of small rates would be 0."""
    ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(ways + hits * math.log(rate) + (trials - hits) * math.log1p(-rate))
