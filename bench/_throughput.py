"""How much jobs or mailboxes get done in a second, without their peers. `bench.beside` runs it on two checkouts: all
but this file is that of the checkout on the path.

    python -P bench/_throughput.py jobs|mailboxes
"""

import json
import sys
import tempfile
from pathlib import Path

import uvloop

from bench import _mailbox_load as load
from bench import jobs, mailboxes
from bench.jobs import Queue
from bench.mailboxes import Figures
from bench.platform import scaled
from trunkline.embedded import Engines

ROUNDS = 3


async def main(bench: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder)) as engines:
            return await (of_jobs(engines) if bench == "jobs" else of_mailboxes(engines))


async def of_jobs(engines: Engines) -> dict[str, float]:
    ours = Queue("ours", [sys.executable, "-m", "bench.jobs_peers.ours"], scaled(50_000, least=2000))
    await jobs.prepare(ours, engines, "queue_0")
    for _ in range(ROUNDS):
        await jobs.throughput(ours)
    return ours.summary()


async def of_mailboxes(engines: Engines) -> dict[str, float]:
    figures = Figures()
    for _ in range(ROUNDS):
        async with load.stage(engines) as stage:
            for measure in (mailboxes.appends, mailboxes.folds, mailboxes.drains):
                await measure(stage, figures)
    return {name: value for name, value in figures.summary().items() if name.endswith("_per_s")}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(sys.argv[1]))))
