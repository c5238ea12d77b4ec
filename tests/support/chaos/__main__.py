"""Tries to break the promises, by seed.

    python -m tests.support.chaos --seed 7            one short run
    python -m tests.support.chaos --seeds 1-200       many, each on a platform of its own
    python -m tests.support.chaos --minutes 30        one long run
    python -m tests.support.chaos --plan plan.json    a plan that was printed
    python -m tests.support.chaos --seed 7 --minimise leave out faults for as long as it still fails

The plan of every run is printed. The last line is JSON, and the exit status tells whether a promise was broken.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.support.chaos.faults import KINDS
from tests.support.chaos.machine import Machine, remove
from tests.support.chaos.minimise import minimised
from tests.support.chaos.plan import Plan, drawn
from tests.support.chaos.run import Verdict, run

SEED_DEFAULT = 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Tries to break the promises, by seed.")
    parser.add_argument("--seed", type=int, help="one short run")
    parser.add_argument("--seeds", help="a range of them, as in 1-200, or a list, as in 3,7,12")
    parser.add_argument("--minutes", type=float, help="one long run of this seed instead")
    parser.add_argument("--plan", type=Path, help="a file with a plan that was printed")
    parser.add_argument("--minimise", action="store_true", help="leave out faults while it still fails")
    parser.add_argument("--keep", type=Path, help="a folder in which the logs of every run stay")
    options = parser.parse_args()
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # Postgres is away now and then
    plans = list(_plans(options))
    sys.exit(asyncio.run(_run(plans, options.minimise, options.keep)))


def _plans(options: argparse.Namespace) -> Iterable[Plan]:
    if options.plan is not None:
        yield msgspec.json.decode(options.plan.read_bytes(), type=Plan)
        return
    if options.minutes is not None:
        yield drawn(options.seed or SEED_DEFAULT, KINDS, lasts_s=options.minutes * 60)
        return
    seeds = _seeds(options.seeds) if options.seeds else [options.seed or SEED_DEFAULT]
    for seed in seeds:
        yield drawn(seed, KINDS)


def _seeds(text: str) -> list[int]:
    """`1-200`, or `3,7,12`."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(each) for each in text.split(",")]


async def _run(plans: Sequence[Plan], is_minimising: bool, keep: Path | None) -> int:
    folder = keep or Path(tempfile.mkdtemp(prefix="trunkline-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    verdicts = []
    try:
        async with Machine.open(folder) as machine:
            for plan in plans:
                print(f"plan {msgspec.json.encode(plan).decode()}", flush=True)  # noqa: T201
                verdict = await run(machine, plan)
                verdicts.append(verdict)
                _say(verdict)
                if verdict.violations and is_minimising:
                    smallest = await minimised(machine, plan)
                    print(f"smallest {msgspec.json.encode(smallest).decode()}", flush=True)  # noqa: T201
    finally:
        if keep is None:
            remove(folder)
    return _summarise(verdicts)


def _say(verdict: Verdict) -> None:
    for violation in verdict.violations:
        print(f"  VIOLATION {violation}", flush=True)  # noqa: T201
    print(f"run {json.dumps(verdict.line())}", flush=True)  # noqa: T201


def _summarise(verdicts: Sequence[Verdict]) -> int:
    failed = [verdict.plan.seed for verdict in verdicts if verdict.violations]
    small = [verdict.plan.seed for verdict in verdicts if not verdict.counts]
    total = {
        "runs": len(verdicts),
        "failed": failed,
        "too_few_dials": small,
        "dials": sum(verdict.dials for verdict in verdicts),
        "jobs": sum(verdict.jobs for verdict in verdicts),
        "events": sum(verdict.events for verdict in verdicts),
        "quiet_after_s_max": round(max((verdict.quiet_after_s for verdict in verdicts), default=0.0), 1),
        "faults": dict(sorted(Counter(name for verdict in verdicts for name in verdict.strikes).items())),
    }
    print(json.dumps(total), flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    main()
