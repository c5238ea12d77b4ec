"""Writes the journal to Postgres, many notes at a time, after the answers have gone out."""

import asyncio
from collections import OrderedDict, deque

from trunkline.crashpoint import crash_point
from trunkline.loops.base import Loop
from trunkline.router.journal import Begun, Over
from trunkline.store import router as store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import metrics

# Notes that wait while Postgres is away: at 200 calls a second the notes of a minute. Then the oldest are lost, and
# after a loss of memory the pods' heartbeats have to tell.
NOTES_MAX = 20_000
BATCH_MAX = 500
LINGER_S = 0.05
TIERS_MAX = 50_000
# A heartbeat does not wait longer than this to learn which tier its pod had.
LOOK_UP_S = 0.5


class JournalWriter(Loop):
    name = "router_journal"

    def __init__(self, database: Database):
        super().__init__(LINGER_S)
        self._database = database
        self._begun: deque[Begun] = deque()
        self._over: deque[Over] = deque()
        # What Postgres knows of pods' tiers, and what it does not know yet.
        self._tiers: OrderedDict[str, str] = OrderedDict()
        self._new_tiers: dict[str, str] = {}
        self._news = asyncio.Event()

    def begun(self, note: Begun) -> None:
        self._keep(self._begun, note)

    def over(self, note: Over) -> None:
        self._keep(self._over, note)

    def tier(self, pod: str, tier: str, *, is_new: bool = False) -> None:
        if self._tiers.get(pod) == tier and not is_new:
            return
        self._know(pod, tier)
        self._new_tiers[pod] = tier
        self._news.set()

    def learn(self, pod: str, tier: str) -> None:
        self._new_tiers.pop(pod, None)
        if tier:
            self._know(pod, tier)
        else:
            self._tiers.pop(pod, None)

    async def tier_of(self, pod: str, *, afresh: bool = False) -> str:
        known = self._tiers.get(pod)
        if pod in self._new_tiers or (known is not None and not afresh):
            return known or ""
        try:
            async with asyncio.timeout(LOOK_UP_S), self._database.connection() as conn:
                tier = await store.tier_of(conn, pod)
        except UNAVAILABLE:
            return known or ""
        if tier:
            self._know(pod, tier)
        elif pod not in self._new_tiers:
            self._tiers.pop(pod, None)
        return tier or ""

    async def wait(self) -> None:
        await self._news.wait()
        await self.pause(LINGER_S)

    def stop(self) -> None:
        super().stop()
        self._news.set()

    async def run_once(self) -> int:
        """Write what has come in. What could not be written stays for the next run."""
        self._news.clear()
        return await self.write()

    async def write(self) -> int:
        begun = [self._begun[i] for i in range(min(BATCH_MAX, len(self._begun)))]
        # An end waits for its beginning: the other way round it would be written twice.
        over = [self._over[i] for i in range(min(BATCH_MAX, len(self._over)))]
        tiers = dict(list(self._new_tiers.items())[:BATCH_MAX])
        if not begun and not over and not tiers:
            return 0
        async with self._database.transaction() as tx:
            if begun:
                rows = {note.allocation_id: store.OpenAllocation(*_fields(note)) for note in begun}
                await store.begin(tx, list(rows.values()))
            ended = {n.allocation_id: (n.allocation_id, n.call_sid, n.pod) for n in over if not n.is_orphaned}
            if ended:
                await store.end(tx, list(ended.values()))
            orphaned = [note.allocation_id for note in over if note.is_orphaned]
            if orphaned:
                await store.drop(tx, orphaned)
            if tiers:
                await store.set_tiers(tx, tiers)
            crash_point("router.before_note")
        crash_point("router.after_note")
        self._forget(begun, over, tiers)
        if self._begun or self._over or self._new_tiers:
            self._news.set()
        return len(begun) + len(over) + len(tiers)

    def _forget(self, begun: list[Begun], over: list[Over], tiers: dict[str, str]) -> None:
        """What is written; nothing else, though more may have come in or been dropped meanwhile."""
        for kept, written in ((self._begun, begun), (self._over, over)):
            for note in written:
                if kept and kept[0] is note:
                    kept.popleft()
        for pod, tier in tiers.items():
            if self._new_tiers.get(pod) == tier:
                del self._new_tiers[pod]

    def _keep(self, notes: "deque[Begun] | deque[Over]", note: Begun | Over) -> None:
        if len(notes) >= NOTES_MAX:
            notes.popleft()
            metrics.ROUTER_JOURNAL_LOST.inc()
        notes.append(note)  # type: ignore[arg-type]
        self._news.set()

    def _know(self, pod: str, tier: str) -> None:
        self._tiers[pod] = tier
        self._tiers.move_to_end(pod)
        while len(self._tiers) > TIERS_MAX:
            self._tiers.popitem(last=False)


def _fields(note: Begun) -> tuple[str, str, str, str, str, int]:
    return (
        note.allocation_id,
        note.call_sid,
        note.pod,
        note.source_pool,
        note.merchant_id,
        note.allocated_at_s,
    )
