"""Every state of the system and every transition between them. No other transition is allowed.

States never go back. SQL that changes a state is guarded by `state = ANY(sources(to))`, so a late or duplicate webhook
matches no row and changes nothing.
"""

from collections.abc import Mapping
from enum import StrEnum


class LeadStatus(StrEnum):
    """Whether a lead waits, is being called, or has ended."""

    BACKLOG = "BACKLOG"
    PROCESSING = "PROCESSING"
    FINISHED = "FINISHED"


class AttemptState(StrEnum):
    """How far a call has come."""

    DIALING = "dialing"
    IN_DOUBT = "in_doubt"
    ACCEPTED = "accepted"
    RINGING = "ringing"
    ANSWERED = "answered"
    ENDED = "ended"
    REJECTED = "rejected"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class MailboxStatus(StrEnum):
    """What a mailbox waits for."""

    IDLE = "idle"
    QUEUED = "queued"
    PROCESSING = "processing"
    DEAD = "dead"


class JobStatus(StrEnum):
    """Whether a job waits, runs, or has ended."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    DONE = "DONE"
    FAILED = "FAILED"


class QueueKind(StrEnum):
    """Jobs of a type, or mailboxes of a kind."""

    JOBS = "jobs"
    MAILBOXES = "mailboxes"


class QueueStatus(StrEnum):
    """Of a job or a mailbox, for operators of both."""

    WAITING = "waiting"
    RUNNING = "running"
    # A job that has ended, or a mailbox without pending events.
    DONE = "done"
    DEAD = "dead"


JOB_STATUSES = {
    QueueStatus.WAITING: JobStatus.PENDING,
    QueueStatus.RUNNING: JobStatus.IN_PROGRESS,
    QueueStatus.DONE: JobStatus.DONE,
    QueueStatus.DEAD: JobStatus.FAILED,
}
MAILBOX_STATUSES = {
    QueueStatus.WAITING: MailboxStatus.QUEUED,
    QueueStatus.RUNNING: MailboxStatus.PROCESSING,
    QueueStatus.DONE: MailboxStatus.IDLE,
    QueueStatus.DEAD: MailboxStatus.DEAD,
}

A = AttemptState

# A webhook may overtake the reply to the dial request, so every live state can be skipped, never revisited.
# A call of an `absent` or `unknown` attempt can still appear: it is reattached if the lead has no newer attempt.
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    A.DIALING: frozenset({A.IN_DOUBT, A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED, A.REJECTED}),
    A.IN_DOUBT: frozenset({A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED, A.ABSENT, A.UNKNOWN}),
    A.ACCEPTED: frozenset({A.RINGING, A.ANSWERED, A.ENDED}),
    A.RINGING: frozenset({A.ANSWERED, A.ENDED}),
    A.ANSWERED: frozenset({A.ENDED}),
    A.ABSENT: frozenset({A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED}),
    # `absent`: a later query of the carrier found no such call.
    A.UNKNOWN: frozenset({A.ABSENT, A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED}),
    A.ENDED: frozenset(),
    A.REJECTED: frozenset(),
}

# Written off: no call was found. Only the fold moves on from here; a late reply to the dial request does not.
WRITTEN_OFF: frozenset[AttemptState] = frozenset({A.ABSENT, A.UNKNOWN})

# The partial unique indexes of `attempts` name the same states; a test compares the two.
LIVE: frozenset[AttemptState] = frozenset({A.DIALING, A.IN_DOUBT, A.ACCEPTED, A.RINGING, A.ANSWERED})

# A lead returns to BACKLOG only by its retry transaction or by a reopening, which is numbered: its rank is (reopening,
# attempt number, status). It leaves FINISHED by a reopening, by an agent's report on its last call that came after the
# carrier's (a callback is wanted, a machine had answered), or, if it ended as UNKNOWN, when the call of its last
# attempt is found: then it is PROCESSING.
LEAD_MOVES: Mapping[LeadStatus, frozenset[LeadStatus]] = {
    LeadStatus.BACKLOG: frozenset({LeadStatus.PROCESSING, LeadStatus.FINISHED}),
    LeadStatus.PROCESSING: frozenset({LeadStatus.BACKLOG, LeadStatus.FINISHED}),
    LeadStatus.FINISHED: frozenset({LeadStatus.BACKLOG, LeadStatus.PROCESSING}),
}


def sources(to: AttemptState) -> list[str]:
    """The states from which an attempt may move to `to`, for a compare-and-set in SQL."""
    return sorted(state.value for state, targets in ATTEMPT_MOVES.items() if to in targets)
