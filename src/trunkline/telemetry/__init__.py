"""Telemetry of the platform: log lines, metrics, spans.

from trunkline.telemetry import bind, get_logger, metrics, span
"""

from trunkline.telemetry import metrics
from trunkline.telemetry.logs import bind, bind_task, configure_logging, get_logger
from trunkline.telemetry.spans import configure_spans, span

__all__ = ["bind", "bind_task", "configure_logging", "configure_spans", "get_logger", "metrics", "span"]
