"""Does a dial cost more than it did at another commit, or do jobs or mailboxes get less done? Both commits are measured
in turns.

    make beside REV=4d99879                        ten turns of each, with the same carrier and pods
    make beside REV=4d99879 TURNS=2
    make beside REV=3e3eba1 BENCH=jobs             or mailboxes: what our own part of that benchmark gets done
    make beside REV=db8858c BENCH=router           or any other benchmark: its ratio to its bare peer

What a machine does in a second changes within minutes, so milliseconds of a dial are not compared: a turn says what it
costs our processes in terms of what it costs the simulated carrier, whose work is the same for both. Jobs and mailboxes
have nothing of the kind: their turns follow each other closely. Every other benchmark has a peer of its own in the same
run, so both checkouts run theirs as a whole, and the ratios that they print are compared. A ratio is the median of the
turns' ratios, and the other commit goes first in every second turn.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Report, finish

ROOT = Path(__file__).parent.parent
RATIO_MAX = 1.08
# Of what gets done, or of a benchmark's ratio to its peer: within five percent.
RATE_MIN = 0.95
TURN_LIMIT_S = 900
THROUGHPUTS = frozenset({"jobs", "mailboxes"})
# Benchmarks whose ratio is better the lower it is: what we take, in terms of what the peer takes.
LOWER_IS_BETTER = frozenset({"backlog", "campaigns", "console", "fairness", "lateness", "startup"})
# What the machine does without us: no figure of ours.
CONTROLS = frozenset({"bare_inserts_per_s"})

Figures = dict[str, float]
Pairs = Sequence[tuple[Figures, Figures]]


def main() -> None:
    revision, turns = sys.argv[1], int(sys.argv[2])
    bench = sys.argv[3] if len(sys.argv) > 3 else "dispatch"
    with checkout(revision) as other:
        if bench == "dispatch":
            finish(of_dials(revision, in_turns(dial_cost, other, turns)))
        else:
            measure = rates if bench in THROUGHPUTS else peer_ratio
            finish(of_rates(bench, revision, in_turns(partial(measure, bench), other, turns)))


def in_turns(measure: Callable[[Path], Figures], other: Path, turns: int) -> Pairs:
    """This checkout beside the other one, turn by turn."""
    pairs: list[tuple[Figures, Figures]] = []
    checkouts = (ROOT, other)
    for n in range(turns):
        first = n % 2
        found = {which: measure(checkouts[which]) for which in (first, 1 - first)}
        pairs.append((found[0], found[1]))
        shares = ", ".join(f"{name} {found[0][name]:g} beside {found[1][name]:g}" for name in found[0])
        print(f"turn {n + 1}: {shares}", file=sys.stderr, flush=True)
    return pairs


def of_dials(revision: str, pairs: Pairs) -> Report:
    ratio = median(mine["of_carrier"] / theirs["of_carrier"] for mine, theirs in pairs)
    return Report(
        "beside",
        typical([mine for mine, _ in pairs]),
        {revision: typical([theirs for _, theirs in pairs])},
        round(ratio, 3),
        f"CPU of a dial in terms of the carrier's at most {RATIO_MAX:g} times that of {revision}",
        ratio <= RATIO_MAX,
    )


def of_rates(bench: str, revision: str, pairs: Pairs) -> Report:
    """The ratio is that of the figure which fell most."""
    ratios = {name: median(mine[name] / theirs[name] for mine, theirs in pairs) for name in pairs[0][0]}
    ratio = min(value for name, value in ratios.items() if name not in CONTROLS)
    return Report(
        f"beside {bench}",
        {
            **typical([mine for mine, _ in pairs]),
            **{f"{name} ratio": round(value, 3) for name, value in ratios.items()},
        },
        {revision: typical([theirs for _, theirs in pairs])},
        round(ratio, 3),
        f"every figure of bench/{bench} at least {RATE_MIN:g} times that of {revision}",
        ratio >= RATE_MIN,
    )


def typical(found: Sequence[Figures]) -> Figures:
    return {name: round(median(one[name] for one in found), 2) for name in found[0]}


def dial_cost(source: Path) -> Figures:
    """What a dial costs the platform of this checkout, at a steady rate. All but the platform is ours."""
    path = f"{ROOT / 'src'}:{ROOT}"
    command = [sys.executable, "-m", "bench.dispatch", "--steady"]
    report = said(command, ROOT, {"BENCH_SOURCE": str(source / "src"), "PYTHONPATH": path})
    figures: Figures = report["ours"]
    names = (
        "of_carrier", "cpu_ms", "carrier_ms", "pods_ms", "postgres_ms", "valkey_ms", "transactions", "dials_per_s",
    )  # fmt: skip
    return {name: figures[name] for name in names}


def rates(bench: str, source: Path) -> Figures:
    """What jobs or mailboxes of this checkout get done in a second, by its own benchmark."""
    program = str(Path(__file__).with_name("_throughput.py"))
    # -P: beside the program lie modules with names of the standard library's.
    figures: Figures = said(
        [sys.executable, "-P", program, bench], source, {"PYTHONPATH": f"{source / 'src'}:{source}"}
    )
    return figures


def peer_ratio(bench: str, source: Path) -> Figures:
    """Our ratio to the bare peer of this checkout's benchmark, so that more is better."""
    report = said(
        [sys.executable, "-m", f"bench.{bench}"], source, {"PYTHONPATH": f"{source / 'src'}:{source}"}
    )
    ratio: float = report["ratio"]
    return {"to_peer": 1 / ratio if bench in LOWER_IS_BETTER else ratio}


def said(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Any:
    """What it says in its last line."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TURN_LIMIT_S,
    )
    return json.loads(done.stdout.splitlines()[-1])


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
