"""The outcome of a call, decided once, by one pure function, from facts of three witnesses.

The carrier says whether somebody answered, the session whether an agent took part, the agent what came of it. Whoever
was nearest to the conversation is believed first. A witness that has said nothing takes nothing away.
"""

import re
from datetime import datetime

from trunkline.model import Outcome
from trunkline.value import Value

# Shorter than this, with an agent on the line that had nothing to report, nobody talked.
EARLY_HANGUP_S = 5
WORD_MAX = 60

_REASONS = {
    "busy": "BUSY",
    "no_answer": "NO_ANSWER",
    "failed": "FAILED",
    "canceled": "CANCELED",
    "timeout": "TIMEOUT",
}
# Words of an agent that mean what we mean by them.
_SHARED_WORDS = {outcome.value: outcome for outcome in (Outcome.BUSY, Outcome.VOICEMAIL, Outcome.TRANSFERRED)}


class CarrierFacts(Value, frozen=True):
    answered_at: datetime | None
    end_reason: str | None
    duration_s: int | None = None


class SessionFacts(Value, frozen=True):
    """None is "not known"."""

    agent_joined: bool | None = None
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


class Verdict(Value, frozen=True):
    """`word` is the agent's own, where it has one: it stands in the place of the outcome."""

    outcome: Outcome
    reason: str | None = None
    word: str | None = None


def verdict(facts: Facts) -> Verdict:
    if not facts.was_answered:
        return Verdict(Outcome.NO_ANSWER, _REASONS.get(facts.carrier.end_reason or "", "FAILED"))
    if facts.agent.disposition is not None:
        return _as_the_agent_says(facts.agent.disposition)
    session = facts.session
    if session.was_transferred:
        return Verdict(Outcome.TRANSFERRED)
    if session.is_machine:
        return Verdict(Outcome.VOICEMAIL)
    if session.agent_joined is False:
        return Verdict(Outcome.BUSY, "NO_AGENT")
    if session.agent_joined and _was_short(facts.carrier):
        return Verdict(Outcome.EARLY_HANGUP)
    return Verdict(Outcome.ANSWERED)


def _as_the_agent_says(disposition: str) -> Verdict:
    word = re.sub(r"[^A-Z0-9]+", "_", disposition.upper()).strip("_")[:WORD_MAX]
    if shared := _SHARED_WORDS.get(word):
        return Verdict(shared)
    return Verdict(Outcome.ANSWERED, word=word or None)


def _was_short(carrier: CarrierFacts) -> bool:
    return carrier.duration_s is not None and carrier.duration_s < EARLY_HANGUP_S
