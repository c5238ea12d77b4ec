"""Fixtures on real servers: one Postgres and one Valkey per session, a fresh database and prefix per test.

With xdist each worker has servers of its own: they start in under a second, and share nothing. To use the fixtures:
`pytest_plugins = ["trunkline.testing.pytest_plugin"]` in the topmost conftest.py.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Only for types: this file is read before anything else of a session.
    from trunkline.embedded import Engines
    from trunkline.testing.carrier import FakeCarrier
    from trunkline.testing.clock import ManualClock
    from trunkline.testing.servers import Background, Databases

_numbers = itertools.count(1)
MEMORY = Path("/dev/shm")  # noqa: S108 (the folder is made there by mkdtemp)
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
    """Each test has a database of its own, a thousand files: creating them takes 0.2 s on a disk, 0.02 s in memory."""
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
    """A migrated database for this test alone."""
    with _databases.fresh(migrated=True) as url:
        yield url


@pytest.fixture
def empty_database_url(_databases: "Databases") -> Iterator[str]:
    """An empty database for this test alone."""
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


@pytest.fixture
def fake_carrier(_background: "Background") -> "Iterator[FakeCarrier]":
    """A fake carrier, on the thread of the servers, so that a test without an event loop can use it too."""
    from trunkline.testing.carrier import FakeCarrier

    with _background.opened(FakeCarrier()) as carrier:
        yield carrier


@pytest.fixture
def manual_clock() -> "ManualClock":
    """A clock that moves only by its methods."""
    from trunkline.testing.clock import ManualClock

    return ManualClock()
