"""Spans: nothing without an endpoint, OpenTelemetry with one, never a person."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from structlog.testing import capture_logs

from trunkline.telemetry import configure_spans, span
from trunkline.telemetry.spans import SpanName

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    stop = configure_spans(None, exporter)
    yield exporter
    stop()


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (finished,) = exporter.get_finished_spans()
    return finished


def test_without_an_endpoint_there_is_one_span_that_does_nothing() -> None:
    with span("dispatch.intent", attempt_id=1) as first:
        first.add(count=2)
    with span("loop.run") as second:
        assert second is first


def test_a_span_carries_what_it_was_given_and_what_was_added(exporter: InMemorySpanExporter) -> None:
    with span("dispatch.intent", attempt_id="a-1", reason=None) as step:
        step.add(count=3, carriers=["twilio"])
    finished = only(exporter)
    assert finished.name == "dispatch.intent"
    assert dict(finished.attributes or {}) == {"attempt_id": "a-1", "count": 3, "carriers": "['twilio']"}
    assert finished.resource.attributes["service.name"] == "trunkline"


def test_a_span_inside_another_is_its_child(exporter: InMemorySpanExporter) -> None:
    with span("loop.run"), span("dispatch.match"):
        pass
    child, parent = exporter.get_finished_spans()
    assert child.parent is not None
    assert parent.context is not None
    assert child.parent.span_id == parent.context.span_id


def test_a_spans_error_shows_the_exceptions_type_only(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="no"), span("dispatch.send"):
        raise ValueError("no +14155550123")
    finished = only(exporter)
    assert (finished.status.status_code, finished.status.description) == (StatusCode.ERROR, "ValueError")
    assert "4155550123" not in finished.to_json()


def test_values_are_masked(exporter: InMemorySpanExporter) -> None:
    with span("webhook.receive", route="/cb?to=%2B14155550123&sig=planted") as step:
        step.add(note="+1 415 555 0123")
    told = only(exporter).to_json()
    assert "phone:" in told
    assert "planted" not in told
    assert "555" not in json.dumps(dict(only(exporter).attributes or {}))


PERSONAL = [
    "phone",
    "to",
    "from_number",
    "customer_mobile_number",
    "email",
    "customerName",
    "payload",
    "token",
]


@pytest.mark.parametrize("key", PERSONAL)
def test_keys_that_stand_for_a_person_are_refused_with_tracing_on(
    key: str, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(ValueError, match=key):
        span("dispatch.send", **{key: "x"})
    with span("dispatch.send") as step, pytest.raises(ValueError, match=key):
        step.add(**{key: "x"})


@pytest.mark.parametrize("key", PERSONAL)
def test_keys_that_stand_for_a_person_are_refused_with_tracing_off(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        span("dispatch.send", **{key: "x"})
    with span("dispatch.send") as step, pytest.raises(ValueError, match=key):
        step.add(**{key: "x"})


def test_after_stopping_there_are_no_spans() -> None:
    exporter = InMemorySpanExporter()
    configure_spans(None, exporter)()
    with span("loop.run"):
        pass
    assert exporter.get_finished_spans() == ()


def test_without_the_extra_tracing_stays_off_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trunkline.telemetry.otel", None)
    with capture_logs() as lines:
        stop = configure_spans("http://127.0.0.1:4318")
    assert [line["fix"] for line in lines] == ["install trunkline[otel]"]
    with span("loop.run") as off:
        off.add(count=1)
    stop()


def test_every_span_is_documented_and_no_other() -> None:
    section = PAGE.partition("## Spans")[2]
    assert set(re.findall(r"^\| `([a-z.]+)` \|", section, re.MULTILINE)) == set(get_args(SpanName))
