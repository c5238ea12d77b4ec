"""What became of the people who answered, and of those who rang us: what the carrier was told to do, which streams it
opened, and how long somebody waited until there was an agent. Seconds are real ones.

Promises about agents are checked here, never in our tables: nobody without an agent, no answer that is not a document.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from trunkline.telephony.carrier import Direction

# An agent that refuses a stream closes it with one of these; see `trunkline.agent.guard`.
REFUSED_CODES = frozenset({1008, 1013})

Said = Literal["stream", "hold", "message", "forward", "agent", "hang_up", "redirect", "nothing"]
StreamEnd = Literal["", "by_agent", "by_person", "refused", "failed", "lost"]
EndedBy = Literal["", "person", "carrier", "request"]


@dataclass(slots=True)
class DocumentAsked:
    """One request for a document with its retries. Status 0: no answer, or no connection."""

    # The last part of its path: answer, inbound, resume.
    kind: str
    asked_at: float
    statuses: list[int] = field(default_factory=list)
    took_s: float = 0.0
    is_fallback: bool = False
    said: Said = "nothing"
    # Answers that are neither a document nor Exotel's 503, of those that came.
    bad: int = 0


@dataclass(slots=True)
class StreamAsked:
    """One media stream that a document asked for."""

    url: str
    asked_at: float
    opened_at: float | None = None
    # The agent's first message.
    heard_at: float | None = None
    closed_at: float | None = None
    # Empty while it is open. `refused`: by the pod, or by the carrier for its URL. `lost`: not closed in order.
    ended: StreamEnd = ""
    # HTTP's where it was not opened, else the WebSocket's.
    code: int | None = None


@dataclass(slots=True)
class AnsweredCall:
    no: int
    call_id: str
    carrier: str
    account: str
    attempt: str | None
    to: str
    from_: str
    direction: Direction
    answered_at: float
    documents: list[DocumentAsked] = field(default_factory=list)
    streams: list[StreamAsked] = field(default_factory=list)
    # When an agent was there for the first time: the carrier's own too.
    agent_at: float | None = None
    # They were connected with somebody else: the operator's fallback.
    forwarded_at: float | None = None
    ended_at: float | None = None
    ended_by: EndedBy = ""
    machine: bool = False

    @property
    def waited_s(self) -> float | None:
        """Until an agent was there; for those who left before, until they left."""
        until = self.agent_at if self.agent_at is not None else self.ended_at
        return None if until is None else until - self.answered_at

    @property
    def is_without_agent(self) -> bool:
        return self.ended_at is not None and self.agent_at is None and self.forwarded_at is None

    @property
    def was_dropped(self) -> bool:
        """An agent was there, was lost, and nobody came in its place."""
        if self.ended_at is None or self.agent_at is None or self.forwarded_at is not None:
            return False
        return bool(self.streams) and self.streams[-1].ended in ("lost", "failed", "refused")


def without_agent(calls: Iterable[AnsweredCall]) -> list[AnsweredCall]:
    return [call for call in calls if call.is_without_agent]


def dropped(calls: Iterable[AnsweredCall]) -> list[AnsweredCall]:
    return [call for call in calls if call.was_dropped]


def bad_answers(calls: Iterable[AnsweredCall]) -> int:
    """Answers of ours that were neither a document nor Exotel's 503."""
    return sum(document.bad for call in calls for document in call.documents)


def summary(calls: Iterable[AnsweredCall]) -> dict[str, Any]:
    calls = list(calls)
    waits = [call.waited_s for call in calls if call.agent_at is not None and call.waited_s is not None]
    return {
        "calls": len(calls),
        "live": sum(call.ended_at is None for call in calls),
        "without_agent": len(without_agent(calls)),
        "left_waiting": sum(call.is_without_agent and call.ended_by == "person" for call in calls),
        "dropped": len(dropped(calls)),
        "forwarded": sum(call.forwarded_at is not None for call in calls),
        "documents": sum(len(call.documents) for call in calls),
        "asked_at_fallback": sum(one.is_fallback for call in calls for one in call.documents),
        "unanswered_tries": sum(one.statuses.count(0) for call in calls for one in call.documents),
        "bad_answers": bad_answers(calls),
        "streams": sum(len(call.streams) for call in calls),
        # Connected, and the agent never sent a word: it was there, unless it hung.
        "unheard": sum(
            bool(call.streams) and call.agent_at is not None and not any(one.heard_at for one in call.streams)
            for call in calls
        ),
        "waited_s_max": round(max(waits, default=0.0), 3),
    }
