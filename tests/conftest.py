"""Tests use the servers of their fixtures, never those of whoever runs them.

Property tests try the same examples each time and have no time limit, so that a run says the same on every machine.
To look for new ones: `make test ARGS="--hypothesis-profile=explore -k name"`.
"""

import gc
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from trunkline.embedded import Engines
    from trunkline.testing.servers import Background

ROOT = Path(__file__).parents[1]

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("same")


def pytest_configure() -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    # Programs of tests.support run as processes of their own, wherever a test lets them run.
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


@pytest.fixture(scope="session")
def valkey_cluster(
    _background: "Background", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """The URLs of a real cluster's three nodes. It takes two seconds to form, once, if a test asks for it."""
    from tests.support.embedded.cluster import Cluster

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
