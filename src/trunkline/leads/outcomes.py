"""The outcome of a call, decided once, by one pure function, from its facts and its agent's report.

The carrier's facts show whether the call was answered, the evidence whether an agent took part, the report the result.
The source nearest to the conversation counts first. A call without a report has the outcome of its facts.

Lead dispatchers of the kind this one replaces had other names: a call that was answered while no agent was free ended
as `BUSY` (reason `NO_AGENT`), and an engaged line as `NO_ANSWER` (reason `BUSY`): one name for two opposite things.
Only `LEGACY` has them. Retry rules may use either name; webhooks carry both (`legacy_outcome`,
`legacy_outcome_reason`) in versions 0.1.x, and the new ones alone from 0.2 on.
"""

import re
from collections.abc import Mapping

from trunkline.model import Agent, CallFacts, Outcome
from trunkline.store.attempts import ReportedOutcome
from trunkline.value import Value

# Shorter than this, with an agent that reported no result, there was no conversation.
EARLY_HANGUP_S = 5
DISPOSITION_MAX = 60

_REASONS = {"no_answer": "NO_ANSWER", "failed": "FAILED", "canceled": "CANCELED", "timeout": "TIMEOUT"}
# Dispositions of an agent that have the same meaning as ours.
_SHARED_DISPOSITIONS = {
    outcome.value: outcome for outcome in (Outcome.BUSY, Outcome.VOICEMAIL, Outcome.TRANSFERRED)
}
# A disposition that no agent can report of its own call.
_CONTRADICTION = Outcome.NO_AGENT.value
# Outcome -> its earlier name, and the reason that came with it.
LEGACY: Mapping[str, tuple[str, str]] = {
    Outcome.NO_AGENT.value: ("BUSY", "NO_AGENT"),
    Outcome.BUSY.value: ("NO_ANSWER", "BUSY"),
}


class AgentEvidence(Value, frozen=True):
    """The evidence of an agent at an answered call. None is unknown."""

    # The carrier runs the agent itself, or the document sent the call to agents that are not ours.
    is_external: bool = False
    # The agent named the call in a heartbeat, read its context, or reported on it.
    has_joined: bool = False
    # False: the document that the carrier got had no stream, or the pod refused it.
    given: bool | None = None
    # The carrier's report on the stream: it began, or it could not be opened.
    stream_began: bool | None = None
    # The pod sent a heartbeat during the call, long enough after the assignment, that did not name it.
    is_unnamed: bool = False


class CallVerdict(Value, frozen=True):
    """`word` is the agent's own disposition, if it has one: it replaces the outcome."""

    outcome: Outcome
    reason: str | None = None
    word: str | None = None


def agent_of(evidence: AgentEvidence) -> Agent:
    """Who took an answered call. Where agents are external, the document that we sent is the only evidence. For ours
    the agent's own report counts most; then what we did with the call; then the carrier's report on the stream; at last
    a heartbeat that did not name it. Without evidence it stays unknown: in doubt the lead is not called again."""
    if evidence.is_external:
        return Agent.EXTERNAL
    if evidence.has_joined:
        return Agent.JOINED
    if evidence.given is False:
        return Agent.NONE
    if evidence.stream_began is not None:
        return Agent.JOINED if evidence.stream_began else Agent.NONE
    return Agent.NONE if evidence.is_unnamed else Agent.UNKNOWN


def was_answered(facts: CallFacts) -> bool:
    """A call that the carrier reports as completed was answered, even if that webhook was lost."""
    return facts.answered_at is not None or facts.end_reason == "completed"


def verdict(facts: CallFacts, report: ReportedOutcome | None = None) -> CallVerdict:
    if not was_answered(facts):
        if facts.end_reason == "busy":
            return CallVerdict(Outcome.BUSY)
        return CallVerdict(Outcome.NO_ANSWER, _REASONS.get(facts.end_reason or "", "FAILED"))
    if report is not None and report.disposition is not None:
        return _by_disposition(report.disposition)
    if facts.is_machine:
        return CallVerdict(Outcome.VOICEMAIL)
    if facts.agent is Agent.NONE:
        return CallVerdict(Outcome.NO_AGENT)
    if report is not None and facts.duration_s is not None and facts.duration_s < EARLY_HANGUP_S:
        return CallVerdict(Outcome.EARLY_HANGUP)
    return CallVerdict(Outcome.ANSWERED)


def _by_disposition(disposition: str) -> CallVerdict:
    word = re.sub(r"[^A-Z0-9]+", "_", disposition.upper()).strip("_")[:DISPOSITION_MAX]
    if shared := _SHARED_DISPOSITIONS.get(word):
        return CallVerdict(shared)
    if word == _CONTRADICTION:
        return CallVerdict(Outcome.ANSWERED, word)
    return CallVerdict(Outcome.ANSWERED, word=word or None)


def legacy(outcome: str | None, reason: str | None) -> tuple[str | None, str | None]:
    """Outcome and reason by their earlier names; the same where nothing has changed."""
    return LEGACY.get(outcome or "", (outcome, reason))


def rule_words(outcome: str, reason: str | None) -> tuple[str, ...]:
    """The names under which a retry rule may be found, the first that has one counts: the reason, the outcome, and the
    outcome's earlier name. `NO_ANSWER` applies to an engaged line only where no rule names `BUSY`."""
    legacy_name, _ = LEGACY.get(outcome, (outcome, None))
    names = (reason, outcome, legacy_name)
    return tuple(dict.fromkeys(name for name in names if name))
