"""The earlier names of outcomes, which lead dispatchers of the kind this one replaces still use. Pure.

There, a call that was answered while no agent was free ended as `BUSY` (reason `NO_AGENT`), and an engaged line as
`NO_ANSWER` (reason `BUSY`): one name for two opposite things. Only this table has them. Retry rules may use either
name; webhooks carry both (`legacy_outcome`, `legacy_outcome_reason`) in versions 0.1.x, and the new ones alone from 0.2
on.
"""

from collections.abc import Mapping

from trunkline.model import Outcome

# Outcome -> its earlier name, and the reason that came with it.
LEGACY: Mapping[str, tuple[str, str]] = {
    Outcome.NO_AGENT.value: ("BUSY", "NO_AGENT"),
    Outcome.BUSY.value: ("NO_ANSWER", "BUSY"),
}


def legacy(outcome: str | None, reason: str | None) -> tuple[str | None, str | None]:
    """Outcome and reason by their earlier names; the same where nothing has changed."""
    return LEGACY.get(outcome or "", (outcome, reason))


def rule_words(outcome: str, reason: str | None) -> tuple[str, ...]:
    """The names under which a retry rule may be found, the first that has one counts: the reason, the outcome, and the
    outcome's earlier name. `NO_ANSWER` applies to an engaged line only where no rule names `BUSY`."""
    legacy_name, _ = LEGACY.get(outcome, (outcome, None))
    names = (reason, outcome, legacy_name)
    return tuple(dict.fromkeys(name for name in names if name))
