"""The figures of a benchmark fit a screen, and the JSON for programs is the last line."""

import json

import pytest
from rich.console import Console

from bench.__main__ import summary
from bench.report import Report, figures, finish

WIDTH = 80
GOAL = "at least 0.9 of the best peer's calls per second, with a p99 of lateness below 25 ms at 200 calls a second"
REPORT = Report(
    "lateness",
    {f"dial_lateness_p{n}_ms_at_200_calls_per_second": n * 1.234567 for n in range(9)},
    {f"graphile-worker-{n}": {"lateness_p50_ms": 990.0, f"own_figure_{n}": 123456.789} for n in range(7)},
    1.234,
    GOAL,
    met=True,
)


def test_the_figures_fit_a_screen_and_none_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=WIDTH)
    for table in figures(REPORT):
        console.print(table)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= WIDTH
    plain = shown.replace("\n", "")
    assert all(f"own_figure_{n}" in shown for n in range(7))
    assert plain.count("990") == 7


def test_the_summary_of_all_benchmarks_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    results = {f"bench_{n}": json.loads(REPORT.line()) for n in range(14)} | {"broken": None}
    Console(width=WIDTH).print(summary(results))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 50


def test_the_last_line_of_a_report_is_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    finish(REPORT)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["goal"] == GOAL
