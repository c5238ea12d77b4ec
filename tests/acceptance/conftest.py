from collections.abc import AsyncIterator

import pytest

from tests.support.patience import impatient, patience
from tests.support.world import World, open_world

__all__ = ["impatient", "patience", "world"]


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with open_world(database_url, redis_url, key_prefix) as world:
        yield world
