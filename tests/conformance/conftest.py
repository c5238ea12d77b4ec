from collections.abc import AsyncIterator

import pytest

from trunkline.telephony.carriers import CARRIERS
from trunkline.testing.carriers import TRAITS, Line, open_line

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
