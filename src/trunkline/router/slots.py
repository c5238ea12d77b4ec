"""Slots of dials: proposes reservations, frees them, and ends those without a live attempt.

Valkey proposes, or Postgres where Valkey is away or behind. A proposal is no reservation: the intent inserts it under a
unique index and does not dial a call whose insert failed; the pool manager withdraws a proposal without a row after
5 s. After a conflict Postgres picks for `POSTGRES_ONLY_S`: a projection that is behind proposes its stale slots first.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.router import RouterBus
from trunkline.control.raising import raise_alarm
from trunkline.errors import BusUnavailable
from trunkline.loops.base import Loop
from trunkline.model import FreeSlots, Grant, Slot
from trunkline.router.config import SILENCE_S, RouterConfig
from trunkline.settings.tiers import COMMON, chain
from trunkline.store import allocations
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# A batch of grants waits no longer for Valkey than this; then Postgres picks.
PROPOSE_S = 0.15
# How long Postgres picks after a conflict. By then Valkey has the true owners of the slots.
POSTGRES_ONLY_S = 2.0
# How long a count of free slots is cached. A count of zero is cached for less: leads may be waiting for a slot.
FREE_FRESH_S = 0.5
NONE_FREE_FRESH_S = 0.1
CHECK_INTERVAL_S = 5.0
# While Valkey does not answer, the match does not hold leads back for want of agents: the intent decides.
_VALKEY_ERRORS: tuple[type[BaseException], ...] = (BusUnavailable, TimeoutError)


class SlotProposer:
    def __init__(self, bus: RouterBus, database: Database, config: RouterConfig):
        self._bus = bus
        self._database = database
        self._config = config
        self._free: FreeSlots | None = None
        self._free_until_s = float("-inf")
        self._postgres_only_until_s = float("-inf")

    async def free_slots(self) -> FreeSlots | None:
        """The slots that Valkey counts as free for dials. None: it does not answer, so the match holds no lead back."""
        now_s = time.monotonic()
        if now_s >= self._free_until_s:
            free = None
            with suppress(*_VALKEY_ERRORS):
                async with asyncio.timeout(PROPOSE_S):
                    free = await bus_router.free_slots(self._bus)
            self._cache_free(free)
        return self._free

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        wants, proposed = [(grant.attempt_id, grant.merchant_id) for grant in grants], None
        if time.monotonic() >= self._postgres_only_until_s:
            with suppress(*_VALKEY_ERRORS):
                async with asyncio.timeout(PROPOSE_S):
                    proposed = await bus_router.propose_slots(self._bus, wants)
        if proposed is None:
            # Valkey is away or behind, or its projection was lost and is not rebuilt yet.
            return await self._from_postgres(grants)
        self._cache_free(proposed.free)
        return proposed.slots

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        """Free proposed slots in Valkey. A lost request costs 5 s: then the pool manager withdraws them."""
        self._free_until_s = float("-inf")
        try:
            async with asyncio.timeout(PROPOSE_S):
                await bus_router.free(self._bus, [*attempt_ids], tombstone_s=0)
        except _VALKEY_ERRORS as error:
            log.warning("agents.slots_not_returned", slots=len(attempt_ids), reason=str(error))

    async def conflicted(self, slots: Collection[Slot]) -> None:
        self._postgres_only_until_s = time.monotonic() + POSTGRES_ONLY_S
        log.warning("agents.slots_taken", slots=len(slots))
        try:
            async with self._database.connection() as conn:
                owners = await allocations.owners(conn, list(slots))
            async with asyncio.timeout(PROPOSE_S):
                for (pod, no), owner in owners.items():
                    await bus_router.occupy(self._bus, pod, no, owner)
        except (*_VALKEY_ERRORS, *UNAVAILABLE) as error:
            log.warning("agents.owners_not_written", reason=str(error))

    async def _from_postgres(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        async with self._database.connection() as conn:
            configs = await allocations.merchant_tiers(conn, sorted({g.merchant_id for g in grants}))
            chains = {g.merchant_id: chain(g.merchant_id, configs.get(g.merchant_id, "")) for g in grants}
            wanted = dict.fromkeys(tier for tiers in chains.values() for tier in tiers)
            callers = {tier: self._config.callers_of(tier) for tier in wanted}
            free = await allocations.free_slots(conn, callers, len(grants), SILENCE_S)
        return allocations.assign([(grant.attempt_id, chains[grant.merchant_id]) for grant in grants], free)

    def _cache_free(self, free: Mapping[str, int] | None) -> None:
        if free is None:
            self._free = None
            self._free_until_s = time.monotonic() + NONE_FREE_FRESH_S
            return
        common = sum(count for tier, count in free.items() if tier in COMMON)
        self._free = FreeSlots(common, {tier: n for tier, n in free.items() if tier not in COMMON})
        fresh_s = NONE_FREE_FRESH_S if self._free.is_none else FREE_FRESH_S
        self._free_until_s = time.monotonic() + fresh_s


class SlotReleaser:
    """Frees slots in Valkey. A lost release costs only time: Postgres has ended the rows, and the pool manager corrects
    Valkey by them."""

    def __init__(self, bus: RouterBus, *, tombstone_s: int):
        self._bus = bus
        self.tombstone_s = tombstone_s

    async def release(self, attempt_ids: Sequence[UUID]) -> None:
        """Free the slots of attempts that have ended, as their rows in Postgres have."""
        if not attempt_ids:
            return
        try:
            await bus_router.free(self._bus, attempt_ids, tombstone_s=self.tombstone_s)
        except BusUnavailable as error:
            log.warning("router.release_lost", calls=len(attempt_ids), reason=str(error))


class SlotCheck(Loop):
    """Ends slots without a live attempt, deletes old tombstones, and finds calls that did not reach their agents.

    A dial in doubt holds its slot until its call can ring no more. Everything else that ends an attempt ends its slot
    in the same statement, so a slot without a live attempt is a fault, and this loop raises an alarm for it."""

    name = "slot_check"

    def __init__(self, database: Database, releaser: SlotReleaser, *, doubt_s: float):
        super().__init__(CHECK_INTERVAL_S)
        self._database = database
        self._releaser = releaser
        self._doubt_s = doubt_s

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            doubts = await allocations.end_doubts(conn, self._doubt_s)
            strays = await allocations.end_strays(conn)
            await allocations.tell_untaken(conn)
            await allocations.forget(conn, self._releaser.tombstone_s)
            broken = await allocations.pods_without_streams(conn)
        if strays:
            log.error("agents.stray_slots", slots=len(strays))
            pods = sorted({ended.pod for ended in strays if ended.pod})
            await raise_alarm(self._database, "stray_slots", "", {"slots": len(strays), "pods": pods[:20]})
        for pod in broken:
            await raise_alarm(self._database, "pod_takes_no_stream", pod)
        await self._releaser.release([ended.id for ended in (*doubts, *strays) if ended.id])
        return len(doubts) + len(strays)
