from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.console import charts, words
from trunkline.console.charts import Series

NOW = datetime(2030, 1, 7, 12, 0, 3, tzinfo=UTC)


@given(st.floats(0, 1e9))
def test_an_axis_ends_above_its_values_and_not_far_above(value: float) -> None:
    top = charts.nice_ceiling(value)
    assert top >= value * 0.999
    assert value == 0 or top <= max(value, charts.LEAST) * 2.6


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=80))
def test_a_line_stays_inside_its_chart(values: list[float | None]) -> None:
    starts = [NOW + timedelta(seconds=5 * i) for i in range(len(values))]
    chart = charts.time_chart("Title", starts, [Series("one", "one", values)], unit="/s")
    path = chart.lines[0].path
    points = [tuple(map(float, point.split())) for point in path[1:].split("L")] if path else []
    assert len(points) == sum(value is not None for value in values)
    assert all(0 <= x <= charts.WIDTH + 0.1 and 0 <= y <= charts.HEIGHT for x, y in points)


def test_slices_without_a_dial_are_there_and_the_present_one_is_not() -> None:
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


def test_bars_are_measured_by_the_greatest() -> None:
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
def test_a_span_has_two_units_at_most(seconds: float, text: str) -> None:
    assert words.span(seconds) == text


def test_moments_are_told_from_now() -> None:
    assert words.distance(NOW - timedelta(seconds=5), NOW) == "5 s ago"
    assert words.distance((NOW + timedelta(minutes=3)).isoformat(), NOW) == "in 3 min"
    assert words.distance(NOW, NOW) == "now"
    assert words.distance(None, NOW) == "–"


def test_a_count_that_stopped_says_so() -> None:
    assert words.count(999, 1000) == "999"
    assert words.count(1000, 1000) == "1,000+"
