"""Tells of finished runs, in metrics and in the log lines that the operators of the source know."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from trunkline.jobs.held import Held
from trunkline.jobs.outcomes import Verdict
from trunkline.store.jobs import Death, End, Ended, Lane, Return, Returned
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


@dataclass(slots=True)
class Written:
    """What became of a batch of verdicts, and the places at which jobs wait because of it."""

    ended: list[Ended] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    buried: list[Ended] = field(default_factory=list)
    places: list[tuple[Lane, datetime]] = field(default_factory=list)


def record(batch: Mapping[Held, Verdict], written: Written, *, is_retry: bool) -> None:
    """Of a retried batch that is not found it is not said that it was lost: the first try may have written it."""
    outcomes = {e.id: "" for e in written.ended} | {e.id: "" for e in written.buried}
    outcomes |= {r.id: r.outcome or "" for r in written.returned}
    counts: Counter[tuple[str, str]] = Counter()
    bound = log.bind()  # once for the batch: below the log level a line then costs next to nothing
    for held, verdict in batch.items():
        job = held.job
        if job.id in outcomes or is_retry:
            status = outcomes.get(job.id) or _status(verdict)
            counts[job.job_type, status] += 1
            _log(bound, held, verdict, status)
        else:
            counts[job.job_type, "lease_lost"] += 1
            bound.warning("job_lease_lost", job_id=job.id, job_type=job.job_type, fence=job.fence)
    for (job_type, status), count in counts.items():
        metrics.JOBS_COMPLETED.labels(job_type, status).inc(count)


def _status(verdict: Verdict) -> str:
    match verdict:
        case End(outcome="succeeded"):
            return "success"
        case End(outcome=outcome):
            return outcome
        case Return(error_code=None):
            return "returned"
        case Return():
            return "failed"
        case Death():
            return "dead"


def _log(bound: FilteringBoundLogger, held: Held, verdict: Verdict, status: str) -> None:
    job = held.job
    if status == "success":
        bound.info(
            "job_completed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            duration_ms=round(held.duration_s * 1000),
        )
    elif isinstance(verdict, Return | Death) and status in ("failed", "dead"):
        say = bound.error if status == "dead" else bound.warning
        say(
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
        bound.info("job_ended", job_id=job.id, job_type=job.job_type, status=status)
