"""Spans: the duration and the results of a step.

    with span("dispatch.intent", grants=len(grants)) as step:
        ...
        step.add(sent=len(attempts))

Without an endpoint a span is one shared object that does nothing. With the `otel` extra installed and
`OTEL_EXPORTER_OTLP_ENDPOINT` set, the same lines become OpenTelemetry spans (`otel.py`). Names are declared once, here,
and the type checker checks them. Keys of personal data are refused whether or not tracing is on, so that tests find
them.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

from trunkline.telemetry.logs import get_logger
from trunkline.telemetry.patterns import names_a_person

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from trunkline.telemetry.otel import OpenTelemetry

SpanName = Literal[
    "http.request",
    "leads.ingest",
    "dispatch.match",
    "dispatch.intent",
    "dispatch.send",
    "dispatch.result",
    "webhook.receive",
    "mailbox.fold",
    "loop.run",
]

log = get_logger(__name__)


class Span(Protocol):
    def add(self, **attributes: object) -> None:
        """Add results of the step."""


class _Untraced:
    def add(self, **attributes: object) -> None:
        refuse_personal(attributes)


_UNTRACED = nullcontext(_Untraced())
_tracing: "OpenTelemetry | None" = None


def span(name: SpanName, /, **attributes: object) -> AbstractContextManager[Span]:
    """A step to be timed, for a `with` statement."""
    if attributes:
        refuse_personal(attributes)
    return _UNTRACED if _tracing is None else _tracing.start(name, attributes)


def configure_spans(endpoint: str | None, exporter: "SpanExporter | None" = None) -> Callable[[], None]:
    """Turn tracing on if there is an endpoint. Returns a function that turns it off and sends the pending spans."""
    global _tracing
    if endpoint or exporter:
        try:
            from trunkline.telemetry.otel import OpenTelemetry
        except ImportError:
            log.warning("spans.unavailable", fix="install trunkline[otel]")
        else:
            _tracing = OpenTelemetry(endpoint, exporter)
    return _stop


def _stop() -> None:
    global _tracing
    if _tracing is not None:
        _tracing.stop()
    _tracing = None


_names_a_person = lru_cache(maxsize=256)(names_a_person)


def refuse_personal(keys: Iterable[str]) -> None:
    """Spans leave the installation: a key of personal data or of a secret is a bug of the code that adds it."""
    for key in keys:
        if _names_a_person(key):
            raise ValueError(f"a span must not carry {key!r}: use an id")
