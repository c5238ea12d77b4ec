"""Proposes the slots that dials are kept on: from Valkey, or where it is away or behind, from Postgres.

A proposal is no promise. The intent inserts it under a unique index, and a call whose slot did not go in is not
dialled; Valkey takes back what has no row after 5 s. After a conflict Postgres picks for a moment: a projection that is
behind offers its oldest mistakes first.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Runner, Stale
from trunkline.errors import BusUnavailable
from trunkline.model import AgentRoom, Grant, Slot
from trunkline.router.config import RouterConfig
from trunkline.settings.tiers import COMMON, chain
from trunkline.store import allocations
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# A batch of grants does not wait longer for Valkey than this: Postgres picks as well.
PROPOSE_S = 0.15
# After a conflict Postgres picks for so long. Whoever proposed wrongly has been told by then.
DOUBT_S = 2.0
# What was free a moment ago is believed for so long, and none for less: somebody may be waiting for it.
ROOM_FRESH_S = 0.5
NO_ROOM_FRESH_S = 0.1
# Valkey cannot be asked now. Then the match is not held back for want of agents: the intent decides.
_SILENT: tuple[type[BaseException], ...] = (BusUnavailable, TimeoutError)


class SlotProposer:
    def __init__(self, bus: Runner, keys: RouterKeys, database: Database, config: RouterConfig):
        self._bus = bus
        self._keys = keys
        self._database = database
        self._config = config
        self._room: AgentRoom | None = None
        self._room_until_s = float("-inf")
        self._doubts_until_s = float("-inf")

    async def room(self) -> AgentRoom | None:
        """What dials could be kept on, as Valkey says. None: it cannot say, so nobody is held back for it."""
        now_s = time.monotonic()
        if now_s >= self._room_until_s:
            try:
                async with asyncio.timeout(PROPOSE_S):
                    free = await bus_router.free_slots(self._bus, self._keys)
            except _SILENT:
                free = Stale()
            self._remember(None if isinstance(free, Stale) else free)
        return self._room

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        found = await self._from_valkey(grants) if time.monotonic() >= self._doubts_until_s else None
        return await self._from_postgres(grants) if found is None else found

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        """If it cannot be told, it takes them back itself after 5 s."""
        self._room_until_s = float("-inf")
        try:
            async with asyncio.timeout(PROPOSE_S):
                await bus_router.free(
                    self._bus, self._keys, [str(each) for each in attempt_ids], tombstone_s=0
                )
        except _SILENT as error:
            log.warning("agents.slots_not_returned", slots=len(attempt_ids), reason=str(error))

    async def conflicted(self, slots: Collection[Slot]) -> None:
        self._doubts_until_s = time.monotonic() + DOUBT_S
        log.warning("agents.slots_taken", slots=len(slots))
        try:
            async with self._database.connection() as conn:
                owners = await allocations.owners(conn, list(slots))
            async with asyncio.timeout(PROPOSE_S):
                for (pod, no), owner in owners.items():
                    await bus_router.occupy(self._bus, self._keys, pod, no, str(owner))
        except (*_SILENT, *UNAVAILABLE) as error:
            log.warning("agents.owners_untold", reason=str(error))

    async def _from_valkey(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot] | None:
        """None: it is away, or was lost and is not rebuilt."""
        wants = [(str(grant.attempt_id), grant.merchant_id) for grant in grants]
        try:
            async with asyncio.timeout(PROPOSE_S):
                kept = await bus_router.keep(self._bus, self._keys, wants)
        except _SILENT:
            return None
        if isinstance(kept, Stale):
            return None
        self._remember(kept.free)
        return {
            grant.attempt_id: Slot(p.pod, p.slot, p.incarnation, p.source_pool)
            for grant, p in zip(grants, kept.proposals, strict=True)
            if p is not None
        }

    async def _from_postgres(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        async with self._database.connection() as conn:
            configs = await allocations.merchant_tiers(conn, sorted({g.merchant_id for g in grants}))
            chains = {g.merchant_id: chain(g.merchant_id, configs.get(g.merchant_id, "")) for g in grants}
            wanted = dict.fromkeys(tier for tiers in chains.values() for tier in tiers)
            callers = {tier: self._config.callers_of(tier) for tier in wanted}
            free = await allocations.free_slots(
                conn, callers, len(grants), self._config.wait_rule.silence_ms / 1000
            )
        return allocations.assign([(grant.attempt_id, chains[grant.merchant_id]) for grant in grants], free)

    def _remember(self, free: Mapping[str, int] | None) -> None:
        if free is None:
            self._room = None
            self._room_until_s = time.monotonic() + NO_ROOM_FRESH_S
            return
        common = sum(count for tier, count in free.items() if tier in COMMON)
        self._room = AgentRoom(common, {tier: n for tier, n in free.items() if tier not in COMMON})
        fresh_s = NO_ROOM_FRESH_S if self._room.is_none else ROOM_FRESH_S
        self._room_until_s = time.monotonic() + fresh_s


class SlotReleaser:
    """Tells Valkey that slots are free. A release that is lost costs nothing but time: Postgres has ended the rows, and
    the pool manager compares."""

    def __init__(self, bus: Runner, keys: RouterKeys, *, tombstone_s: int):
        self._bus = bus
        self._keys = keys
        self.tombstone_s = tombstone_s

    async def release(self, attempt_ids: Sequence[UUID]) -> None:
        """These attempts are over, and their rows with them."""
        if not attempt_ids:
            return
        try:
            await bus_router.free(
                self._bus, self._keys, [str(each) for each in attempt_ids], tombstone_s=self.tombstone_s
            )
        except BusUnavailable as error:
            log.warning("router.release_lost", calls=len(attempt_ids), reason=str(error))
