"""A real pgbouncer in transaction mode before a database of a test."""

import asyncio
import os
import pwd
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from trunkline.embedded.ports import free_port

PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
UNPRIVILEGED = "nobody"


@asynccontextmanager
async def transaction_pooler(database_url: str, folder: Path, *, sessions: int = 2) -> AsyncIterator[str]:
    """The URL of a pooler that leads to this database, with two connections to share among all."""
    assert PGBOUNCER is not None, "ask before"
    port = free_port()
    config = _write_config(database_url, port, folder, sessions)
    process = await asyncio.create_subprocess_exec(
        PGBOUNCER, "-q", str(config), user=UNPRIVILEGED if os.geteuid() == 0 else None
    )
    parts = urlsplit(database_url)
    url = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))
    try:
        await _until_it_answers(url)
        yield url
    finally:
        process.terminate()
        await process.wait()


def _write_config(database_url: str, port: int, folder: Path, sessions: int) -> Path:
    server = urlsplit(database_url)
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / "users.txt"
    users.write_text(f'"{server.username}" "{server.password}"\n', encoding="utf-8")
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"""[databases]
* = host={server.hostname} port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = plain
auth_file = {users}
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 100
ignore_startup_parameters = extra_float_digits
""",
        encoding="utf-8",
    )
    if os.geteuid() == 0:
        owner = pwd.getpwnam(UNPRIVILEGED).pw_uid
        for path in (folder, users, config):
            os.chown(path, owner, -1)
    return config


async def _until_it_answers(url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                connection = await asyncpg.connect(url, statement_cache_size=0)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return
