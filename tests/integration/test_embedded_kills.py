"""Whatever is killed, the next start works, and what was acknowledged is there."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from redis.asyncio import Redis

from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.embedded.account import choose_account
from trunkline.embedded.leftovers import end_leftovers, folder_mark, processes_in
from trunkline.embedded.postgres import Postgres
from trunkline.embedded.process import Step
from trunkline.embedded.valkey import Valkey
from trunkline.errors import EmbeddedError


def both(engines: Engines) -> tuple[Postgres, Valkey]:
    assert engines.postgres is not None
    assert engines.valkey is not None
    return engines.postgres, engines.valkey


def pids_in(folder: Path) -> set[int]:
    return {process.pid for process in processes_in(folder, "postgres")}


async def write_a_row_and_a_key(engines: Engines) -> None:
    connection = await asyncpg.connect(engines.database_url)
    await connection.execute("CREATE TABLE kept (id int)")
    await connection.execute("INSERT INTO kept VALUES (1)")
    await connection.close()
    async with Redis.from_url(engines.redis_url) as client:
        await client.set("kept", "1")


async def assert_both_are_there(engines: Engines) -> None:
    connection = await asyncpg.connect(engines.database_url)
    assert await connection.fetchval("SELECT count(*) FROM kept") == 1
    await connection.close()
    async with Redis.from_url(engines.redis_url) as client:
        assert await client.get("kept") == b"1"


async def test_data_survives_when_both_servers_are_killed(tmp_path: Path) -> None:
    async with Engines(tmp_path, durable=False) as engines:
        await write_a_row_and_a_key(engines)
        for server in both(engines):
            os.kill(server.pid, signal.SIGKILL)
            await server.exited()
    async with Engines(tmp_path, durable=False) as engines:
        await assert_both_are_there(engines)


async def test_an_engine_that_exits_is_reported_as_failed(private_engines: Engines) -> None:
    _, valkey = both(private_engines)
    failed = asyncio.create_task(private_engines.failed())
    os.kill(valkey.pid, signal.SIGKILL)
    assert await failed == "Valkey"


@pytest.mark.parametrize("which", [0, 1])
async def test_a_killed_server_starts_again_at_the_same_address(private_engines: Engines, which: int) -> None:
    await write_a_row_and_a_key(private_engines)
    urls = private_engines.database_url, private_engines.redis_url
    server = both(private_engines)[which]
    os.kill(server.pid, signal.SIGKILL)
    await server.exited()
    await server.start()
    assert (private_engines.database_url, private_engines.redis_url) == urls
    await assert_both_are_there(private_engines)


async def test_a_killed_backend_makes_postgres_recover_by_itself(private_engines: Engines) -> None:
    await write_a_row_and_a_key(private_engines)
    connection = await asyncpg.connect(private_engines.database_url)
    os.kill(connection.get_server_pid(), signal.SIGKILL)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.execute("SELECT 1")
    connection.terminate()

    async def recovered() -> bool:
        try:
            await assert_both_are_there(private_engines)
        except (asyncpg.PostgresError, OSError):
            return False
        return True

    await eventually(recovered)


async def test_a_busy_backend_that_outlives_its_postmaster_is_ended(tmp_path: Path) -> None:
    """It holds the shared memory, and Postgres would refuse to start beside it."""
    async with Engines(tmp_path, durable=False) as engines:
        await write_a_row_and_a_key(engines)
        connection = await asyncpg.connect(engines.database_url)
        backend = connection.get_server_pid()
        # It never waits for anything, so it does not notice that its postmaster is gone.
        busy = asyncio.ensure_future(
            connection.execute("SELECT count(*) FROM generate_series(1, 100000000000)")
        )
        other = await asyncpg.connect(engines.database_url)
        active = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND state = 'active'"
        await eventually(lambda: other.fetchval(active, backend))
        postgres, _ = both(engines)
        os.kill(postgres.pid, signal.SIGKILL)
        await postgres.exited()
        other.terminate()
        assert backend in pids_in(tmp_path / "postgres")
    async with Engines(tmp_path, durable=False) as engines:
        assert backend not in pids_in(tmp_path / "postgres")
        await assert_both_are_there(engines)
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await busy
    connection.terminate()


async def test_servers_that_still_run_are_stopped_before_the_next_start(tmp_path: Path) -> None:
    """As after a kill of ours on a system that does not tell children of it."""
    async with Engines(tmp_path, durable=False) as orphaned:
        await write_a_row_and_a_key(orphaned)
        left = [server.pid for server in both(orphaned)]
        orphaned.folder.leave()
        async with Engines(tmp_path, durable=False) as engines:
            assert not set(left) & {server.pid for server in both(engines)}
            assert [server.is_running for server in both(orphaned)] == [False, False]
            await assert_both_are_there(engines)


STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""


async def test_a_leftover_that_cannot_be_ended_is_an_error_with_its_process_id(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        STUBBORN,
        folder_mark(tmp_path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    program = psutil.Process(process.pid).name()
    try:
        with pytest.raises(EmbeddedError, match=f"cannot be ended: end process {process.pid} by hand"):
            await end_leftovers(tmp_path, program, [Step(signal.SIGTERM, 0.1)])
    finally:
        process.kill()
        await process.wait()


HOLDER = """
import asyncio, sys
from pathlib import Path
from trunkline.embedded import Engines

async def main():
    async with Engines(Path(sys.argv[1]), durable=False) as engines:
        print(engines.database_url, engines.redis_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_killing_the_owner_ends_the_servers_and_the_next_start_works(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    database_url, redis_url = (await holder.stdout.readline()).decode().split()
    await write_a_row_and_a_key(Engines(tmp_path, database_url=database_url, redis_url=redis_url))
    holder.kill()
    await holder.wait()
    async with Engines(tmp_path, durable=False) as engines:
        await assert_both_are_there(engines)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_killing_the_owner_leaves_no_process_behind(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline()
    holder.kill()
    await holder.wait()
    await eventually(lambda: not processes_in(tmp_path / "postgres", "postgres"))
    await eventually(lambda: not processes_in(tmp_path / "valkey", "valkey-server"))


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """Of the servers' own account: Postgres takes a live process of its user for itself."""
    account = choose_account()
    command = ["cat"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, user=account.uid, group=account.gid, extra_groups=[])
        if account.is_another
        else subprocess.Popen(command, stdin=subprocess.PIPE)
    ) as process:
        yield process
        process.kill()


async def test_a_stale_pid_file_does_not_end_the_process_it_names(
    tmp_path: Path, bystander: "subprocess.Popen[bytes]"
) -> None:
    async with Engines(tmp_path, durable=False) as engines:
        await write_a_row_and_a_key(engines)
        postgres, _ = both(engines)
        pid_file = tmp_path / "postgres" / "postmaster.pid"
        stale = pid_file.read_text().replace(str(postgres.pid), str(bystander.pid), 1)
        os.kill(postgres.pid, signal.SIGKILL)
        await postgres.exited()
    pid_file.write_text(stale)
    async with Engines(tmp_path, durable=False) as engines:
        await assert_both_are_there(engines)
    assert bystander.poll() is None
