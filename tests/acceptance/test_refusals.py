"""A wrong password on the wire: two dispatchers, a backlog, few requests, and no lead lost. The benchmark, shorter."""

from pathlib import Path

import pytest

from bench.refusals.__main__ import Extent, run, well_before
from bench.refusals.world import HEALTHY, open_world


@pytest.mark.timeout(400)
async def test_refused_credentials_cost_few_requests_and_no_lead(tmp_path: Path) -> None:
    async with open_world(tmp_path, [HEALTHY, "credentials"]) as world:
        await world.add(HEALTHY)
        extent = Extent(leads=60, fault_s=30)
        number = await well_before(world, "credentials", extent)
        verdict = await run(world, "credentials", number, extent, timed=False)
    assert verdict.missed == []
    assert verdict.leads == 60
