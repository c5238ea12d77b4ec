"""The follower: derives the state of an occurrence from its lead, with log lines and metrics. It ends a series with its
last occurrence.

    SCHEDULED ─► PROCESSING ─► COMPLETED (a person answered)
                    │  ▲
                    ▼  │
               PENDING_RETRY        FAILED (the lead ended in any other way)

Dispatch knows nothing of reminders. Its decisions are in the lead and its attempts; the follower reads them within a
second, in any number of processes, each occurrence in one of them.
"""

from collections.abc import Iterator
from typing import Literal

from trunkline.loops.base import Loop
from trunkline.model import Agent, Outcome, idempotency_key
from trunkline.schema.reminders import OccurrenceState
from trunkline.states import LeadStatus
from trunkline.store import reminders
from trunkline.store.database import Database
from trunkline.store.reminders import Followed, StateChange
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

BATCH_MAX = 500

# The call was answered, and yet the person did not get the message.
_NOT_DELIVERED = frozenset(
    {Outcome.NO_ANSWER, Outcome.BUSY, Outcome.NO_AGENT, Outcome.VOICEMAIL, Outcome.ABORTED, Outcome.UNKNOWN}
)


class ReminderFollower(Loop):
    name = "reminder_follower"

    def __init__(self, database: Database, interval_s: float = 1.0):
        super().__init__(interval_s)
        self._database = database

    async def run_once(self) -> int:
        total = await self.in_pages(BATCH_MAX, self._follow)
        # In a transaction of its own: a change of a series locks it before its occurrences.
        async with self._database.connection() as conn:
            await reminders.finish_all(conn)
        return total

    async def _follow(self) -> int:
        async with self._database.transaction() as tx:
            occurrences = await reminders.changed_occurrences(tx, limit=BATCH_MAX)
            changes = [followed(each) for each in occurrences]
            if changes:
                await reminders.write_states(tx, changes)
        for seen, change in zip(occurrences, changes, strict=True):
            for level, text in lines(seen, change):
                getattr(log, level)(text, reminder_id=str(seen.reminder_id))
            metrics.REMINDERS_RETRIED.inc(change.retries_told - seen.retries_told)
            if change.state in ("COMPLETED", "FAILED"):
                metrics.REMINDERS_PROCESSED.inc()
            if change.state == "FAILED":
                metrics.REMINDERS_FAILED.inc()
        return len(occurrences)


def followed(seen: Followed) -> StateChange:
    state, key = _state(seen), None
    if seen.attempt_id is not None and seen.attempt_no is not None:
        key = idempotency_key(str(seen.id), seen.attempt_no, seen.attempt_id)
    # Attempts that were followed by another one, or will be: all that have ended, but one that ended its lead.
    retries = len(seen.attempt_nos) if seen.lead_status == LeadStatus.BACKLOG else len(seen.attempt_nos) - 1
    return StateChange(
        id=seen.id,
        state=state,
        lead_version=seen.lead_version,
        attempt_count=seen.lead_attempts,
        next_retry_at=seen.due_at if state == "PENDING_RETRY" else None,
        last_error=_error(seen, state),
        idempotency_key=key,
        external_call_id=seen.carrier_call_id,
        attempts_told=max(len(seen.attempt_nos), seen.attempts_told),
        retries_told=max(retries, seen.retries_told, 0),
    )


def lines(seen: Followed, change: StateChange) -> Iterator[tuple[Literal["info", "warning", "error"], str]]:
    """The log lines of a change, also of steps that passed between two rounds, in the order in which they happened."""
    new_call = change.external_call_id not in (None, seen.external_call_id)
    for nth in range(seen.retries_told + 1, change.attempts_told + 1):
        if nth > seen.attempts_told:
            number = seen.attempt_nos[nth - 1]
            yield ("info", f"Processing reminder {seen.id} (attempt {number}/{seen.max_attempts})")
        if new_call and nth == change.attempts_told:
            yield ("info", f"Call initiated for reminder {seen.id}")
        if nth <= change.retries_told:
            yield ("warning", f"Reminder {seen.id} failed, scheduling retry")
    if change.state == "FAILED":
        yield ("error", f"Reminder {seen.id} permanently failed")


def _state(seen: Followed) -> OccurrenceState:
    match seen.lead_status:
        case LeadStatus.PROCESSING:
            return "PROCESSING"
        case LeadStatus.FINISHED:
            is_delivered = seen.answered_at is not None and seen.outcome not in _NOT_DELIVERED
            return "COMPLETED" if is_delivered else "FAILED"
        case _:
            was_tried = seen.lead_attempts + seen.carrier_error_count + seen.no_agent_count > 0
            return "PENDING_RETRY" if was_tried else "SCHEDULED"


def _error(seen: Followed, state: OccurrenceState) -> str | None:
    match state:
        case "PENDING_RETRY":
            if seen.agent == Agent.NONE:
                return Outcome.NO_AGENT.value
            return seen.end_reason or "The carrier did not take the call."
        case "FAILED":
            return f"{seen.outcome}: {seen.outcome_reason}" if seen.outcome_reason else seen.outcome
        case _:
            return seen.last_error
