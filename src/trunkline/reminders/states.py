"""The state of an occurrence, derived from its lead. Pure.

SCHEDULED ─► PROCESSING ─► COMPLETED (a person answered)
                │  ▲
                ▼  │
           PENDING_RETRY        FAILED (the lead ended in any other way)
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from trunkline.model import Agent, Outcome, idempotency_key
from trunkline.states import LeadStatus
from trunkline.store.reminders import Followed, StateChange

State = Literal["SCHEDULED", "PROCESSING", "COMPLETED", "PENDING_RETRY", "FAILED", "SKIPPED"]
STATES: tuple[State, ...] = ("SCHEDULED", "PROCESSING", "COMPLETED", "PENDING_RETRY", "FAILED", "SKIPPED")

# The call was answered, and yet the person did not get the message.
_NOT_DELIVERED = frozenset(
    {Outcome.NO_ANSWER, Outcome.BUSY, Outcome.NO_AGENT, Outcome.VOICEMAIL, Outcome.ABORTED, Outcome.UNKNOWN}
)


class LogLine(NamedTuple):
    """One log line of a step."""

    level: Literal["info", "warning", "error"]
    text: str


def followed(seen: Followed) -> StateChange:
    state = _state(seen)
    # Attempts that were followed by another one, or will be: all that have ended, but one that ended its lead.
    retries = len(seen.attempt_nos) if seen.lead_status == LeadStatus.BACKLOG else len(seen.attempt_nos) - 1
    return StateChange(
        id=seen.id,
        state=state,
        lead_version=seen.lead_version,
        attempt_count=seen.lead_attempts,
        next_retry_at=seen.due_at if state == "PENDING_RETRY" else None,
        last_error=_error(seen, state),
        idempotency_key=_idempotency_key(seen),
        external_call_id=seen.carrier_call_id,
        attempts_told=max(len(seen.attempt_nos), seen.attempts_told),
        retries_told=max(retries, seen.retries_told, 0),
    )


def lines(seen: Followed, change: StateChange) -> Iterator[LogLine]:
    """Also of steps that passed between two rounds, in the order in which they happened."""
    new_call = change.external_call_id not in (None, seen.external_call_id)
    for nth in range(seen.retries_told + 1, change.attempts_told + 1):
        if nth > seen.attempts_told:
            number = seen.attempt_nos[nth - 1]
            yield LogLine("info", f"Processing reminder {seen.id} (attempt {number}/{seen.max_attempts})")
        if new_call and nth == change.attempts_told:
            yield LogLine("info", f"Call initiated for reminder {seen.id}")
        if nth <= change.retries_told:
            yield LogLine("warning", f"Reminder {seen.id} failed, scheduling retry")
    if change.state == "FAILED":
        yield LogLine("error", f"Reminder {seen.id} permanently failed")


def _state(seen: Followed) -> State:
    match seen.lead_status:
        case LeadStatus.PROCESSING:
            return "PROCESSING"
        case LeadStatus.FINISHED:
            is_delivered = seen.answered_at is not None and seen.outcome not in _NOT_DELIVERED
            return "COMPLETED" if is_delivered else "FAILED"
        case _:
            was_tried = seen.lead_attempts + seen.carrier_error_count + seen.no_agent_count > 0
            return "PENDING_RETRY" if was_tried else "SCHEDULED"


def _error(seen: Followed, state: State) -> str | None:
    match state:
        case "PENDING_RETRY":
            if seen.agent == Agent.NONE:
                return Outcome.NO_AGENT.value
            return seen.end_reason or "The carrier did not take the call."
        case "FAILED":
            return f"{seen.outcome}: {seen.outcome_reason}" if seen.outcome_reason else seen.outcome
        case _:
            return seen.last_error


def _idempotency_key(seen: Followed) -> str | None:
    if seen.attempt_id is None or seen.attempt_no is None:
        return None
    return idempotency_key(str(seen.id), seen.attempt_no, seen.attempt_id)
