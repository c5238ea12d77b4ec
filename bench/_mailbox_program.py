"""Our side of the pickup, as a program of the shape that `bench.jobs_peers` describes: `setup`, `send` and `listen`."""

import asyncio
import logging
import sys
import time

import msgspec
import structlog
import uvloop

from bench.jobs_peers.ours import Plan
from tests.support.waiting import eventually
from trunkline.mailbox import Mailbox, Mailboxes, mailbox
from trunkline.store.migrate import migrate

KIND = "bench"


async def send(plan: Plan) -> None:
    """One event every `gap_s`, each to a mailbox of its own, as jobs have nothing in common either."""
    async with Mailboxes.open(plan.database_url, plan.redis_url) as mailboxes:
        for n in range(plan.count):
            await mailboxes.submit(KIND, f"{time.time_ns()}-{n}", "sent", {"sent": time.time()})
            await asyncio.sleep(plan.gap_s)


async def listen(plan: Plan) -> dict[str, object]:
    late_ms: list[float] = []
    done = asyncio.Event()

    @mailbox(KIND, concurrency=24)
    async def note(box: Mailbox) -> None:
        now = time.time()
        late_ms.extend((now - event.payload["sent"]) * 1000 for event in box.events)
        if len(late_ms) >= plan.count:
            done.set()

    async with Mailboxes.open(plan.database_url, plan.redis_url, [note]) as mailboxes:
        stream = mailboxes.bus.keys.mailbox_wakeups(KIND)
        await eventually(lambda: mailboxes.bus.client.exists(stream))
        print("ready", flush=True)
        async with asyncio.timeout(plan.give_up_s - time.time()):
            await done.wait()
    return {"late_ms": late_ms}


async def main(do: str, plan: Plan) -> object:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    match do:
        case "setup":
            return await migrate(plan.database_url)
        case "send":
            await send(plan)
            return None
        case _:
            return await listen(plan)


if __name__ == "__main__":
    found = uvloop.run(main(sys.argv[1], msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
    print(msgspec.json.encode(found).decode())
