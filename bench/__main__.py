"""Runs benchmarks one after the other, each in a process of its own, and prints their results as a table."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
HELPERS = {"__init__", "__main__", "report", "peers", "platform", "beside"}


def main() -> int:
    wanted = sys.argv[1:] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}. There are: {', '.join(names())}", file=sys.stderr)
        return 2
    results = {name: run(name) for name in wanted}
    Console().print(table(results))
    return 1 if None in results.values() else 0


def names() -> list[str]:
    modules = {path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS and path.stem[0] != "_"}
    return sorted(modules | {path.parent.name for path in HERE.glob("*/__main__.py")})


def run(name: str) -> dict[str, Any] | None:
    """The benchmark's last line, or None if it broke. Everything it prints is shown as it comes."""
    print(f"── {name}", flush=True)
    last = ""
    with subprocess.Popen(
        [sys.executable, "-m", f"bench.{name}"], stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    ) as process:
        assert process.stdout is not None, "piped"
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    if process.returncode != 0:
        return None
    result: dict[str, Any] = json.loads(last)
    return result


def table(results: dict[str, dict[str, Any] | None]) -> Table:
    shown = Table("bench", "ours", "peers", "ratio", "goal", "met")
    for name, result in results.items():
        if result is None:
            shown.add_row(name, "broke", "", "", "", "no")
            continue
        shown.add_row(
            name,
            figures(result["ours"]),
            "\n".join(f"{peer}: {figures(values)}" for peer, values in result["peers"].items()),
            f"{result['ratio']:.2f}",
            result["goal"],
            "yes" if result["met"] else "no",
        )
    return shown


def figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


if __name__ == "__main__":
    sys.exit(main())
