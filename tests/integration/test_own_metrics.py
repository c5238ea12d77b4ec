"""A worker of an application serves what it counted, without a platform beside it."""

import asyncio
import urllib.request

from tests.support.waiting import eventually
from trunkline.jobs import Jobs, JobType, Policy, Run
from trunkline.mailbox import Mailbox, Mailboxes, mailbox
from trunkline.telemetry.serving import serve_metrics


def page(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


async def test_the_worker_of_an_application_serves_its_own_metrics(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    ran = asyncio.Event()

    async def run_it(_: dict[str, int], _run: Run) -> None:
        ran.set()

    @mailbox("issue", sweep_s=0.05)
    async def handle(box: Mailbox) -> None:
        return None

    counted: JobType[dict[str, int]] = JobType("counted_by_itself", dict, Policy(), run_it)
    jobs = Jobs(database_url, [counted])
    with serve_metrics(0) as port:
        before = page(port)
        async with (
            jobs,
            jobs.worker(),
            Mailboxes.open(database_url, redis_url, [handle], prefix=key_prefix) as mailboxes,
        ):
            await jobs.submit(counted, {})
            await mailboxes.submit("issue", "acme/site#12", "opened", {})

            async def is_counted() -> bool:
                now = await asyncio.to_thread(page, port)
                done = now.get('job_completed_total{job_type="counted_by_itself",status="success"}')
                return (done, now["issues_processed_total"]) == (1.0, before["issues_processed_total"] + 1)

            await eventually(is_counted)
