"""Whether and when a lead is called again. Pure.

One budget per lead: `max_attempts` counts all attempts but those that failed because of us, so rules never stack on
each other. A rule says how long to wait after an outcome, or that the outcome ends the lead; it never adds an attempt.
"""

from typing import Annotated

from pydantic import Field

from trunkline.leads.immutable import Frozen
from trunkline.leads.outcomes import rule_words

BASE_S = 60.0
FACTOR = 2.0
CARRIER_ERRORS_MAX = 3
# No policy waits longer than this between two attempts: a year, like the longest search for an open window.
DELAY_MAX_S = 366 * 86_400.0


DelayS = Annotated[float, Field(ge=1, le=DELAY_MAX_S)]


class RetryRule(Frozen):
    """After one outcome. Without delays of its own it waits as all do."""

    retry: bool = True
    delays_s: tuple[DelayS, ...] = Field(
        (), max_length=20, description="After the first failure, the second, …; the last one is repeated."
    )


class Retries(Frozen):
    """`by_outcome` names outcomes, reasons (FAILED, TIMEOUT) or words of agents; a reason counts before its outcome.
    The words that NO_AGENT and BUSY had before are understood: see `outcomes.LEGACY`."""

    base_s: float = Field(BASE_S, ge=1, le=86_400)
    factor: float = Field(FACTOR, ge=1, le=10)
    delay_max_s: float = Field(DELAY_MAX_S, ge=1, le=DELAY_MAX_S)
    carrier_errors_max: int = Field(CARRIER_ERRORS_MAX, ge=1, le=20)
    by_outcome: dict[str, RetryRule] = Field(default_factory=dict, max_length=50)

    def rule(self, outcome: str, reason: str | None) -> RetryRule | None:
        words = rule_words(outcome, reason)
        return next((self.by_outcome[word] for word in words if word in self.by_outcome), None)

    def delay_s(self, failures: int, rule: RetryRule | None = None) -> float:
        """After the k-th failure: the rule's own delay, else base × factor^(k-1), by default 60 s × 2^(k-1)."""
        if rule is not None and rule.delays_s:
            delay_s = rule.delays_s[min(failures, len(rule.delays_s)) - 1]
        else:
            # Exponents are bounded by the budget of 20 attempts; this bound is for callers with more.
            delay_s = self.base_s * self.factor ** (min(failures, 64) - 1)
        return min(delay_s, self.delay_max_s)


DEFAULT = Retries()
