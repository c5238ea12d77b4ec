"""What the manager reads back from Postgres when Valkey has forgotten."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trunkline.bus.router import Runner
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_manager import OpenCall
from trunkline.router.ledger import Ledger
from trunkline.settings.tiers import STANDARD
from trunkline.store import router as store
from trunkline.store.database import Database

# Ended allocations are of use for questions of the last days.
KEPT_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Kept:
    """`is_new`: nothing was ever allocated here. `ended`: call -> seconds left of its tombstone."""

    is_new: bool = True
    tiers: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Sequence[OpenCall]] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)

    @property
    def calls_count(self) -> int:
        return sum(map(len, self.calls.values()))


@dataclass(slots=True)
class Notes:
    """What the manager did: tiers of pods, pods that are gone, and calls with their pods that were reset by hand."""

    tiers: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    reset: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tiers or self.gone or self.reset)


class Memory:
    def __init__(self, database: Database):
        self._database = database

    def ledger(self, bus: Runner, keys: RouterKeys) -> Ledger:
        return Ledger(self._database, bus, keys)

    async def read(self, lease_ttl_s: float, ended_ttl_s: float) -> Kept:
        async with self._database.connection() as conn:
            is_new = not await store.has_history(conn)
            tiers = await store.tiers(conn)
            opened = await store.open_allocations(conn, lease_ttl_s)
            ended = await store.ended_lately(conn, ended_ttl_s)
        calls: dict[str, list[OpenCall]] = defaultdict(list)
        for a in opened:
            tiers.setdefault(a.pod, STANDARD)
            calls[a.pod].append(
                OpenCall(a.call_sid, a.allocation_id, a.merchant_id, a.allocated_at_s, a.source_pool)
            )
        return Kept(is_new, tiers, calls, ended)

    async def note(self, notes: Notes) -> None:
        async with self._database.transaction() as tx:
            if notes.reset:
                await store.end_calls(tx, notes.reset)
            if notes.tiers:
                await store.set_tiers(tx, notes.tiers)
            if notes.gone:
                await store.remove_pods(tx, notes.gone)

    async def merchants(self) -> dict[str, str]:
        async with self._database.connection() as conn:
            return await store.merchants(conn)

    async def adopt_merchant(self, merchant_id: str, config: str, *, before: str) -> None:
        """'' removes it. Only if Postgres still has what it had `before`: whoever changed it since then was later."""
        async with self._database.connection() as conn:
            await store.adopt_merchant(conn, merchant_id, config, before)

    async def tidy(self) -> None:
        async with self._database.connection() as conn:
            await store.forget(conn, KEPT_S)
