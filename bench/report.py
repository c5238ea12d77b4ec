"""With what a benchmark ends: its figures as a table that fits a screen, and the one line of JSON, last."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

# Of peers beside each other; the rest follows below.
PEERS_BESIDE = 3


@dataclass(frozen=True, slots=True)
class Report:
    """`ratio` is ours against the best peer, as `goal` reads it; `met` says whether the goal was reached."""

    bench: str
    ours: Mapping[str, float]
    peers: Mapping[str, Mapping[str, float]]
    ratio: float
    goal: str
    met: bool

    def line(self) -> str:
        return json.dumps(asdict(self))


def finish(report: Report) -> None:
    console = Console()
    for table in figures(report):
        console.print(table)
    print(report.line())


def figures(report: Report) -> list[Table]:
    """A row for each figure, ours beside the peers', as many peers in one table as fit."""
    names = list(report.peers)
    groups = [names[start : start + PEERS_BESIDE] for start in range(0, len(names), PEERS_BESIDE)] or [[]]
    return [_table(report, group) for group in groups]


def _table(report: Report, peers: Sequence[str]) -> Table:
    shown = Table(title=report.bench, title_justify="left")
    shown.add_column("figure", overflow="fold")
    for name in ("ours", *peers):
        shown.add_column(name, justify="right", overflow="fold")
    rows = list(dict.fromkeys([*report.ours, *(each for peer in peers for each in report.peers[peer])]))
    for row in rows:
        values = [report.ours.get(row), *(report.peers[peer].get(row) for peer in peers)]
        shown.add_row(row, *("" if value is None else f"{value:g}" for value in values))
    return shown
