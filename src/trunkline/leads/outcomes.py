"""The outcome of a call, decided once, by one pure function, from facts of three witnesses.

The carrier says whether somebody answered, the session whether an agent took part, the agent what came of it. Whoever
was nearest to the conversation is believed first. A witness that has said nothing takes nothing away.
"""

import re
from datetime import datetime

from trunkline.model import Agent, Outcome
from trunkline.value import Value

# Shorter than this, with an agent on the line that had nothing to report, nobody talked.
EARLY_HANGUP_S = 5
WORD_MAX = 60

_REASONS = {
    "no_answer": "NO_ANSWER",
    "failed": "FAILED",
    "canceled": "CANCELED",
    "timeout": "TIMEOUT",
}
# Words of an agent that mean what we mean by them.
_SHARED_WORDS = {outcome.value: outcome for outcome in (Outcome.BUSY, Outcome.VOICEMAIL, Outcome.TRANSFERRED)}
# A word that no agent can say of its own call.
_CONTRADICTION = Outcome.NO_AGENT.value


class CarrierFacts(Value, frozen=True):
    answered_at: datetime | None
    end_reason: str | None
    duration_s: int | None = None


class Witnesses(Value, frozen=True):
    """What is known of an agent at an answered call. None is "not known"."""

    # The carrier runs the agent itself, or the document sent the call to agents that are not ours.
    is_external: bool = False
    # The agent named the call in a heartbeat, read its context, or reported on it.
    has_joined: bool = False
    # False: the document that the carrier got had no stream, or the pod refused it.
    given: bool | None = None
    # The carrier's word on the stream: it began, or it could not be opened.
    stream_began: bool | None = None
    # Its pod sent a heartbeat while the call lived, long enough after it was given, and did not name the call.
    is_unnamed: bool = False


class SessionFacts(Value, frozen=True):
    """None is "not known"."""

    agent: Agent | None = None
    # It has reported, with or without a word of its own.
    has_reported: bool = False
    is_machine: bool | None = None
    was_transferred: bool | None = None


class AgentFacts(Value, frozen=True):
    disposition: str | None = None
    opt_out: bool = False
    callback_at: datetime | None = None


class Facts(Value, frozen=True):
    carrier: CarrierFacts
    session: SessionFacts = SessionFacts()
    agent: AgentFacts = AgentFacts()

    @property
    def was_answered(self) -> bool:
        """A call that the carrier calls completed was answered, even if that webhook was lost."""
        return self.carrier.answered_at is not None or self.carrier.end_reason == "completed"


class CallVerdict(Value, frozen=True):
    """`word` is the agent's own, where it has one: it stands in the place of the outcome."""

    outcome: Outcome
    reason: str | None = None
    word: str | None = None


def agent_of(seen: Witnesses) -> Agent:
    """Who took an answered call. Where agents are not ours to see, the document that we sent is all there is. Of ours
    the agent's own voice counts most; then what we ourselves did with the call; then what the carrier saw of the
    stream; at last what a pod did not say. Where nobody speaks it stays unknown: in doubt nobody is rung again."""
    if seen.is_external:
        return Agent.EXTERNAL
    if seen.has_joined:
        return Agent.JOINED
    if seen.given is False:
        return Agent.NONE
    if seen.stream_began is not None:
        return Agent.JOINED if seen.stream_began else Agent.NONE
    return Agent.NONE if seen.is_unnamed else Agent.UNKNOWN


def verdict(facts: Facts) -> CallVerdict:
    if not facts.was_answered:
        return _unanswered(facts.carrier.end_reason or "")
    if facts.agent.disposition is not None:
        return _as_the_agent_says(facts.agent.disposition)
    session = facts.session
    if session.was_transferred:
        return CallVerdict(Outcome.TRANSFERRED)
    if session.is_machine:
        return CallVerdict(Outcome.VOICEMAIL)
    if session.agent is Agent.NONE:
        return CallVerdict(Outcome.NO_AGENT)
    if session.has_reported and _was_short(facts.carrier):
        return CallVerdict(Outcome.EARLY_HANGUP)
    return CallVerdict(Outcome.ANSWERED)


def _unanswered(end_reason: str) -> CallVerdict:
    if end_reason == "busy":
        return CallVerdict(Outcome.BUSY)
    return CallVerdict(Outcome.NO_ANSWER, _REASONS.get(end_reason, "FAILED"))


def _as_the_agent_says(disposition: str) -> CallVerdict:
    word = re.sub(r"[^A-Z0-9]+", "_", disposition.upper()).strip("_")[:WORD_MAX]
    if shared := _SHARED_WORDS.get(word):
        return CallVerdict(shared)
    if word == _CONTRADICTION:
        return CallVerdict(Outcome.ANSWERED, word)
    return CallVerdict(Outcome.ANSWERED, word=word or None)


def _was_short(carrier: CarrierFacts) -> bool:
    return carrier.duration_s is not None and carrier.duration_s < EARLY_HANGUP_S
