"""A pool manager at work on the keys and the database of one test, its clock turned by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router_keys import RouterKeys
from trunkline.clock import ManualClock
from trunkline.router.allocator import Allocated, Allocator
from trunkline.router.config import RouterConfig
from trunkline.router.journal_writer import JournalWriter
from trunkline.router.manager import PoolManager
from trunkline.router.memory import Memory
from trunkline.router.notes import AllocationNotes
from trunkline.router.sources import HeartbeatSource
from trunkline.router.streams import StreamKeys
from trunkline.settings.tiers import parse_tiers
from trunkline.store import router as store
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database
from trunkline.testing.router_world import RouterWorld


class Leading:
    def __init__(self) -> None:
        self.term: int | None = 1


@dataclass
class Managed:
    world: RouterWorld
    manager: PoolManager
    leading: Leading
    clock: ManualClock
    journal: JournalWriter
    allocator: Allocator
    database: Database
    over: dict[str, bool]

    async def allocate(self, call: str, merchant: str = "") -> str:
        """By the allocator, so that the journal hears of it."""
        answer = await self.allocator.allocate(call, merchant)
        await self.journal.write()
        return answer.pod if isinstance(answer, Allocated) else "none"

    async def pods(self, count: int) -> list[str]:
        names = await self.world.pods(count)
        for name in names:
            self.journal.tier(name, await self.world.tier_of(name) or "")
        await self.journal.write()
        return names

    async def pass_by(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.manager.run_once()
        await self.journal.write()

    async def open_calls(self) -> list[str]:
        async with self.database.connection() as conn:
            return sorted(row.call_sid for row in await store.open_allocations(conn, 86_400))


@asynccontextmanager
async def open_managed(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    database = await connect_database(database_url, pool_size=4)
    keys, config = RouterKeys(key_prefix), RouterConfig(tiers=parse_tiers("{}"))
    clock, leading, journal = ManualClock(), Leading(), JournalWriter(database)
    over: dict[str, bool] = {}

    async def is_over(call: str) -> bool | None:
        return over.get(call)

    async def alarm(_vanished: int, _total: int) -> None: ...

    manager = PoolManager(
        bus, keys, config, HeartbeatSource(bus, keys, config), leading, clock, journal, Memory(database),
        is_over=is_over, alarm=alarm,
    )  # fmt: skip
    secrets = StreamKeys.from_secrets(["a secret"])
    allocator = Allocator(bus, keys, secrets, config, database, AllocationNotes(database))
    await manager.run_once()
    yield Managed(RouterWorld(bus, keys), manager, leading, clock, journal, allocator, database, over)
    await bus.close()
    await database.close()
