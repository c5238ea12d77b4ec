"""Generates the table of the metrics: `python -m trunkline.telemetry.document docs/reference/metrics.md`."""

import re
import sys
from pathlib import Path

from trunkline.telemetry.metrics import DECLARED, Declared

_SECTION = re.compile(r"(?<=<!-- metrics -->\n).*(?=<!-- /metrics -->)", re.DOTALL)


def table() -> str:
    head = "| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n"
    return head + "".join(map(_row, DECLARED))


def _row(metric: Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |\n"


def rewritten(page: str) -> str:
    """The page with its table brought up to date."""
    return _SECTION.sub(lambda _: f"\n{table()}\n", page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))
