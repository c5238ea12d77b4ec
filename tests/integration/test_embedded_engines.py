"""Both engines start, keep what they were given, and stop."""

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import asyncpg
import psutil
import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError

from tests.support.waiting import eventually
from trunkline.embedded import EmbeddedError, Engines, server
from trunkline.embedded.leftovers import processes_in
from trunkline.embedded.ports import free_port


async def remember(engines: Engines, word: str) -> None:
    connection = await asyncpg.connect(engines.database_url)
    await connection.execute("CREATE TABLE IF NOT EXISTS words (word text)")
    await connection.execute("INSERT INTO words VALUES ($1)", word)
    await connection.close()
    async with Redis.from_url(engines.redis_url) as client:
        await client.rpush("words", word)


async def remembered(engines: Engines) -> tuple[list[str], list[str]]:
    connection = await asyncpg.connect(engines.database_url)
    rows = await connection.fetch("SELECT word FROM words")
    await connection.close()
    async with Redis.from_url(engines.redis_url, decode_responses=True) as client:
        return [row["word"] for row in rows], [str(word) for word in await client.lrange("words", 0, -1)]


async def test_a_restart_of_the_engines_keeps_data_and_addresses(tmp_path: Path) -> None:
    async with Engines(tmp_path) as engines:
        await remember(engines, "before")
        urls = engines.database_url, engines.redis_url
    assert not processes_in(tmp_path / "postgres", "postgres")
    assert not processes_in(tmp_path / "valkey", "valkey-server")
    async with Engines(tmp_path) as engines:
        await remember(engines, "after")
        assert await remembered(engines) == (["before", "after"], ["before", "after"])
        assert (engines.database_url, engines.redis_url) == urls


async def test_the_servers_have_the_documented_configuration(private_engines: Engines) -> None:
    connection = await asyncpg.connect(private_engines.database_url)
    shown = {
        name: await connection.fetchval(f"SHOW {name}")
        for name in ("server_encoding", "data_checksums", "timezone", "listen_addresses")
    }
    await connection.close()
    assert shown == {
        "server_encoding": "UTF8",
        "data_checksums": "on",
        "timezone": "UTC",
        "listen_addresses": "127.0.0.1",
    }
    async with Redis.from_url(private_engines.redis_url, decode_responses=True) as client:
        config = await client.config_get("appendonly", "maxmemory-policy", "save", "bind")
        assert config == {
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
            "save": "",
            "bind": "127.0.0.1",
        }


async def test_engines_json_holds_the_addresses_and_is_readable_by_its_owner_only(
    private_engines: Engines,
) -> None:
    path = private_engines.folder.path / "engines.json"
    found = json.loads(path.read_text())
    assert found["database_url"] == private_engines.database_url
    assert found["redis_url"] == private_engines.redis_url
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_servers_refuse_connections_without_the_password(private_engines: Engines) -> None:
    password = private_engines.folder.password()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(private_engines.database_url.replace(password, "guess"))
    async with Redis.from_url(private_engines.redis_url.replace(password, "guess")) as client:
        with pytest.raises(AuthenticationError):
            await client.ping()


async def test_the_password_is_not_among_any_servers_arguments(private_engines: Engines) -> None:
    password = private_engines.folder.password()
    assert private_engines.postgres is not None
    assert private_engines.valkey is not None
    for pid in (private_engines.postgres.pid, private_engines.valkey.pid):
        process = psutil.Process(pid)
        assert password not in " ".join(process.cmdline())


async def test_a_second_start_is_refused_and_harms_nothing(private_engines: Engines) -> None:
    with pytest.raises(EmbeddedError, match=f"is in use by process {os.getpid()}"):
        async with Engines(private_engines.folder.path):
            pytest.fail("two on one folder")
    await remember(private_engines, "still here")


async def test_a_folder_with_a_long_and_odd_path_works(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes, and shells and settings have their own ideas of quotes."""
    odd = tmp_path / ("deep-" * 20) / 'it\'s a "folder"' / "späce $HOME %d\\n"
    async with Engines(odd, durable=False) as engines:
        await remember(engines, "deep")
        assert await remembered(engines) == (["deep"], ["deep"])


async def test_engines_with_given_addresses_start_no_server(tmp_path: Path) -> None:
    folder = tmp_path / "unused"
    async with Engines(folder, database_url="postgresql://db", redis_url="redis://cache") as engines:
        assert (engines.database_url, engines.redis_url) == ("postgresql://db", "redis://cache")
    assert not folder.exists()


async def test_one_given_address_starts_only_the_other_engine(tmp_path: Path) -> None:
    async with Engines(tmp_path, database_url="postgresql://user:secret@db/x") as engines:
        assert engines.postgres is None
        async with Redis.from_url(engines.redis_url) as client:
            assert await client.ping()
    assert not (tmp_path / "postgres").exists()
    assert "secret" not in (tmp_path / "engines.json").read_text()


async def test_a_port_taken_during_the_start_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answers = [taken.getsockname()[1]] * 2
        monkeypatch.setattr(server, "free_port", lambda _: answers.pop() if answers else free_port())
        async with Engines(tmp_path, durable=False) as engines:
            await remember(engines, "elsewhere")
    assert not answers, "both servers were sent to the taken port first"


async def test_an_abandoned_initdb_is_swept_away(tmp_path: Path) -> None:
    abandoned = tmp_path / "postgres.new.abandoned"
    abandoned.mkdir()
    (abandoned / "PG_VERSION").write_text("18\n")
    async with Engines(tmp_path, durable=False) as engines:
        await remember(engines, "fresh")
    assert not abandoned.exists()


async def test_a_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    start = asyncio.create_task(Engines(tmp_path, durable=False).__aenter__())
    await eventually(lambda: any(name.startswith("postgres.new.") for name in os.listdir(tmp_path)))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not any(name.startswith("postgres") for name in os.listdir(tmp_path))
    assert not processes_in(tmp_path / "valkey", "valkey-server")
    async with Engines(tmp_path, durable=False) as engines:
        await remember(engines, "second try")


async def test_open_clients_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    async with Engines(tmp_path, durable=False) as engines:
        connection = await asyncpg.connect(engines.database_url)
        await connection.execute("BEGIN")
        client = Redis.from_url(engines.redis_url)
        waiting = asyncio.ensure_future(client.blpop(["never"], timeout=0))
        await client.ping()
    waiting.cancel()
    await client.aclose()
    connection.terminate()
    assert not processes_in(tmp_path / "postgres", "postgres")


HOLDER = """
import asyncio, signal, sys
from pathlib import Path
import asyncpg
from trunkline.embedded import Engines

async def main():
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asked.set)
    async with Engines(Path(sys.argv[1]), durable=False) as engines:
        print("up", flush=True)
        await asked.wait()
        connection = await asyncpg.connect(engines.database_url)
        print("drained", await connection.fetchval("SELECT 1"), flush=True)
        await connection.close()

asyncio.run(main())
"""


async def test_ctrl_c_stops_the_engines_only_after_their_owner_has_drained(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"up\n"
    os.killpg(holder.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
    assert await holder.stdout.readline() == b"drained 1\n"
    assert await holder.wait() == 0
    assert not processes_in(tmp_path / "postgres", "postgres")
    assert not processes_in(tmp_path / "valkey", "valkey-server")
