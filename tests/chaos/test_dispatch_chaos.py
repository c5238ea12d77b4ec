"""Several processes dial under load while faults strike. Afterwards the carrier's ledger, the pods' records and SQL say
whether I1 to I7 held.

Each run has two parts: faults on, in which nothing may go wrong, and healed, in which everything must come to its end.
More seeds, or the one that failed: `TRUNKLINE_CHAOS_SEEDS=7,8,9 pytest tests/chaos/test_dispatch_chaos.py`; longer:
`TRUNKLINE_CHAOS_S=60`.
"""

import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.faults.nemesis import FAULTS, MISBEHAVING, Scene, heal, some_calls, torment
from tests.support.fork_server import ForkServer
from tests.support.hurry import hurrying
from tests.support.installation import Installation, open_installation
from tests.support.promises import keeps_its_promises
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate

SEEDS = [int(seed) for seed in os.environ.get("TRUNKLINE_CHAOS_SEEDS", "1,2").split(",")]
TORMENT_S = float(os.environ.get("TRUNKLINE_CHAOS_S", "10"))

FAMILIES = {
    "any process is killed": ("dialer-1 killed", "control killed", "folder killed", "face killed"),
    "any process is stopped and continued": ("dialer-1 frozen", "folder frozen", "control frozen"),
    "valkey loses its memory": ("flushed", "valkey lost", "valkey restarted", "scripts forgotten"),
    "valkey is away": ("valkey silent", "valkey cut off", "valkey swallowed", "scripts unanswered"),
    "postgres is restarted": ("postgres restarted", "postgres restarted at once", "postgres killed"),
    "postgres is cut off": ("postgres cut off", "postgres swallowed", "commits unanswered"),
    "everything is deployed anew": ("redeployed",),
}


@pytest.fixture
async def scene(
    fork_server: ForkServer, private_engines: Engines, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    seed, faults = getattr(request, "param", (1, None))
    await migrate(private_engines.database_url)
    async with open_installation(
        fork_server,
        private_engines.database_url,
        private_engines.redis_url,
        tmp_path,
        seed=seed,
        faults=faults,
    ) as place:
        yield Scene(place, private_engines, random.Random(seed))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=[name.replace(" ", "_") for name in FAMILIES])
async def test_the_promises_hold_while(scene: Scene, family: Sequence[str]) -> None:
    async with scene.place.load() as ids, hurrying(scene.place):
        for fault in family:
            await some_calls(scene.place)
            await FAULTS[fault](scene)
        await some_calls(scene.place)
    await heal(scene)
    await keeps_its_promises(scene.place, ids)


@pytest.mark.parametrize("scene", [(1, MISBEHAVING)], ids=["misbehaving"], indirect=True)
async def test_the_promises_hold_while_the_carrier_misbehaves(scene: Scene) -> None:
    """Slow, 500 after dialling, replies and webhooks lost, doubled, late, reordered; the list lags behind."""
    ids = await scene.place.add_leads(100)
    await keeps_its_promises(scene.place, ids)


@pytest.mark.parametrize("scene", [(seed, MISBEHAVING) for seed in SEEDS], ids=map(str, SEEDS), indirect=True)
async def test_the_promises_hold_through_a_random_mix(scene: Scene, request: pytest.FixtureRequest) -> None:
    inflicted: list[str] = []
    try:
        async with scene.place.load() as ids, hurrying(scene.place):
            ids.append(await scene.place.take_in("before"))
            await torment(scene, TORMENT_S, inflicted)
            ids.append(await scene.place.take_in("after"))
        await keeps_its_promises(scene.place, ids)
    except BaseException:
        print(f"seed {request.node.callspec.id}: {', '.join(inflicted)}")  # noqa: T201
        raise


async def test_once_healthy_again_a_new_lead_is_called_at_once(scene: Scene) -> None:
    """I5, without a clock: nothing that a fault left behind stands before a lead that comes afterwards."""
    place: Installation = scene.place
    async with place.load() as ids, hurrying(place):
        for fault in ("flushed", "dialer-2 killed", "valkey silent"):
            await some_calls(place)
            await FAULTS[fault](scene)
    await keeps_its_promises(place, ids)
    late = [await place.take_in(f"late-{n}") for n in range(3)]
    await keeps_its_promises(place, [*ids, *late], timeout_s=20)
