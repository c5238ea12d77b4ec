"""Computes the positions of lines, bars and labels of charts. The template `charts.html` draws them as SVG. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import floor, log10
from typing import Any

from trunkline.console import labels

WIDTH = 600
HEIGHT = 160
# Room for half of a line that lies on the upper edge.
TOP = 2
# No axis is shorter: a thousandth of a second, or of a call.
LEAST = 0.001


# Labels of a time axis are this far apart, whichever leaves five at most.
LABEL_STEPS_S = (5, 15, 30, 60, 300, 900, 1800, 3600, 6 * 3600, 86_400)
LABELS_MAX = 6


@dataclass(frozen=True, slots=True)
class AxisMark:
    """A value on an axis, and where it is."""

    at: float
    text: str

    @property
    def share(self) -> float:
        """Of the width, in percent."""
        return round(100 * self.at / WIDTH, 3)

    @property
    def anchor(self) -> str:
        """The anchor of its label: labels at the edges stay inside."""
        return "start" if self.share < 4 else "end" if self.share > 96 else "middle"


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    # Of the SVG element `path`.
    path: str
    area: str
    last: str
    css: str


@dataclass(frozen=True, slots=True)
class TimeChart:
    title: str
    lines: Sequence[ChartLine]
    ticks: Sequence[AxisMark]
    times: Sequence[AxisMark]
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
class ChartSeries:
    name: str
    css: str
    # One value per slice; None where there was nothing to measure.
    values: Sequence[float | None]


def time_chart(
    title: str, starts: Sequence[datetime], series: Sequence[ChartSeries], *, unit: str
) -> TimeChart:
    top = nice_ceiling(max((v for s in series for v in s.values if v is not None), default=0))
    across = [i * WIDTH / max(1, len(starts) - 1) for i in range(len(starts))]
    lines = [_line(each, across, top, unit) for each in series]
    rows = [
        [labels.clock(at), *(_said(each.values[i], unit) for each in series)]
        for i, at in enumerate(starts)
        if any(each.values[i] is not None and each.values[i] != 0 for each in series)
    ]
    latest = ", ".join(f"{line.name} now {line.last}" for line in lines)
    return TimeChart(
        title=title,
        lines=lines,
        ticks=[AxisMark(_y(top * part, top), _said(top * part, unit)) for part in (0, 0.5, 1)],
        times=_times(starts, across),
        summary=f"{title}: {latest}",
        head=["time", *(each.name for each in series)],
        rows=rows,
    )


def slices(overview: Mapping[str, Any]) -> tuple[list[datetime], list[Mapping[str, Any] | None]]:
    """Every slice of the window in order, with those in which nothing was dialled. The present one is not over."""
    step = timedelta(seconds=overview["slice_s"])
    known = {labels.moment(each["at"]): each for each in overview["slices"]}
    now = labels.moment(overview["at"])
    assert now is not None, "an overview has its moment"
    width_s = overview["slice_s"]
    last = now - timedelta(seconds=now.timestamp() % width_s) - step
    starts = [last - step * back for back in range(overview["window_s"] // width_s - 1, -1, -1)]
    return starts, [known.get(start) for start in starts]


def rates(
    overview: Mapping[str, Any], starts: Sequence[datetime], found: Sequence[Mapping[str, Any] | None]
) -> list[float | None]:
    """Dials per second of each slice. Before the first slice the rate is unknown, which is not 0."""
    since = labels.moment(overview["since"])
    assert since is not None, "an overview says how far it reaches"
    width_s = overview["slice_s"]
    return [
        None if start < since else (each["dials"] if each else 0) / width_s
        for start, each in zip(starts, found, strict=True)
    ]


def bars(values: Mapping[str, float], css: Mapping[str, str] | None = None) -> list[Bar]:
    """Greatest first, the greatest over the whole width."""
    most = max(values.values(), default=0)
    ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    return [
        Bar(name, labels.count(value), round(100 * value / most, 2) if most else 0, (css or {}).get(name, ""))
        for name, value in ordered
    ]


def nice_ceiling(value: float) -> float:
    """1, 2 or 5 times a power of ten: an axis that people can read."""
    if value <= 0:
        return 1.0
    power = 10 ** floor(log10(max(value, LEAST)))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.9999))


def _line(series: ChartSeries, across: Sequence[float], top: float, unit: str) -> ChartLine:
    """A slice without a value is a gap in the line."""
    runs = [[(x, _y(v, top)) for x, v in run] for run in _runs(across, series.values)]
    last = next((v for v in reversed(series.values) if v is not None), None)
    path = "".join(map(_path, runs))
    return ChartLine(series.name, path, "".join(map(_area, runs)), _said(last, unit), series.css)


def _runs(across: Sequence[float], values: Sequence[float | None]) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for x, value in zip(across, values, strict=True):
        if value is not None:
            run.append((x, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _path(run: Sequence[tuple[float, float]]) -> str:
    """A single value is a dot: a line of no length with round ends."""
    drawn = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
    return drawn if len(run) > 1 else f"{drawn}h0"


def _area(run: Sequence[tuple[float, float]]) -> str:
    if len(run) == 1:
        return ""
    return f"{_path(run)}L{run[-1][0]:.1f} {HEIGHT}L{run[0][0]:.1f} {HEIGHT}Z"


def _y(value: float, top: float) -> float:
    room = HEIGHT - 2 * TOP
    return round(TOP + room * (1 - min(value, top) / top), 2)


def _times(starts: Sequence[datetime], across: Sequence[float]) -> list[AxisMark]:
    """Where whole minutes, quarters of them or hours begin, each at its own slice."""
    if not starts:
        return []
    span_s = (starts[-1] - starts[0]).total_seconds()
    step_s = next((each for each in LABEL_STEPS_S if span_s / each < LABELS_MAX), LABEL_STEPS_S[-1])
    form = "%H:%M" if step_s >= 60 else "%H:%M:%S"
    return [
        AxisMark(x, start.strftime(form))
        for start, x in zip(starts, across, strict=True)
        if start.timestamp() % step_s == 0
    ]


def _said(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s":
        return labels.milliseconds(value)
    return f"{value:,.1f}".rstrip("0").rstrip(".") + unit
