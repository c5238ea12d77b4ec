"""`python -m examples.fastapi_orders.worker` does the work until it is stopped."""

import asyncio

from examples.fastapi_orders.work import jobs, mailboxes


async def main() -> None:
    # A handler appends too, so both are open before either works.
    async with jobs, mailboxes:
        await asyncio.gather(jobs.run(), mailboxes.run())


if __name__ == "__main__":
    asyncio.run(main())
