"""The outcomes that a handler may return, and the verdicts that follow. Pure: no clock, no database.

return Done({"rows": 812})        finished, with a result
return Snooze(60)                 not yet; does not count as a run
return Cancel("lead was deleted") no longer wanted
return Failed("http_503", "…")    an expected failure; an exception is one too
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

import msgspec

from trunkline.store.jobs import Death, End, JobClaim, ReturnedClaim

# The source's table: the wait after the first, second and third failure. The fourth makes a dead letter.
BACKOFF_S: tuple[float, ...] = (0.0, 30.0, 300.0)

RESULT_BYTES_MAX = 256 * 1024
CODE_MAX = 50
MESSAGE_MAX = 2000
DELAY_MAX_S = 10 * 365 * 86400.0
# The interval at which a job with an unreadable payload is offered to other workers, and for how long.
UNREADABLE_WAIT_S = 10.0
UNREADABLE_MAX = timedelta(days=1)

_jitter = Random()  # noqa: S311, spreads retries


@dataclass(frozen=True, slots=True)
class Done:
    result: Any = None


@dataclass(frozen=True, slots=True)
class Snooze:
    delay_s: float

    def __post_init__(self) -> None:
        _check_delay(self.delay_s)


@dataclass(frozen=True, slots=True)
class Cancel:
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """`retry_in_s` overrides the table; `final` makes the job a dead letter at once."""

    code: str
    message: str = ""
    retry_in_s: float | None = None
    final: bool = False

    def __post_init__(self) -> None:
        if self.retry_in_s is not None:
            _check_delay(self.retry_in_s)


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Not begun, or stopped by the worker: it waits again. Made by the worker, never by a handler."""

    counted: bool
    reason: str | None = None
    message: str | None = None
    # None: at its old position.
    delay_s: float | None = None


Outcome = Done | Snooze | Cancel | Failed
JobVerdict = End | ReturnedClaim | Death


@dataclass(frozen=True, slots=True)
class Policy:
    """How jobs of a type run, and how they are retried."""

    backoff_s: tuple[float, ...] = BACKOFF_S
    # Counts all runs. By default as many as the table has waits, and one more.
    max_attempts: int | None = None
    priority: int = 50
    # How many jobs may run at a time under one concurrency key.
    per_key: int = 1
    timeout_s: float = 600.0
    # The largest share of each wait that is added at random, so that jobs that failed together do not retry together.
    jitter: float = 0.0

    def __post_init__(self) -> None:
        assert self.backoff_s, "at least one wait"
        assert all(wait_s >= 0 for wait_s in self.backoff_s)
        assert 1 <= self.attempts <= 1000
        assert 1 <= self.priority <= 99
        assert self.per_key >= 1
        assert self.timeout_s > 0

    @property
    def attempts(self) -> int:
        return self.max_attempts or len(self.backoff_s) + 1

    def wait_s(self, attempt: int) -> float:
        """The wait after this run failed. A table that is too short repeats its last entry."""
        wait_s = self.backoff_s[min(attempt, len(self.backoff_s)) - 1]
        return wait_s * (1 + self.jitter * _jitter.random())


def verdict(job: JobClaim, policy: Policy, outcome: Outcome | GivenBack) -> JobVerdict:
    """The verdict to write for the outcome of a run."""
    match outcome:
        case Done(result=None):
            return End(job.id, job.fence)
        case Done(result=result):
            return _with_result(job, policy, result)
        case Snooze(delay_s=delay_s):
            return ReturnedClaim(job.id, job.fence, max(0.0, delay_s), counted=False)
        case Cancel(reason=reason):
            return End(job.id, job.fence, "cancelled", None, "cancelled", clean(reason, MESSAGE_MAX))
        case GivenBack(counted=counted, reason=reason, message=message, delay_s=delay_s):
            return ReturnedClaim(job.id, job.fence, delay_s, counted, reason, message or reason)
        case Failed():
            return failure(job.id, job.fence, job.attempt, job.max_attempts, policy, outcome)


def failure(
    job_id: Any, fence: int, attempt: int, max_attempts: int, policy: Policy, failed: Failed
) -> ReturnedClaim | Death:
    """A retry after a wait, or a dead letter."""
    code, message = clean(failed.code, CODE_MAX), clean(failed.message, MESSAGE_MAX)
    if failed.final or attempt >= max_attempts:
        return Death(job_id, fence, code, message)
    wait_s = policy.wait_s(attempt) if failed.retry_in_s is None else max(0.0, failed.retry_in_s)
    return ReturnedClaim(job_id, fence, wait_s, True, code, message)


def to_outcome(returned: object) -> Outcome:
    """None means done; another value that is no outcome is a bug that a retry would repeat."""
    match returned:
        case None:
            return Done()
        case Done() | Snooze() | Cancel() | Failed():
            return returned
        case _:
            name = type(returned).__name__
            message = f"The handler returned {name}; allowed: Done, Snooze, Cancel, Failed or None"
            return Failed("bad_outcome", message, final=True)


def unreadable(job: JobClaim, message: str, now: datetime) -> Failed | GivenBack:
    """A payload that this version cannot read was probably written by a newer one, whose workers are being rolled out:
    it waits for one of those, and the run does not count. Unread for a day, it becomes a dead letter."""
    if now - job.created_at > UNREADABLE_MAX:
        return Failed("bad_payload", message, final=True)
    return GivenBack(False, "bad_payload", clean(message, MESSAGE_MAX), UNREADABLE_WAIT_S)


def from_exception(error: BaseException) -> Failed:
    """The code is the error's attribute `code`, or else the name of its class."""
    code = getattr(error, "code", None)
    return Failed(code if isinstance(code, str) and code else type(error).__name__, str(error))


def clean(text: str, length_max: int) -> str:
    """Text that Postgres accepts: without NUL and lone surrogates, and bounded."""
    return str(text)[:length_max].replace("\x00", "�").encode("utf-8", "replace").decode()


def _check_delay(delay_s: float) -> None:
    """Checked here, so that the handler's own traceback names the line."""
    if not delay_s <= DELAY_MAX_S:
        raise ValueError(f"{delay_s} s is no time to wait; allowed: up to {DELAY_MAX_S:g} s")


def _with_result(job: JobClaim, policy: Policy, result: Any) -> JobVerdict:
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        problem = f"The result cannot be written as JSON: {error}"
    else:
        if len(encoded) <= RESULT_BYTES_MAX:
            return End(job.id, job.fence, "succeeded", encoded.decode())
        problem = f"The result has {len(encoded)} bytes, allowed: {RESULT_BYTES_MAX}"
    return verdict(job, policy, Failed("bad_result", problem, final=True))
