"""What mailboxes count. Every kind is labelled; `issue` also has the names that its dashboards know."""

from prometheus_client import Counter, Gauge, Histogram

from trunkline.telemetry import metrics

# The kind whose metrics have names of their own. `docs/mailboxes.md` lists them.
ISSUE = "issue"
ISSUES_QUEUED = Counter("issues_queued_total", "Issues that became queued.", registry=metrics.REGISTRY)
ISSUES_PROCESSED = Counter("issues_processed_total", "Issues that were processed.", registry=metrics.REGISTRY)
ISSUES_SECONDS = Histogram(
    "issues_processing_duration_seconds",
    "From the claim of an issue to its completion.",
    buckets=metrics.LATENESS_S,
    registry=metrics.REGISTRY,
)
ISSUE_BATCH_EVENTS = Histogram(
    "events_per_issue_batch",
    "Events of one issue that were processed together.",
    buckets=metrics.EVENTS,
    registry=metrics.REGISTRY,
)
PENDING_MESSAGES = Gauge(
    "redis_pending_messages",
    "Nudges of issues that are read and not acknowledged.",
    registry=metrics.REGISTRY,
)


def appended(kind: str, events: int, *, queued: int, dead: int) -> None:
    """Events that are durable, the mailboxes that were `idle` before, and those that nobody will look into."""
    metrics.MAILBOX_APPENDED.labels(kind).inc(events)
    metrics.MAILBOX_QUEUED.labels(kind).inc(queued)
    metrics.MAILBOX_APPENDED_TO_DEAD.labels(kind).inc(dead)
    if kind == ISSUE:
        ISSUES_QUEUED.inc(queued)


def processed(kind: str, events: int, took_s: float) -> None:
    """One mailbox, completed."""
    metrics.MAILBOX_PROCESSED.labels(kind).inc(events)
    metrics.MAILBOX_COMPLETED.labels(kind).inc()
    metrics.MAILBOX_SECONDS.labels(kind).observe(took_s)
    metrics.MAILBOX_BATCH_EVENTS.labels(kind).observe(events)
    if kind == ISSUE:
        ISSUES_PROCESSED.inc()
        ISSUES_SECONDS.observe(took_s)
        ISSUE_BATCH_EVENTS.observe(events)


def pending_nudges(kind: str, count: int) -> None:
    metrics.MAILBOX_PENDING_NUDGES.labels(kind).set(count)
    if kind == ISSUE:
        PENDING_MESSAGES.set(count)
