"""A damaged data folder is one clear line, and is left as it was found."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis

from trunkline.embedded import EmbeddedError, Engines
from trunkline.embedded.leftovers import processes_in
from trunkline.testing.servers import Background


async def fill(folder: Path) -> None:
    async with Engines(folder, durable=False) as engines:
        connection = await asyncpg.connect(engines.database_url)
        await connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
        await connection.close()
        async with Redis.from_url(engines.redis_url) as client:
            await client.mset({f"key-{number}": "x" * 50 for number in range(50)})


@pytest.fixture(scope="module")
def backup(_background: Background, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole data folder, stopped, with a row and fifty keys in it."""
    folder = tmp_path_factory.mktemp("backup") / "data"
    _background.run(fill(folder))
    return folder


def copy(source: Path, target: Path) -> None:
    """With its owner, which Python's copies forget."""
    subprocess.run(["cp", "-a", source, target], check=True)


@pytest.fixture
def stopped(backup: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy that may be damaged."""
    folder = tmp_path / "data"
    copy(backup, folder)
    yield folder
    shutil.rmtree(folder)


def without_version(folder: Path) -> Path:
    path = folder / "postgres" / "PG_VERSION"
    path.unlink()
    return path


def other_version(folder: Path) -> Path:
    path = folder / "postgres" / "PG_VERSION"
    path.write_text("9\n")
    return path


def truncated_control_file(folder: Path) -> Path:
    path = folder / "postgres" / "global" / "pg_control"
    os.truncate(path, 100)
    return path


def scrambled_control_file(folder: Path) -> Path:
    path = folder / "postgres" / "global" / "pg_control"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])
    return path


def scrambled_append_only_file(folder: Path) -> Path:
    path = next((folder / "valkey" / "appendonlydir").glob("*.incr.aof"))
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"\xff" * 40 + content[middle + 40 :])
    return path


def missing_append_only_base(folder: Path) -> Path:
    path = next((folder / "valkey" / "appendonlydir").glob("*.base.rdb"))
    path.unlink()
    return path


def another_password(folder: Path) -> Path:
    path = folder / "password"
    path.write_text("not-the-one\n")
    return path


DAMAGES: list[tuple[Callable[[Path], Path], str]] = [
    (without_version, "postgres has no PG_VERSION"),
    (other_version, "was made by Postgres 9, and this is Postgres 18"),
    (truncated_control_file, 'Postgres cannot start on .*: could not read file "global/pg_control"'),
    (scrambled_control_file, "Postgres cannot start on .*"),
    (scrambled_append_only_file, "Valkey cannot start on .*: Bad file format reading the append only file"),
    (missing_append_only_base, "Valkey cannot start on .*"),
    (another_password, "refuses the password in .*password"),
]


def fingerprints(folder: Path) -> dict[str, str]:
    """Of all that could be lost; not of a server's own notes on its run."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in {"postmaster.opts", "postmaster.pid"}
    }


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
async def test_damage_is_named_and_can_be_repaired(
    stopped: Path, backup: Path, damage: Callable[[Path], Path], message: str
) -> None:
    damaged = damage(stopped).relative_to(stopped)
    engine = stopped / damaged.parts[0]  # the other one starts, and writes what it always writes
    before = fingerprints(engine)

    with pytest.raises(EmbeddedError, match=message) as caught:
        async with Engines(stopped, durable=False):
            pytest.fail("it started")
    assert "\n" not in str(caught.value)
    assert fingerprints(engine) == before
    assert not processes_in(stopped / "postgres", "postgres")
    assert not processes_in(stopped / "valkey", "valkey-server")

    copy(backup / damaged, stopped / damaged)
    async with Engines(stopped, durable=False) as engines:
        connection = await asyncpg.connect(engines.database_url)
        assert await connection.fetchval("SELECT id FROM kept") == 1
        await connection.close()
        async with Redis.from_url(engines.redis_url) as client:
            assert await client.dbsize() == 50


async def test_an_append_only_file_whose_end_was_cut_off_loses_only_the_end(stopped: Path) -> None:
    """As after a power cut in the middle of a write: that is no damage."""
    path = next((stopped / "valkey" / "appendonlydir").glob("*.incr.aof"))
    with path.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$5\r\nhal")
    async with Engines(stopped, durable=False) as engines, Redis.from_url(engines.redis_url) as client:
        assert await client.dbsize() == 50
