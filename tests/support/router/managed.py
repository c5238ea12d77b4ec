"""A pool manager at work on the keys and the database of one test, its clock turned by hand."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import SAMPLE, StoredWorld
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.router.config import RouterConfig
from trunkline.router.pool_manager import PoolManager
from trunkline.router.sources import HeartbeatSource
from trunkline.settings.tiers import parse_tiers
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database
from trunkline.testing.clock import ManualClock


class Leading:
    def __init__(self) -> None:
        self.term: int | None = 1


@dataclass
class Told:
    """The alarms that the manager raised."""

    vanished_counts: list[int] = field(default_factory=list)
    hanging: dict[str, list[str]] = field(default_factory=dict)

    async def alarm(self, name: str, subject: str, detail: Mapping[str, Any]) -> None:
        if name == "pods_vanished":
            self.vanished_counts.append(detail["vanished"])
        else:
            assert name == "pod_hangs"
            self.hanging[subject] = list(detail["calls"])


@dataclass
class Managed:
    world: StoredWorld
    manager: PoolManager
    leading: Leading
    clock: ManualClock
    database: Database
    config: RouterConfig
    # What carriers say: whether a call is over.
    over: dict[str, bool]
    told: Told

    async def allocate(self, call: str, merchant: str = "") -> str:
        return await self.world.allocate(call, merchant)

    async def pods(self, count: int) -> list[str]:
        return await self.world.pods(count)

    async def pass_by(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.manager.run_once()

    async def open_calls(self) -> list[str]:
        return sorted(await self.world.live())

    async def execute(self, sql: str, *args: object) -> None:
        async with self.database.connection() as conn:
            await conn.execute(sql, *args)

    async def take_time(self) -> None:
        """Pods that are about to change have been so for 2 s."""
        await self.execute("UPDATE pods SET changing_since = changing_since - interval '3 seconds'")


@asynccontextmanager
async def open_managed(
    database_url: str, redis_url: str, key_prefix: str, tier_config: str = SAMPLE
) -> AsyncIterator[Managed]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    database = await connect_database(database_url, pool_size=4)
    keys = RouterKeys(key_prefix)
    # The engine of a test session is young.
    config = RouterConfig(tiers=parse_tiers(tier_config), postgres_young_s=0)
    clock, leading, told = ManualClock(), Leading(), Told()
    over: dict[str, bool] = {}

    async def is_over(call: str) -> bool | None:
        return over.get(call)

    world = StoredWorld(bus, keys, database, config)
    source = HeartbeatSource(world.router_bus, config)
    manager = PoolManager(
        world.router_bus, config, source, leading, clock, database, is_over=is_over, alarm=told.alarm
    )
    await manager.run_once()
    yield Managed(world, manager, leading, clock, database, config, over, told)
    await bus.close()
    await database.close()
