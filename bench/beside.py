"""Does a dial cost more than it did at another commit? Both are measured in turns, with the same carrier and pods.

    make beside REV=4d99879            ten turns of each
    make beside REV=4d99879 TURNS=2

What a machine does in a second changes within minutes, so milliseconds are not compared: a turn says what a dial costs
our processes in terms of what it costs the simulated carrier, whose work is the same for both. The ratio is the median
of the turns' ratios, and the other commit goes first in every second turn.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Report, finish

ROOT = Path(__file__).parent.parent
RATIO_MAX = 1.08
TURN_LIMIT_S = 300


def main() -> None:
    revision, turns = sys.argv[1], int(sys.argv[2])
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    with checkout(revision) as other:
        sources = (ROOT / "src", other / "src")
        for n in range(turns):
            first = n % 2
            found = {which: turn(sources[which]) for which in (first, 1 - first)}
            pairs.append((found[0], found[1]))
            print(
                f"turn {n + 1}: {found[0]['of_carrier']} beside {found[1]['of_carrier']}, "
                f"{found[0]['cpu_ms']} ms beside {found[1]['cpu_ms']}",
                file=sys.stderr,
            )
    ratio = median(mine["of_carrier"] / theirs["of_carrier"] for mine, theirs in pairs)
    finish(
        Report(
            "beside",
            typical([mine for mine, _ in pairs]),
            {revision: typical([theirs for _, theirs in pairs])},
            round(ratio, 3),
            f"CPU of a dial in terms of the carrier's at most {RATIO_MAX:g} times that of {revision}",
            ratio <= RATIO_MAX,
        )
    )


def typical(found: list[dict[str, float]]) -> dict[str, float]:
    names = (
        "of_carrier",
        "cpu_ms",
        "carrier_ms",
        "pods_ms",
        "postgres_ms",
        "valkey_ms",
        "transactions",
        "dials_per_s",
    )
    return {name: round(median(one[name] for one in found), 2) for name in names}


def turn(source: Path) -> dict[str, float]:
    """What a dial costs the platform of this checkout, at a steady rate."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.dispatch", "--steady"],
        cwd=ROOT,
        env={**os.environ, "BENCH_SOURCE": str(source), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TURN_LIMIT_S,
    )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    figures: dict[str, float] = report["ours"]
    return figures


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trunkline-beside-") as folder:
        place = Path(folder) / "other"
        git("worktree", "add", "--quiet", "--detach", str(place), revision)
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True)


if __name__ == "__main__":
    main()
