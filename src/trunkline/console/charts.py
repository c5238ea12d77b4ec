"""Charts as numbers: where each line, bar and word goes. The template `charts.html` draws them as SVG. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Any

from trunkline.console import words

WIDTH = 600
HEIGHT = 160
# Room for half of a line that lies on the upper edge.
TOP = 2
# No axis is shorter: a thousandth of a second, or of a call.
LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Mark:
    """A value on an axis, and where it is."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    # Of the SVG element `path`.
    path: str
    area: str
    last: str
    css: str


@dataclass(frozen=True, slots=True)
class TimeChart:
    title: str
    lines: Sequence[Line]
    ticks: Sequence[Mark]
    times: Sequence[Mark]
    # What a screen reader says, and the table behind it.
    summary: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: str
    width: float
    css: str


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    css: str
    # One value per slice; None where there was nothing to measure.
    values: Sequence[float | None]


def time_chart(title: str, starts: Sequence[datetime], series: Sequence[Series], *, unit: str) -> TimeChart:
    top = nice_ceiling(max((v for s in series for v in s.values if v is not None), default=0))
    across = _across(len(starts))
    lines = [_line(each, across, top, unit) for each in series]
    rows = [
        [words.clock(at), *(_said(each.values[i], unit) for each in series)]
        for i, at in enumerate(starts)
        if any(each.values[i] is not None and each.values[i] != 0 for each in series)
    ]
    said = ", ".join(f"{line.name} now {line.last}" for line in lines)
    return TimeChart(
        title=title,
        lines=lines,
        ticks=[Mark(_y(top * part, top), _said(top * part, unit)) for part in (0, 0.5, 1)],
        times=_times(starts, across),
        summary=f"{title}: {said}",
        head=["time", *(each.name for each in series)],
        rows=rows,
    )


def slices(overview: Mapping[str, Any]) -> tuple[list[datetime], list[Mapping[str, Any] | None]]:
    """Every slice of the window in order, with those in which nothing was dialled. The present one is not over."""
    step = timedelta(seconds=overview["slice_s"])
    known = {words.moment(each["at"]): each for each in overview["slices"]}
    now = words.moment(overview["at"])
    assert now is not None, "an overview has its moment"
    width_s = overview["slice_s"]
    last = now - timedelta(seconds=now.timestamp() % width_s) - step
    starts = [last - step * back for back in range(overview["window_s"] // width_s - 1, -1, -1)]
    return starts, [known.get(start) for start in starts]


def bars(values: Mapping[str, float], css: Mapping[str, str] | None = None) -> list[Bar]:
    """Greatest first, the greatest over the whole width."""
    most = max(values.values(), default=0)
    ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    return [
        Bar(name, words.count(value), round(100 * value / most, 2) if most else 0, (css or {}).get(name, ""))
        for name, value in ordered
    ]


def nice_ceiling(value: float) -> float:
    """1, 2 or 5 times a power of ten: an axis that people can read."""
    if value <= 0:
        return 1.0
    power = 10 ** floor(log10(max(value, LEAST)))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.9999))


def _line(series: Series, across: Sequence[float], top: float, unit: str) -> Line:
    points = [(x, _y(v, top)) for x, v in zip(across, series.values, strict=True) if v is not None]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""
    ground = HEIGHT
    area = f"{path}L{points[-1][0]:.1f} {ground}L{points[0][0]:.1f} {ground}Z" if points else ""
    last = next((v for v in reversed(series.values) if v is not None), None)
    return Line(series.name, path, area, _said(last, unit), series.css)


def _across(count: int) -> list[float]:
    step = WIDTH / max(1, count - 1)
    return [i * step for i in range(count)]


def _y(value: float, top: float) -> float:
    room = HEIGHT - 2 * TOP
    return round(TOP + room * (1 - min(value, top) / top), 2)


def _times(starts: Sequence[datetime], across: Sequence[float]) -> list[Mark]:
    """Five at most, as clock times."""
    step = max(1, ceil(len(starts) / 5))
    return [Mark(across[i], f"{starts[i]:%H:%M:%S}") for i in range(0, len(starts), step)]


def _said(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s":
        return words.milliseconds(value)
    return f"{value:,.1f}".rstrip("0").rstrip(".") + unit
