"""Whether and when a lead is called again. Pure.

One budget per lead: `max_attempts` counts all attempts but those that failed because of us, so rules never stack on
each other. A rule says how long to wait after an outcome, or that the outcome ends the lead; it never adds an attempt.

Lead dispatchers of the kind this one replaces had other names: a call that was answered while no agent was free ended
as `BUSY` (reason `NO_AGENT`), and an engaged line as `NO_ANSWER` (reason `BUSY`): one name for two opposite things.
Only `LEGACY` has them. Retry rules may use either name; webhooks carry both (`legacy_outcome`,
`legacy_outcome_reason`) in versions 0.1.x, and the new ones alone from 0.2 on.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trunkline.leads.immutable import Frozen
from trunkline.model import Outcome

BASE_S = 60.0
FACTOR = 2.0
CARRIER_ERRORS_MAX = 3
# No policy waits longer than this between two attempts: a year, like the longest search for an open window.
DELAY_MAX_S = 366 * 86_400.0
# Outcome -> its earlier name, and the reason that came with it.
LEGACY: Mapping[str, tuple[str, str]] = {
    Outcome.NO_AGENT.value: ("BUSY", "NO_AGENT"),
    Outcome.BUSY.value: ("NO_ANSWER", "BUSY"),
}


DelayS = Annotated[float, Field(ge=1, le=DELAY_MAX_S)]


class RetryRule(Frozen):
    """After one outcome. Without delays of its own it waits as all do."""

    retry: bool = Field(True, description="Whether the call is repeated.")
    delays_s: tuple[DelayS, ...] = Field(
        (), max_length=20, description="After the first failure, the second, …; the last one is repeated."
    )


class Retries(Frozen):
    """`by_outcome` names outcomes, reasons (FAILED, TIMEOUT) or words of agents; a reason counts before its outcome.
    The words that NO_AGENT and BUSY had before are understood: see `LEGACY`."""

    base_s: float = Field(BASE_S, ge=1, le=86_400, description="The first delay.")
    factor: float = Field(
        FACTOR, ge=1, le=10, description="By how much each delay is longer than the one before."
    )
    delay_max_s: float = Field(DELAY_MAX_S, ge=1, le=DELAY_MAX_S, description="The longest delay.")
    carrier_errors_max: int = Field(
        CARRIER_ERRORS_MAX,
        ge=1,
        le=20,
        description="How many of the carrier's own errors are retried at most.",
    )
    by_outcome: dict[str, RetryRule] = Field(
        default_factory=dict, max_length=50, description="Rules for single outcomes."
    )

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


def legacy(outcome: str | None, reason: str | None) -> tuple[str | None, str | None]:
    """Outcome and reason by their earlier names; the same where nothing has changed."""
    return LEGACY.get(outcome or "", (outcome, reason))


def rule_words(outcome: str, reason: str | None) -> tuple[str, ...]:
    """The names under which a retry rule may be found, the first that has one counts: the reason, the outcome, and the
    outcome's earlier name. `NO_ANSWER` applies to an engaged line only where no rule names `BUSY`."""
    legacy_name, _ = LEGACY.get(outcome, (outcome, None))
    names = (reason, outcome, legacy_name)
    return tuple(dict.fromkeys(name for name in names if name))
