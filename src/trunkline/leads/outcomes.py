"""The outcome of a call, decided once, by one pure function, from the facts of three sources.

The carrier reports whether the call was answered, the session whether an agent took part, the agent the result. The
source nearest to the conversation counts first. A source without a report changes nothing.
"""

import re

from trunkline.model import Agent, CallFacts, Outcome
from trunkline.value import Value

# Shorter than this, with an agent that reported no result, there was no conversation.
EARLY_HANGUP_S = 5
DISPOSITION_MAX = 60

_REASONS = {
    "no_answer": "NO_ANSWER",
    "failed": "FAILED",
    "canceled": "CANCELED",
    "timeout": "TIMEOUT",
}
# Dispositions of an agent that have the same meaning as ours.
_SHARED_DISPOSITIONS = {
    outcome.value: outcome for outcome in (Outcome.BUSY, Outcome.VOICEMAIL, Outcome.TRANSFERRED)
}
# A disposition that no agent can report of its own call.
_CONTRADICTION = Outcome.NO_AGENT.value


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


def verdict(facts: CallFacts) -> CallVerdict:
    if not facts.was_answered:
        return _unanswered(facts.end_reason or "")
    if facts.report is not None and facts.report.disposition is not None:
        return _by_disposition(facts.report.disposition)
    if facts.is_machine:
        return CallVerdict(Outcome.VOICEMAIL)
    if facts.agent is Agent.NONE:
        return CallVerdict(Outcome.NO_AGENT)
    if facts.report is not None and facts.duration_s is not None and facts.duration_s < EARLY_HANGUP_S:
        return CallVerdict(Outcome.EARLY_HANGUP)
    return CallVerdict(Outcome.ANSWERED)


def _unanswered(end_reason: str) -> CallVerdict:
    if end_reason == "busy":
        return CallVerdict(Outcome.BUSY)
    return CallVerdict(Outcome.NO_ANSWER, _REASONS.get(end_reason, "FAILED"))


def _by_disposition(disposition: str) -> CallVerdict:
    word = re.sub(r"[^A-Z0-9]+", "_", disposition.upper()).strip("_")[:DISPOSITION_MAX]
    if shared := _SHARED_DISPOSITIONS.get(word):
        return CallVerdict(shared)
    if word == _CONTRADICTION:
        return CallVerdict(Outcome.ANSWERED, word)
    return CallVerdict(Outcome.ANSWERED, word=word or None)
