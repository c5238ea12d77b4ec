"""The state of an occurrence, as its lead tells it. Pure.

SCHEDULED ─► PROCESSING ─► COMPLETED (somebody answered)
                │  ▲
                ▼  │
           PENDING_RETRY        FAILED (the lead ended in any other way)
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from trunkline.model import Agent, Outcome
from trunkline.states import LeadStatus
from trunkline.store.reminder_states import Followed, StateChange

State = Literal["SCHEDULED", "PROCESSING", "COMPLETED", "PENDING_RETRY", "FAILED", "SKIPPED"]
STATES: tuple[State, ...] = ("SCHEDULED", "PROCESSING", "COMPLETED", "PENDING_RETRY", "FAILED", "SKIPPED")

# Somebody, or something, took the call, and yet nobody was told.
_UNTOLD = frozenset(
    {
        Outcome.NO_ANSWER,
        Outcome.BUSY,
        Outcome.NO_AGENT,
        Outcome.VOICEMAIL,
        Outcome.ABORTED,
        Outcome.UNKNOWN,
    }
)


class Line(NamedTuple):
    """What is written to the log of a step."""

    level: Literal["info", "warning", "error"]
    text: str


def followed(seen: Followed) -> StateChange:
    state = _state(seen)
    return StateChange(
        id=seen.id,
        state=state,
        lead_version=seen.lead_version,
        attempt_count=seen.lead_attempts,
        next_retry_at=seen.due_at if state == "PENDING_RETRY" else None,
        last_error=_error(seen, state),
        idempotency_key=_idempotency_key(seen),
        external_call_id=seen.carrier_call_id,
    )


def lines(seen: Followed, change: StateChange) -> Iterator[Line]:
    """Also of steps that went by between two looks."""
    if change.attempt_count > seen.attempt_count:
        yield Line(
            "info", f"Processing reminder {seen.id} (attempt {change.attempt_count}/{seen.max_attempts})"
        )
    if change.external_call_id not in (None, seen.external_call_id):
        yield Line("info", f"Call initiated for reminder {seen.id}")
    if is_put_off(seen, change):
        yield Line("warning", f"Reminder {seen.id} failed, scheduling retry")
    elif change.state == "FAILED":
        yield Line("error", f"Reminder {seen.id} permanently failed")


def is_put_off(seen: Followed, change: StateChange) -> bool:
    """Whether it has failed since the last look and waits for a retry: maybe not for the first time."""
    was_tried = seen.state != change.state or change.attempt_count > seen.attempt_count
    return change.state == "PENDING_RETRY" and was_tried


def _state(seen: Followed) -> State:
    match seen.lead_status:
        case LeadStatus.PROCESSING:
            return "PROCESSING"
        case LeadStatus.FINISHED:
            is_told = seen.answered_at is not None and seen.outcome not in _UNTOLD
            return "COMPLETED" if is_told else "FAILED"
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
    """`{id}-{attempt}-{8 hex}`. The eight are the attempt's own, so the key leads back to it."""
    if seen.attempt_id is None:
        return None
    return f"{seen.id}-{max(seen.lead_attempts, 1)}-{seen.attempt_id.hex[-8:]}"
