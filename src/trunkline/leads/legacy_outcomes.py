"""The words that outcomes had before, and still have in lead dispatchers of the kind this one replaces. Pure.

There, a call that was answered while no agent was free ended as `BUSY` (reason `NO_AGENT`), and an engaged line as
`NO_ANSWER` (reason `BUSY`): one word for two opposite things. This table is the only place that knows it. Retry rules
may use either word; webhooks carry both (`legacy_outcome`, `legacy_outcome_reason`) in versions 0.1.x, and the new ones
alone from 0.2 on.
"""

from collections.abc import Mapping

from trunkline.model import Outcome

# Outcome -> how it was called, and the reason that was given with it.
LEGACY: Mapping[str, tuple[str, str]] = {
    Outcome.NO_AGENT.value: ("BUSY", "NO_AGENT"),
    Outcome.BUSY.value: ("NO_ANSWER", "BUSY"),
}


def legacy(outcome: str | None, reason: str | None) -> tuple[str | None, str | None]:
    """Outcome and reason in the old words; the same where nothing has changed."""
    return LEGACY.get(outcome or "", (outcome, reason))


def rule_words(outcome: str, reason: str | None) -> tuple[str, ...]:
    """Under which words a retry rule may be found, the first that has one counts: the reason, the outcome, and what the
    outcome was called. `NO_ANSWER` governs an engaged line only where no rule says `BUSY`."""
    was, _ = LEGACY.get(outcome, (outcome, None))
    words = (reason, outcome, was)
    return tuple(dict.fromkeys(word for word in words if word))
