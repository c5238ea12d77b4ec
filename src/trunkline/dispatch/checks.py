"""The pure rules of the in-doubt checker: what to do about an attempt without recent events.

Every attempt that holds a channel is checked from time to time, whatever happened to the process that made it. Nothing
is closed by time alone: the checker queries the carrier first. The carrier's call list resolves in-doubt attempts. The
checker reads it at 5 s, 30 s, 2 min and 10 min; only a list that was read to its end and lacks the call past the
horizon makes it `absent`.
"""

from dataclasses import dataclass
from typing import Literal

from trunkline.states import AttemptState

# Seconds after the send at which the call list is read. The last is the horizon: it must be later than the request's
# deadline, the ring time and the list's own lag together.
DOUBT_STEPS_S = (5.0, 30.0, 120.0, 600.0)
# How often an answered call without further events is looked up.
ANSWERED_EVERY_S = 60.0
# Allowance for the carrier's own delays beyond the ring time-out.
RING_GRACE_S = 30.0
RETRY_S = 30.0


# The result of one more query about an `unknown` attempt: the carrier has the call; it has no such call, or the attempt
# was settled otherwise; the carrier cannot tell.
Resolution = Literal["found", "settled", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckLimits:
    request_timeout_s: float
    ring_timeout_s: float
    time_limit_s: float

    @property
    def reply_deadline_s(self) -> float:
        """Past this no dialer waits for the reply any more, or has one left to write."""
        return self.request_timeout_s + 10.0

    @property
    def ring_over_s(self) -> float:
        """Past this nothing rings any more, whenever the carrier began."""
        return self.reply_deadline_s + self.ring_timeout_s

    @property
    def call_max_s(self) -> float:
        """No call lasts longer than this after its request."""
        return self.ring_timeout_s + self.time_limit_s + RING_GRACE_S


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class MarkInDoubt:
    """The reply never came."""


@dataclass(frozen=True, slots=True)
class QueryList:
    """Was it dialled? `final`: this is the last query."""

    final: bool


@dataclass(frozen=True, slots=True)
class QueryCall:
    """Is it still live?"""


@dataclass(frozen=True, slots=True)
class FreeChannel:
    """No call can be live on this channel any more."""


Step = Wait | MarkInDoubt | QueryList | QueryCall | FreeChannel


def next_step(
    state: AttemptState, age_s: float, doubt_checks: int, limits: CheckLimits, list_lag_s: float = 0.0
) -> Step:
    match state:
        case AttemptState.DIALING:
            left_s = limits.reply_deadline_s - age_s
            return Wait(left_s) if left_s > 0 else MarkInDoubt()
        case AttemptState.IN_DOUBT:
            return _doubt_step(age_s, doubt_checks, limits.ring_over_s + list_lag_s)
        case AttemptState.ACCEPTED | AttemptState.RINGING:
            left_s = limits.ring_timeout_s + RING_GRACE_S - age_s
            return Wait(left_s) if left_s > 0 else QueryCall()
        case AttemptState.ANSWERED:
            return QueryCall() if age_s >= ANSWERED_EVERY_S else Wait(ANSWERED_EVERY_S - age_s)
        case _:
            return FreeChannel()


def _doubt_step(age_s: float, doubt_checks: int, horizon_s: float) -> Step:
    step = min(doubt_checks, len(DOUBT_STEPS_S) - 1)
    final = step == len(DOUBT_STEPS_S) - 1
    due_s = max(DOUBT_STEPS_S[step], horizon_s if final else 0.0)
    return QueryList(final) if age_s >= due_s else Wait(due_s - age_s)
