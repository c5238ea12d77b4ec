"""Every state of the system and every move between them. Nothing moves that is not in these tables.

Facts never go backwards. SQL that changes a state is guarded by `state = ANY(sources(to))`, so a late or doubled
webhook finds no row and changes nothing.
"""

from collections.abc import Mapping
from enum import StrEnum


class LeadStatus(StrEnum):
    BACKLOG = "BACKLOG"
    PROCESSING = "PROCESSING"
    FINISHED = "FINISHED"


class AttemptState(StrEnum):
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
    IDLE = "idle"
    QUEUED = "queued"
    PROCESSING = "processing"
    DEAD = "dead"


class JobStatus(StrEnum):
    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    DONE = "DONE"
    FAILED = "FAILED"


A = AttemptState

# A webhook may overtake the reply to our own request, so every live state can be skipped, never revisited.
# `absent` and `unknown` can still surface as a call: a late fact is adopted if the lead has no newer attempt.
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    A.DIALING: frozenset({A.IN_DOUBT, A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED, A.REJECTED}),
    A.IN_DOUBT: frozenset({A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED, A.ABSENT, A.UNKNOWN}),
    A.ACCEPTED: frozenset({A.RINGING, A.ANSWERED, A.ENDED}),
    A.RINGING: frozenset({A.ANSWERED, A.ENDED}),
    A.ANSWERED: frozenset({A.ENDED}),
    A.ABSENT: frozenset({A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED}),
    # `absent`: its carrier was asked again, and has no such call.
    A.UNKNOWN: frozenset({A.ABSENT, A.ACCEPTED, A.RINGING, A.ANSWERED, A.ENDED}),
    A.ENDED: frozenset(),
    A.REJECTED: frozenset(),
}

# No call was found. Only the fold moves on from here: the carrier's own reply to our request comes too late for that.
GIVEN_UP: frozenset[AttemptState] = frozenset({A.ABSENT, A.UNKNOWN})

# The partial unique indexes of `attempts` name the same states; a test compares the two.
LIVE: frozenset[AttemptState] = frozenset({A.DIALING, A.IN_DOUBT, A.ACCEPTED, A.RINGING, A.ANSWERED})

# A lead returns to BACKLOG only by its retry transaction or by a person's order to call it again, which is numbered:
# its rank is (order, attempt number, status). From its end it returns by such an order, when the agent's report on its
# last call came after the carrier's (a callback is wanted, a machine had answered), or when it ended as UNKNOWN and the
# call of its last attempt is found to have been made: it is being called then.
LEAD_MOVES: Mapping[LeadStatus, frozenset[LeadStatus]] = {
    LeadStatus.BACKLOG: frozenset({LeadStatus.PROCESSING, LeadStatus.FINISHED}),
    LeadStatus.PROCESSING: frozenset({LeadStatus.BACKLOG, LeadStatus.FINISHED}),
    LeadStatus.FINISHED: frozenset({LeadStatus.BACKLOG, LeadStatus.PROCESSING}),
}


def sources(to: AttemptState) -> list[str]:
    """The states from which an attempt may move to `to`, for a compare-and-set in SQL."""
    return sorted(state.value for state, targets in ATTEMPT_MOVES.items() if to in targets)
