"""What the metrics of mailboxes count: events, mailboxes and their times, for batches too."""

import pytest

from trunkline.mailbox.processing import ProcessedCounters
from trunkline.store.mailboxes import ISSUE
from trunkline.telemetry import metrics


def value(name: str, kind: str | None = None) -> float:
    return metrics.REGISTRY.get_sample_value(name, {} if kind is None else {"kind": kind}) or 0.0


NAMES = (
    "trunkline_mailbox_processed_total",
    "trunkline_mailbox_completed_total",
    "trunkline_mailbox_processing_duration_seconds_sum",
    "trunkline_mailbox_batch_events_count",
)


@pytest.mark.parametrize("kind", ["measured", ISSUE])
def test_a_batch_counts_the_events_mailboxes_and_seconds_of_all_its_mailboxes(kind: str) -> None:
    before = [value(name, kind) for name in NAMES]
    ProcessedCounters(kind).add([(2, 0.25), (3, 0.5), (1, 0.25)])
    after = [value(name, kind) for name in NAMES]
    assert [now - then for now, then in zip(after, before, strict=True)] == [6, 3, 1.0, 3]


def test_the_metrics_of_issues_count_each_mailbox_of_a_batch() -> None:
    names = (
        "issues_processed_total",
        "issues_processing_duration_seconds_count",
        "events_per_issue_batch_count",
    )
    before = [value(name) for name in names]
    ProcessedCounters(ISSUE).add([(2, 0.25), (3, 0.5)])
    assert [value(name) - then for name, then in zip(names, before, strict=True)] == [2, 2, 2]
