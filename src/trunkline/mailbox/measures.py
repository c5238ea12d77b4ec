"""Counts events and mailboxes in metrics. Every kind has a label; `issue` also has the names that its dashboards
use."""

from collections.abc import Sequence
from functools import cache

from prometheus_client import Counter, Histogram

from trunkline.telemetry import metrics

ISSUE = "issue"


def appended(kind: str, events: int, *, queued: int, dead: int) -> None:
    """Durable events, the mailboxes that were `idle` before, and those that are dead."""
    events_counter, queued_counter, dead_counter = _appended(kind)
    events_counter.inc(events)
    if queued:
        queued_counter.inc(queued)
    if dead:
        dead_counter.inc(dead)
    if kind == ISSUE:
        metrics.ISSUES_QUEUED.inc(queued)


# Finding a counter by its label costs three times as much as counting, and an append may be alone.
@cache
def _appended(kind: str) -> tuple[Counter, Counter, Counter]:
    counters = (metrics.MAILBOX_APPENDED, metrics.MAILBOX_QUEUED, metrics.MAILBOX_APPENDED_TO_DEAD)
    appended, queued, dead = (counter.labels(kind) for counter in counters)
    return appended, queued, dead


def processed(kind: str, completed: Sequence[tuple[int, float]]) -> None:
    """Mailboxes that were completed together: the events of each, and the seconds that it took."""
    events_counter, mailboxes_counter, seconds, batch_sizes = _processed(kind)
    events_counter.inc(sum(events for events, _ in completed))
    mailboxes_counter.inc(len(completed))
    for events, took_s in completed:
        seconds.observe(took_s)
        batch_sizes.observe(events)
    if kind == ISSUE:
        metrics.ISSUES_PROCESSED.inc(len(completed))
        for events, took_s in completed:
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


def pending_wakeups(kind: str, count: int) -> None:
    metrics.MAILBOX_PENDING_NUDGES.labels(kind).set(count)
    if kind == ISSUE:
        metrics.ISSUES_PENDING_MESSAGES.set(count)
