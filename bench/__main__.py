"""Runs benchmarks one after the other, each in a process of its own. The figures of each are a table, all goals are one
at the end, and the lines of JSON are last."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
HELPERS = {"__init__", "__main__", "report", "peers", "platform", "beside", "neighbours"}


def main() -> int:
    wanted = sys.argv[1:] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}. There are: {', '.join(names())}", file=sys.stderr)
        return 2
    results = {name: run(name) for name in wanted}
    Console().print(summary(results))
    for result in results.values():
        if result is not None:
            print(json.dumps(result))
    return 1 if None in results.values() else 0


def names() -> list[str]:
    modules = {path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS and path.stem[0] != "_"}
    return sorted(modules | {path.parent.name for path in HERE.glob("*/__main__.py")})


def run(name: str) -> dict[str, Any] | None:
    """What the benchmark says in its last line, or None if it broke. All but that line is shown as it comes."""
    print(f"── {name}", flush=True)
    last = ""
    with subprocess.Popen(
        [sys.executable, "-m", f"bench.{name}"], stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    ) as process:
        assert process.stdout is not None, "piped"
        for line in process.stdout:
            if last:
                print(last, flush=True)
            last = line.rstrip()
    result = told(last, process.returncode)
    if result is None:
        print(last, flush=True)
    return result


def told(last: str, status: int) -> dict[str, Any] | None:
    """The report in a last line. With a status other than 0 it is one that was not met; anything else broke."""
    try:
        result = json.loads(last)
    except ValueError:
        return None
    if not isinstance(result, dict) or "met" not in result:
        return None
    return None if status and result["met"] else result


def summary(results: Mapping[str, Mapping[str, Any] | None]) -> Table:
    """A line or two for each: their figures were shown as they came."""
    shown = Table("bench", "ratio", "met", "goal")
    for name, result in results.items():
        if result is None:
            shown.add_row(name, "", "broke", "")
        else:
            shown.add_row(name, f"{result['ratio']:.2f}", "yes" if result["met"] else "no", result["goal"])
    return shown


if __name__ == "__main__":
    sys.exit(main())
