"""Fixtures on real servers: one Postgres and one Valkey per session, a fresh database and prefix per test.

With xdist each worker has servers of its own: they start in under a second, and share nothing.
"""

import gc
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

if TYPE_CHECKING:
    # Only for types: this file is read before anything else of a session.
    from trunkline.embedded import Engines
    from trunkline.testing.servers import Background, Databases

_numbers = itertools.count(1)
MEMORY = Path("/dev/shm")
# Two workers with a Postgres each, at a few hundred megabytes.
MEMORY_FREE_MIN_BYTES = 4_000_000_000


@pytest.fixture(scope="session")
def _background() -> "Iterator[Background]":
    from trunkline.testing.servers import Background

    background = Background()
    yield background
    background.close()


@pytest.fixture(scope="session")
def _engines(_background: "Background", tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Engines]":
    from trunkline.embedded import Engines

    folder = _quick_folder() or tmp_path_factory.mktemp("engines")
    with _background.opened(Engines(folder, durable=False)) as engines:
        yield engines
    shutil.rmtree(folder)


def _quick_folder() -> Path | None:
    """Each test has a database of its own, a thousand files: to make them takes 0.2 s on a disk, 0.02 s in memory."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_FREE_MIN_BYTES:
        return None
    return Path(tempfile.mkdtemp(prefix="trunkline-tests-", dir=MEMORY))


@pytest.fixture(scope="session")
def _databases(_background: "Background", _engines: "Engines") -> "Iterator[Databases]":
    from trunkline.testing.servers import Databases

    databases = Databases(_background, _engines)
    yield databases
    databases.close()


@pytest.fixture
def database_url(_databases: "Databases") -> Iterator[str]:
    """A database of this test alone, migrated."""
    with _databases.fresh(migrated=True) as url:
        yield url


@pytest.fixture
def empty_database_url(_databases: "Databases") -> Iterator[str]:
    """A database of this test alone, with nothing in it."""
    with _databases.fresh(migrated=False) as url:
        yield url


@pytest.fixture
def redis_url(_engines: "Engines") -> str:
    """The session's Valkey. Other tests have used it: put `key_prefix` before every key."""
    return _engines.redis_url


@pytest.fixture
def key_prefix() -> str:
    """A prefix that no other test of the session has."""
    return f"test{next(_numbers)}"


@pytest.fixture(scope="session")
def valkey_cluster(
    _background: "Background", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """The URLs of a real cluster's three nodes. It takes two seconds to form, once, if a test asks for it."""
    from trunkline.embedded import Cluster

    with _background.opened(Cluster(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster.urls


@pytest.fixture
async def private_engines(tmp_path: Path) -> "AsyncIterator[Engines]":
    """Both servers for this test alone, which may stop and kill them."""
    from trunkline.embedded import Engines

    folder = tmp_path / "private-engines"
    async with Engines(folder, durable=False) as engines:
        yield engines
    shutil.rmtree(folder / "postgres")


_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Workers of one session have to agree on the names of tests, so a random id is not part of one."""
    if isinstance(val, str | UUID) and _UUID.search(str(val)):
        return _UUID.sub("uuid", str(val))
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Finalise what is left before plugins import at the end of the session.

    CPython 3.11 before .8 breaks when a finaliser formats a traceback in the midst of `ast.parse` (gh-106905), which
    pytest's import hook calls: the session would end in a SystemError with every test passed.
    """
    gc.collect()
    gc.disable()
