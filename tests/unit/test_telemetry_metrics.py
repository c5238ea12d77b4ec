"""Metrics: declared once, documented all, rendered for the scraper."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from trunkline.telemetry import metrics
from trunkline.telemetry.document import rewritten
from trunkline.telemetry.patterns import names_a_person

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*?) \| (.+?) \|$", re.MULTILINE)


def families() -> dict[str, str]:
    """Name and kind of every metric of ours that a scraper sees."""
    body, _ = metrics.render()
    found = text_string_to_metric_families(body.decode())
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in found
        if not family.name.startswith("process_")
    }


def test_every_metric_is_documented_and_no_other() -> None:
    assert {name: kind for name, kind, _, _ in ROW.findall(PAGE)} == families()


def test_every_metric_is_declared_with_labels_and_meaning() -> None:
    documented = {
        name: (kind, re.findall(r"\w+", labels), meaning) for name, kind, labels, meaning in ROW.findall(PAGE)
    }
    declared = {
        metric.name: (metric.kind, list(metric.labels), metric.meaning) for metric in metrics.DECLARED
    }
    assert documented == declared


def test_the_page_is_what_the_generator_makes() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m trunkline.telemetry.document docs/reference/metrics.md"


def test_labels_name_no_person_and_no_single_call() -> None:
    labels = {label for metric in metrics.DECLARED for label in metric.labels}
    assert not {label for label in labels if names_a_person(label)}
    assert not labels & {"lead_id", "attempt_id", "request_id", "call_sid", "path"}


def test_a_counted_event_is_rendered() -> None:
    before = (
        metrics.REGISTRY.get_sample_value("trunkline_calls_placed_total", {"carrier": "t", "outcome": "x"})
        or 0
    )
    metrics.CALLS_PLACED.labels(carrier="t", outcome="x").inc()
    body, content_type = metrics.render()
    assert f'trunkline_calls_placed_total{{carrier="t",outcome="x"}} {before + 1}' in body.decode()
    assert content_type.startswith("text/plain")


def test_a_scraper_that_asks_for_openmetrics_gets_it() -> None:
    body, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("name", ["trunkline_build_info", "process_resident_memory_bytes"])
def test_the_metrics_include_build_and_process_figures(name: str) -> None:
    assert name in metrics.render()[0].decode()


def test_set_exactly_drops_labels_that_are_gone() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("leads", "Leads by status.", ["status"], registry=registry)
    metrics.set_exactly(gauge, {"BACKLOG": 2, "PROCESSING": 1})
    metrics.set_exactly(gauge, {"BACKLOG": 1})
    assert registry.get_sample_value("leads", {"status": "BACKLOG"}) == 1
    assert registry.get_sample_value("leads", {"status": "PROCESSING"}) is None
