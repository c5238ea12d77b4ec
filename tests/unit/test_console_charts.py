import re
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.console import charts, labels
from trunkline.console.charts import ChartSeries
from trunkline.console.rendering import Renderer
from trunkline.console.static_files import StaticFiles

NOW = datetime(2030, 1, 7, 12, 0, 3, tzinfo=UTC)


@given(st.floats(0, 1e9))
def test_an_axis_ends_above_its_values_and_not_far_above(value: float) -> None:
    top = charts.nice_ceiling(value)
    assert top >= value * 0.999
    assert value == 0 or top <= max(value, charts.LEAST) * 2.6


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=80))
def test_a_line_stays_inside_its_chart(values: list[float | None]) -> None:
    starts = [NOW + timedelta(seconds=5 * i) for i in range(len(values))]
    chart = charts.time_chart("Title", starts, [ChartSeries("one", "one", values)], unit="/s")
    drawn = points(chart.lines[0].path)
    assert [len(run) for run in drawn] == [
        len(list(run)) for is_there, run in groupby(values, lambda value: value is not None) if is_there
    ], "a slice without a value is a gap"
    assert all(0 <= x <= charts.WIDTH + 0.1 and 0 <= y <= charts.HEIGHT for run in drawn for x, y in run)


def points(path: str) -> list[list[tuple[float, float]]]:
    """What is drawn without lifting the pen."""
    runs = [run.removesuffix("h0").split("L") for run in path.split("M")[1:]]
    return [[(float(x), float(y)) for x, y in (point.split() for point in run)] for run in runs]


@given(st.integers(0, 86_400 // 5))
def test_labels_of_a_time_axis_stand_at_their_own_slice(offset: int) -> None:
    """Five minutes of five-second slices, beginning anywhere."""
    first = datetime(2030, 1, 7, tzinfo=UTC) + timedelta(seconds=5 * offset)
    starts = [first + timedelta(seconds=5 * i) for i in range(60)]
    chart = charts.time_chart("Title", starts, [ChartSeries("one", "one", list(range(60)))], unit="/s")
    [run] = points(chart.lines[0].path)
    assert 4 <= len(chart.times) <= 6
    for mark in chart.times:
        at = next(i for i, start in enumerate(starts) if f"{start:%H:%M}" == mark.text and start.second == 0)
        assert mark.at == pytest.approx(run[at][0], abs=0.1)
        assert mark.share == pytest.approx(100 * at / 59, abs=0.01)


def test_the_page_draws_each_label_where_it_belongs() -> None:
    starts = [datetime(2030, 1, 7, 12, 0, 35, tzinfo=UTC) + timedelta(seconds=5 * i) for i in range(60)]
    chart = charts.time_chart("Pace", starts, [ChartSeries("one", "one", list(range(60)))], unit="/s")
    parts: Any = Renderer(StaticFiles())._environment.get_template("parts.html").module
    drawn = parts.time_chart(chart)
    labels = re.findall(r'<text x="([0-9.]+)%"[^>]*>([0-9:]+)</text>', drawn)
    wanted = [(f"{start:%H:%M}", 100 * i / 59) for i, start in enumerate(starts) if start.second == 0]
    assert [text for _, text in labels] == [text for text, _ in wanted]
    assert [float(share) for share, _ in labels] == pytest.approx([share for _, share in wanted], abs=0.01)


def test_slices_without_a_value_are_a_gap_in_the_line() -> None:
    starts = [NOW + timedelta(seconds=5 * i) for i in range(6)]
    values = [1.0, 2.0, None, None, 3.0, None]
    [line] = charts.time_chart("Title", starts, [ChartSeries("p50", "one", values)], unit="s").lines
    assert [len(run) for run in points(line.path)] == [2, 1]
    assert line.area.count("Z") == 1, "a single value is a dot"


def test_slices_before_the_first_measurement_have_no_rate() -> None:
    overview = {"at": NOW.isoformat(), "since": "2030-01-07T11:59:50+00:00", "slice_s": 5, "window_s": 20}
    starts, slices = charts.slices(overview | {"slices": [{"at": "2030-01-07T11:59:50+00:00", "dials": 10}]})
    assert charts.rates(overview, starts, slices) == [None, None, 2.0, 0.0]


def test_empty_slices_are_shown_and_the_current_one_is_not() -> None:
    overview = {
        "at": NOW.isoformat(),
        "slice_s": 5,
        "window_s": 20,
        "slices": [
            {"at": "2030-01-07T11:59:50+00:00", "dials": 3},
            {"at": "2030-01-07T12:00:00+00:00", "dials": 9},
        ],
    }
    starts, slices = charts.slices(overview)
    assert [f"{start:%H:%M:%S}" for start in starts] == ["11:59:40", "11:59:45", "11:59:50", "11:59:55"]
    assert [each and each["dials"] for each in slices] == [None, None, 3, None]


def test_bars_are_scaled_to_the_greatest_value() -> None:
    bars = charts.bars({"busy": 5, "completed": 20}, {"busy": "warn"})
    assert [(bar.label, bar.value, bar.width, bar.css) for bar in bars] == [
        ("completed", "20", 100, ""),
        ("busy", "5", 25, "warn"),
    ]
    assert charts.bars({}) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_a_duration_label_has_two_units_at_most(seconds: float, text: str) -> None:
    assert labels.span(seconds) == text


def test_moments_are_labelled_relative_to_now() -> None:
    assert labels.distance(NOW - timedelta(seconds=5), NOW) == "5 s ago"
    assert labels.distance((NOW + timedelta(minutes=3)).isoformat(), NOW) == "in 3 min"
    assert labels.distance(NOW, NOW) == "now"
    assert labels.distance(None, NOW) == "–"


def test_a_count_at_its_limit_is_shown_with_a_plus() -> None:
    assert labels.count(999, 1000) == "999"
    assert labels.count(1000, 1000) == "1,000+"
