"""Ends slots without a live attempt, deletes old tombstones, and finds calls that did not reach their agents.

A dial in doubt holds its slot until its call can ring no more. Everything else that ends an attempt ends its slot in
the same statement, so a slot without a live attempt is a fault, and this loop raises an alarm for it.
"""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from trunkline.control.raising import raise_alarm
from trunkline.loops.base import Loop
from trunkline.store import allocations
from trunkline.store.database import Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

INTERVAL_S = 5.0

# Frees the slots of these attempts in Valkey.
Free = Callable[[Sequence[UUID]], Awaitable[None]]


class SlotCheck(Loop):
    name = "slot_check"

    def __init__(
        self,
        database: Database,
        free: Free,
        *,
        doubt_s: float,
        tombstone_s: float,
        interval_s: float = INTERVAL_S,
    ):
        super().__init__(interval_s)
        self._database = database
        self._free = free
        self._doubt_s = doubt_s
        self._tombstone_s = tombstone_s

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            doubts = await allocations.end_doubts(conn, self._doubt_s)
            strays = await allocations.end_strays(conn)
            await allocations.tell_untaken(conn)
            await allocations.forget(conn, self._tombstone_s)
            broken = await allocations.pods_without_streams(conn)
        if strays:
            log.error("agents.stray_slots", slots=len(strays))
            pods = sorted({ended.pod for ended in strays if ended.pod})
            await raise_alarm(self._database, "stray_slots", "", {"slots": len(strays), "pods": pods[:20]})
        for pod in broken:
            await raise_alarm(self._database, "pod_takes_no_stream", pod)
        if ended := [each.id for each in (*doubts, *strays)]:
            await self._free(ended)
        return len(doubts) + len(strays)
