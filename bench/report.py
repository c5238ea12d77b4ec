"""The one line of JSON with which a benchmark ends."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


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
    print(report.line())
