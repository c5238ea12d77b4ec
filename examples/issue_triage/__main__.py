"""`python -m examples.issue_triage` runs it on engines of its own; `--demo` sends it some webhooks and ends."""

import argparse
import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from aiohttp import ClientSession, web

from examples.issue_triage import github, samples, server, store
from examples.issue_triage.responder import KeywordResponder, Responder
from examples.issue_triage.tracker import Console, GitHub, Tracker
from examples.issue_triage.triage import handlers
from trunkline.embedded import Engines
from trunkline.mailbox import Mailboxes
from trunkline.store import database as store_database
from trunkline.store.database import Database

HOST = "127.0.0.1"

_WAITING = "SELECT count(*) FROM trunkline.mailboxes WHERE processing_status <> 'idle'"


@asynccontextmanager
async def running(
    engines: Engines,
    responder: Responder,
    tracker: Tracker,
    secret: str,
    *,
    port: int = 0,
    prefix: str = "issue-triage",
) -> AsyncIterator[tuple[str, Database]]:
    """The whole application; the address of its webhook endpoint, and its database."""
    database = await store_database.connect(engines.database_url)
    await store.prepare(database)
    parts = handlers(database, responder, tracker)
    try:
        async with Mailboxes.open(engines.database_url, engines.redis_url, parts, prefix=prefix) as mailboxes:
            runner = web.AppRunner(server.application(mailboxes, secret), access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, HOST, port)
            await site.start()
            try:
                yield f"http://{HOST}:{runner.addresses[0][1]}{server.PATH}", database
            finally:
                await runner.cleanup()
    finally:
        await database.close()


async def send(session: ClientSession, url: str, secret: str, event: str, payload: object) -> int:
    body = json.dumps(payload).encode()
    headers = {
        "Content-Type": "application/json",
        github.EVENT: event,
        github.DELIVERY: str(uuid4()),
        github.SIGNATURE: github.sign(secret, body),
    }
    async with session.post(url, data=body, headers=headers) as answer:
        return answer.status


async def demonstrate(url: str, database: Database, secret: str) -> None:
    """Two issues; one of them gets three messages in a row, which are one turn or two, and as many replies."""
    login = samples.issue(1, "Login fails", "I get an error when I log in.")
    dark = samples.issue(2, "Dark mode", "It would be nice to have a dark mode.", by="grace")
    async with ClientSession() as session:
        await send(session, url, secret, "ping", samples.ping())
        await send(session, url, secret, "issues", samples.issues("opened", login))
        await send(
            session, url, secret, "issue_comment", samples.issue_comment("created", login, 1, "Version 2.1")
        )
        await send(
            session, url, secret, "issue_comment", samples.issue_comment("created", login, 2, "Still broken!")
        )
        await send(session, url, secret, "issues", samples.issues("opened", dark, by="grace"))

    async def all_posted() -> bool:
        async with database.connection() as conn:
            waiting = await conn.fetchval(_WAITING)
            return not waiting and bool(await conn.fetchval("SELECT count(*) >= 2 FROM replies"))

    async with asyncio.timeout(30):
        # The replies are written by a worker: only the table tells.
        while not await all_posted():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def main(arguments: argparse.Namespace) -> None:
    secret = os.environ.get("GITHUB_WEBHOOK_SECRET") or secrets.token_hex(16)
    token = os.environ.get("GITHUB_TOKEN")
    tracker: Tracker = GitHub(token) if token else Console()
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with (
        Engines(arguments.data_dir) as engines,
        running(
            engines, KeywordResponder(), tracker, secret, port=0 if arguments.demo else arguments.port
        ) as (
            url,
            database,
        ),
    ):
        if arguments.demo:
            await demonstrate(url, database, secret)
            return
        print(f"Webhooks go to {url}, signed with GITHUB_WEBHOOK_SECRET={secret}", flush=True)  # noqa: T201
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.issue_triage", description=__doc__)
    parser.add_argument("--demo", action="store_true", help="send some webhooks, print the replies, and end")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--data-dir", type=Path, default=Path(".issue-triage"))
    asyncio.run(main(parser.parse_args()))
