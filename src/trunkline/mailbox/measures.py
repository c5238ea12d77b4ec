"""What mailboxes count. Every kind is labelled; `issue` also has the names that its dashboards know."""

from functools import cache

from prometheus_client import Counter, Histogram

from trunkline.telemetry import metrics

ISSUE = "issue"


def appended(kind: str, events: int, *, queued: int, dead: int) -> None:
    """Events that are durable, the mailboxes that were `idle` before, and those that nobody will look into."""
    of_events, of_queued, of_dead = _appended(kind)
    of_events.inc(events)
    if queued:
        of_queued.inc(queued)
    if dead:
        of_dead.inc(dead)
    if kind == ISSUE:
        metrics.ISSUES_QUEUED.inc(queued)


# Finding a counter by its label costs as much as counting thrice, and an append may be alone.
@cache
def _appended(kind: str) -> tuple[Counter, Counter, Counter]:
    counters = (metrics.MAILBOX_APPENDED, metrics.MAILBOX_QUEUED, metrics.MAILBOX_APPENDED_TO_DEAD)
    of_events, of_queued, of_dead = (counter.labels(kind) for counter in counters)
    return of_events, of_queued, of_dead


def processed(kind: str, events: int, took_s: float) -> None:
    """One mailbox, completed."""
    of_events, of_mailboxes, of_seconds, of_batches = _processed(kind)
    of_events.inc(events)
    of_mailboxes.inc()
    of_seconds.observe(took_s)
    of_batches.observe(events)
    if kind == ISSUE:
        metrics.ISSUES_PROCESSED.inc()
        metrics.ISSUES_SECONDS.observe(took_s)
        metrics.ISSUE_BATCH_EVENTS.observe(events)


@cache
def _processed(kind: str) -> tuple[Counter, Counter, Histogram, Histogram]:
    return (
        metrics.MAILBOX_PROCESSED.labels(kind),
        metrics.MAILBOX_COMPLETED.labels(kind),
        metrics.MAILBOX_SECONDS.labels(kind),
        metrics.MAILBOX_BATCH_EVENTS.labels(kind),
    )


def pending_nudges(kind: str, count: int) -> None:
    metrics.MAILBOX_PENDING_NUDGES.labels(kind).set(count)
    if kind == ISSUE:
        metrics.ISSUES_PENDING_MESSAGES.set(count)
