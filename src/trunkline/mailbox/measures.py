"""What mailboxes count. Every kind is labelled; `issue` also has the names that its dashboards know."""

from trunkline.telemetry import metrics

ISSUE = "issue"


def appended(kind: str, events: int, *, queued: int, dead: int) -> None:
    """Events that are durable, the mailboxes that were `idle` before, and those that nobody will look into."""
    metrics.MAILBOX_APPENDED.labels(kind).inc(events)
    metrics.MAILBOX_QUEUED.labels(kind).inc(queued)
    metrics.MAILBOX_APPENDED_TO_DEAD.labels(kind).inc(dead)
    if kind == ISSUE:
        metrics.ISSUES_QUEUED.inc(queued)


def processed(kind: str, events: int, took_s: float) -> None:
    """One mailbox, completed."""
    metrics.MAILBOX_PROCESSED.labels(kind).inc(events)
    metrics.MAILBOX_COMPLETED.labels(kind).inc()
    metrics.MAILBOX_SECONDS.labels(kind).observe(took_s)
    metrics.MAILBOX_BATCH_EVENTS.labels(kind).observe(events)
    if kind == ISSUE:
        metrics.ISSUES_PROCESSED.inc()
        metrics.ISSUES_SECONDS.observe(took_s)
        metrics.ISSUE_BATCH_EVENTS.observe(events)


def pending_nudges(kind: str, count: int) -> None:
    metrics.MAILBOX_PENDING_NUDGES.labels(kind).set(count)
    if kind == ISSUE:
        metrics.ISSUES_PENDING_MESSAGES.set(count)
