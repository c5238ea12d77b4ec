"""OpenTelemetry spans. Imported only when tracing is on, since the packages are an optional extra."""

from types import TracebackType
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import StatusCode, Tracer

from trunkline import __version__
from trunkline.telemetry.redaction import mask_value
from trunkline.telemetry.spans import refuse_personal

Plain = str | bool | int | float


class OpenTelemetry:
    """A provider of its own, not the global one, so that it does not affect the tracing of the application."""

    def __init__(self, endpoint: str | None, exporter: SpanExporter | None):
        resource = Resource.create({"service.name": "trunkline", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            SimpleSpanProcessor(exporter)
            if exporter
            else BatchSpanProcessor(OTLPSpanExporter(f"{(endpoint or '').rstrip('/')}/v1/traces"))
        )
        self._tracer = self._provider.get_tracer("trunkline", __version__)

    def start(self, name: str, attributes: dict[str, object]) -> "OpenTelemetrySpan":
        return OpenTelemetrySpan(self._tracer, name, attributes)

    def stop(self) -> None:
        """Send the pending spans, within the exporter's own timeout."""
        self._provider.shutdown()


class OpenTelemetrySpan:
    """Current while it is open. It records only the type of an error: its text may contain personal data."""

    def __init__(self, tracer: Tracer, name: str, attributes: dict[str, object]):
        self._scope = tracer.start_as_current_span(
            name, attributes=_plain(attributes), record_exception=False, set_status_on_exception=False
        )

    def add(self, **attributes: object) -> None:
        refuse_personal(attributes)
        self._span.set_attributes(_plain(attributes))

    def __enter__(self) -> Self:
        self._span = self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._span.set_status(StatusCode.ERROR, kind.__name__)
        self._scope.__exit__(kind, error, trace)


def _plain(attributes: dict[str, object]) -> dict[str, Plain]:
    masked = {key: mask_value(value, key) for key, value in attributes.items() if value is not None}
    return {key: value if isinstance(value, Plain) else str(value) for key, value in masked.items()}
