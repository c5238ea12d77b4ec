"""Records of answered and inbound calls: the documents that the carrier got, the streams that it opened, and how long
the person waited for an agent. Seconds are real ones.

Tests check guarantees about agents by these records, never by the platform's tables: no person without an agent, every
response a document.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from trunkline.telephony.carrier import Direction

# An agent that refuses a stream closes it with one of these; see `trunkline.agent.guard`.
REFUSED_CODES = frozenset({1008, 1013})

DocumentEffect = Literal["stream", "hold", "message", "forward", "agent", "hang_up", "redirect", "nothing"]
StreamEnd = Literal["", "by_agent", "by_person", "refused", "failed", "lost"]
EndedBy = Literal["", "person", "carrier", "request"]


@dataclass(slots=True)
class DocumentRecord:
    """One request for a document with its retries. Status 0: no answer, or no connection."""

    # The last part of its path: answer, inbound, resume.
    kind: str
    asked_at: float
    statuses: list[int] = field(default_factory=list)
    took_s: float = 0.0
    is_fallback: bool = False
    said: DocumentEffect = "nothing"
    # Responses that are neither a document nor Exotel's 503.
    bad: int = 0


@dataclass(slots=True)
class StreamRecord:
    """One media stream of a document."""

    url: str
    asked_at: float
    opened_at: float | None = None
    # The agent's first message.
    heard_at: float | None = None
    closed_at: float | None = None
    # Empty while it is open. `refused`: by the pod, or by the carrier for its URL. `lost`: not closed normally.
    ended: StreamEnd = ""
    # The HTTP status if it was not opened, else the WebSocket's close code.
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
    documents: list[DocumentRecord] = field(default_factory=list)
    streams: list[StreamRecord] = field(default_factory=list)
    # When an agent was first connected, also one of the carrier's own.
    agent_at: float | None = None
    # When the call was forwarded to another number: the operator's fallback.
    forwarded_at: float | None = None
    ended_at: float | None = None
    ended_by: EndedBy = ""
    machine: bool = False

    @property
    def waited_s(self) -> float | None:
        """Until an agent was connected; for a person who hung up before, until then."""
        until = self.agent_at if self.agent_at is not None else self.ended_at
        return None if until is None else until - self.answered_at

    @property
    def is_without_agent(self) -> bool:
        return self.ended_at is not None and self.agent_at is None and self.forwarded_at is None

    @property
    def was_dropped(self) -> bool:
        """An agent was connected, was lost, and was not replaced."""
        if self.ended_at is None or self.agent_at is None or self.forwarded_at is not None:
            return False
        return bool(self.streams) and self.streams[-1].ended in ("lost", "failed", "refused")


def without_agent(calls: Iterable[AnsweredCall]) -> list[AnsweredCall]:
    return [call for call in calls if call.is_without_agent]


def dropped(calls: Iterable[AnsweredCall]) -> list[AnsweredCall]:
    return [call for call in calls if call.was_dropped]


def bad_answers(calls: Iterable[AnsweredCall]) -> int:
    """Responses of the platform that were neither a document nor Exotel's 503."""
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
        "asked_at_fallback": sum(record.is_fallback for call in calls for record in call.documents),
        "unanswered_tries": sum(record.statuses.count(0) for call in calls for record in call.documents),
        "bad_answers": bad_answers(calls),
        "streams": sum(len(call.streams) for call in calls),
        # Connected, but the agent never sent a message: it was there, unless it hung.
        "unheard": sum(
            bool(call.streams)
            and call.agent_at is not None
            and not any(stream.heard_at for stream in call.streams)
            for call in calls
        ),
        "waited_s_max": round(max(waits, default=0.0), 3),
    }
