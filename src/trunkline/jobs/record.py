"""Records finished runs in metrics and in log lines, whose events are those of the source documents."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from trunkline.jobs.claimed_jobs import ClaimedJob
from trunkline.jobs.outcomes import JobVerdict
from trunkline.store.jobs import Death, End, EndedJob, Lane, Returned, ReturnedClaim
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


@dataclass(slots=True)
class WrittenVerdicts:
    """The result of writing a batch of verdicts, and the positions at which jobs wait because of it."""

    ended: list[EndedJob] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    buried: list[EndedJob] = field(default_factory=list)
    places: list[tuple[Lane, datetime]] = field(default_factory=list)
    # Another transaction has these or their concurrency keys locked: they are not written yet.
    postponed: set[UUID] = field(default_factory=set)


def record(
    batch: Mapping[ClaimedJob, JobVerdict], written: WrittenVerdicts, *, retried: Collection[ClaimedJob]
) -> None:
    """A retried verdict whose job is missing does not count as a lost lease: the first try may have written it."""
    outcomes = {e.id: "" for e in written.ended} | {e.id: "" for e in written.buried}
    outcomes |= {r.id: r.outcome or "" for r in written.returned}
    counts: Counter[tuple[str, str]] = Counter()
    bound = log.bind()  # once for the batch: below the log level a line then costs next to nothing
    for held, verdict in batch.items():
        job = held.job
        if job.id in outcomes or held in retried:
            status = outcomes.get(job.id) or _status(verdict)
            counts[job.job_type, status] += 1
            _log(bound, held, verdict, status)
        else:
            counts[job.job_type, "lease_lost"] += 1
            bound.warning("jobs.lease_lost", job_id=job.id, job_type=job.job_type, fence=job.fence)
    for (job_type, status), count in counts.items():
        metrics.JOBS_COMPLETED.labels(job_type, status).inc(count)


def _status(verdict: JobVerdict) -> str:
    match verdict:
        case End(outcome="succeeded"):
            return "success"
        case End(outcome=outcome):
            return outcome
        case ReturnedClaim(error_code=None):
            return "returned"
        case ReturnedClaim():
            return "failed"
        case Death():
            return "dead"


def _log(bound: FilteringBoundLogger, held: ClaimedJob, verdict: JobVerdict, status: str) -> None:
    job = held.job
    if status == "success":
        bound.info(
            "job_completed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            duration_ms=round(held.duration_s * 1000),
        )
    elif isinstance(verdict, ReturnedClaim | Death) and status in ("failed", "dead"):
        log_at_level = bound.error if status == "dead" else bound.warning
        log_at_level(
            "job_failed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            attempt=job.attempt,
            error_code=verdict.error_code,
            error_message=verdict.error_message,
            will_retry=status == "failed",
        )
    else:
        bound.info("jobs.ended", job_id=job.id, job_type=job.job_type, status=status)
