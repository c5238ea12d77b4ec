from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.fork_server import ForkServer
from tests.support.patience import impatient, patience
from tests.support.router.kube import Cluster, KubeServer
from tests.support.telephony.carriers import TRAITS, Line, open_line
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database
from trunkline.telephony.carrier_registry import CARRIERS
from trunkline.testing.servers import Background

__all__ = ["impatient", "patience"]

assert set(TRAITS) == set(CARRIERS), "a carrier that is not in the suite"


@pytest.fixture(params=sorted(TRAITS))
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with open_line(request.param) as line:
        yield line


@pytest.fixture(params=sorted(name for name in TRAITS if name != "vapi"))
async def streaming(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    """A carrier that asks for a document and connects calls to pods. Vapi runs the agent itself."""
    async with open_line(request.param) as line:
        assert line.carrier.streams
        yield line


@pytest.fixture(scope="session")
def kube_server(_background: Background, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    """A real API server, once for all that ask for it."""
    with _background.opened(KubeServer(tmp_path_factory.mktemp("kube"))) as server:
        yield server


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await connect_database(database_url, pool_size=2)
    yield database
    await database.close()


@pytest.fixture
async def cluster(kube_server: KubeServer, key_prefix: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(kube_server, key_prefix)
    await cluster.open()
    yield cluster
    await cluster.close()
