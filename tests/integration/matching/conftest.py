"""Every dispatch script, on one server and on a real cluster: a foreign key works silently on one node only."""

from collections.abc import AsyncIterator

import pytest

from trunkline.bus import connection, epoch
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys


@pytest.fixture(params=["server", "cluster"])
async def bus(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Bus]:
    if request.param == "server":
        bus = connection.connect(request.getfixturevalue("redis_url"), Keys(prefix=key_prefix))
    else:
        url = request.getfixturevalue("valkey_cluster")[0]
        bus = connection.connect(url, Keys(prefix=key_prefix), cluster=True)
    assert await epoch.begin(bus, 1) is not None
    assert await epoch.publish(bus, 1)
    yield bus
    await bus.close()
