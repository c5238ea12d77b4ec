"""Compares the journal with what Valkey has, at every reconcile.

Notes are written after the answer, so one that was lost with its process leaves a difference: a row that is open
though its call is over, a call that no row names, a pod that is gone or has another tier. Unmended, a later loss of
memory would bring a dead call back to life, or forget a living one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from trunkline.bus import router_manager, router_views
from trunkline.bus.router import Runner
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_manager import PAGE, Term, TermLost
from trunkline.store import router as store
from trunkline.store.database import Database
from trunkline.store.router import OpenAllocation

# So many lost notes are believed at once. More of them, and more than a third of all, look like a memory that somebody
# is just deleting key by key: then nothing is believed that was not so at the last comparison too.
FEW_CALLS = 10
FEW_PODS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Differences:
    over: Sequence[OpenAllocation] = ()
    orphaned: Sequence[OpenAllocation] = ()
    unnoted: Sequence[OpenAllocation] = ()
    gone: Sequence[str] = ()
    tiers: int = 0

    def __len__(self) -> int:
        return len(self.over) + len(self.orphaned) + len(self.unnoted) + len(self.gone) + self.tiers


class Ledger:
    def __init__(self, database: Database, bus: Runner, keys: RouterKeys):
        self._database = database
        self._bus = bus
        self._keys = keys
        self._doubted: set[str] = set()
        # At the last comparison memory contradicted itself, as while somebody deletes it: let nobody be moved by it.
        self.is_doubtful = False

    async def mend(self, term: Term, lease_ttl_s: float, still_leads: Callable[[], bool]) -> Differences:
        """The journal is read first: whatever is in it was in Valkey before."""
        async with self._database.connection() as conn:
            opened = {a.allocation_id: a for a in await store.open_allocations(conn, lease_ttl_s)}
            noted = await store.tiers(conn)
        has_ended: dict[str, bool] = {}
        for page in _pages([*opened.values()]):
            has_ended |= await term.over([*map(_named, page)])
        gone = [pod for page in _pages([*noted]) for pod in await term.missing(page)]
        over, gone = self._believed([*has_ended], len(opened), gone, len(noted))
        found = Differences(
            [opened[one] for one in over if has_ended[one]],
            [opened[one] for one in over if not has_ended[one]],
            await self._unnoted(opened),
            gone,
        )
        census = await router_manager.census(self._bus, self._keys, unnamed_s=0)
        tiers = {pod: tier for tier, pods in census.pods.items() for pod in pods}
        # Each heartbeat puts its pod back into its tier; until then the tier seems to lack one.
        self.is_doubtful = bool(self._doubted or noted.keys() - tiers.keys() - {*gone})
        wrong = {pod: tier for pod, tier in tiers.items() if noted.get(pod) != tier and pod not in gone}
        # A leader that was paused since it asked writes nothing.
        if not still_leads():
            raise TermLost(f"term {term.number} ran out")
        await self._write(found, wrong)
        return replace(found, tiers=len(wrong))

    async def _unnoted(self, opened: dict[str, OpenAllocation]) -> list[OpenAllocation]:
        """Calls that have a pod and no row. One that is overlooked because the list moved is found the next time."""
        found: dict[str, OpenAllocation] = {}
        first = 0
        while page := await router_views.calls(self._bus, self._keys, first, PAGE):
            first += PAGE
            for c in page:
                if c.allocation_id and c.allocation_id not in opened:
                    found[c.allocation_id] = OpenAllocation(
                        c.allocation_id, c.call_sid, c.pod, c.source_pool, c.merchant_id, c.allocated_at_s
                    )
        return [*found.values()]

    def _believed(
        self, over: list[str], calls: int, gone: list[str], pods: int
    ) -> tuple[list[str], list[str]]:
        is_odd = _is_mass(gone, pods, FEW_PODS) or _is_mass(over, calls, FEW_CALLS)
        before, self._doubted = self._doubted, {*over, *gone} if is_odd else set()
        if not is_odd:
            return over, gone
        return [one for one in over if one in before], [one for one in gone if one in before]

    async def _write(self, found: Differences, tiers: dict[str, str]) -> None:
        if not len(found) and not tiers:
            return
        async with self._database.transaction() as tx:
            if found.unnoted:
                await store.begin(tx, found.unnoted)
            if found.over:
                await store.end(tx, [(a.allocation_id, a.call_sid, a.pod) for a in found.over])
            if found.orphaned:
                await store.drop(tx, [a.allocation_id for a in found.orphaned])
            if tiers:
                await store.set_tiers(tx, tiers)
            if found.gone:
                await store.remove_pods(tx, found.gone)


def _is_mass(found: Sequence[str], total: int, few: int) -> bool:
    return len(found) > few and len(found) > total / 3


def _named(row: OpenAllocation) -> tuple[str, str, str]:
    return row.call_sid, row.pod, row.allocation_id


def _pages(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    return (rows[i : i + PAGE] for i in range(0, len(rows), PAGE))
