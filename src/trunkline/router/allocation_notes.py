"""Allocation notes: allocations and releases that the router holds while Postgres does not answer, and writes when it
does again.

A release wins: a note of a beginning that comes after it changes nothing. A note whose slot another call has is written
without a pod, and the pod's next heartbeat decides.
"""

import asyncio
from collections import deque

from trunkline.crashpoint import crash_point
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.model import new_id
from trunkline.routing import Allocation
from trunkline.store import allocations
from trunkline.store.allocations import Release
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics
from trunkline.value import Value

log = get_logger(__name__)

# One minute of notes at 200 calls per second. Beyond it the oldest are dropped, and pods' heartbeats restore the rows.
NOTES_MAX = 20_000
BATCH_DELAY_S = 0.05


class Note(Value, frozen=True):
    """A call that got a slot. `is_reserved`: its answer URL named the pod, and only its row has the number of the
    slot."""

    allocation: Allocation
    has_attempt: bool
    is_reserved: bool = False


class AllocationNotes(Loop):
    name = "allocation_notes"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database):
        super().__init__(BATCH_DELAY_S)
        self._database = database
        self._notes: deque[Note | Release] = deque()
        self._has_notes = asyncio.Event()

    def begun(self, allocation: Allocation, *, has_attempt: bool, is_reserved: bool = False) -> None:
        self._append(Note(allocation, has_attempt, is_reserved))

    def over(self, call: str, by_pod: str, turn: int | None) -> None:
        self._append(Release(call, new_id(), by_pod, turn))

    async def wait(self) -> None:
        await self._has_notes.wait()
        await self.pause(BATCH_DELAY_S)

    def stop(self) -> None:
        super().stop()
        self._has_notes.set()

    async def run_once(self) -> int:
        """Write the notes in order. Those that could not be written stay for the next run."""
        self._has_notes.clear()
        written = 0
        try:
            while self._notes:
                await self._write(self._notes[0])
                self._notes.popleft()
                written += 1
        finally:
            if self._notes:
                self._has_notes.set()
        return written

    async def _write(self, note: Note | Release) -> None:
        crash_point("router.before_note")
        async with self._database.connection() as conn:
            match note:
                case Release():
                    await allocations.release(conn, [note])
                case Note(allocation=begun, is_reserved=True):
                    await allocations.begin(conn, begun.id, begun.call)
                case Note(allocation=begun, has_attempt=has_attempt):
                    if not await allocations.note(conn, begun, has_attempt=has_attempt):
                        log.warning("router.note_without_pod", call_id=begun.call, pod=begun.pod)
        crash_point("router.after_note")

    def _append(self, note: Note | Release) -> None:
        if len(self._notes) >= NOTES_MAX:
            self._notes.popleft()
            metrics.ROUTER_JOURNAL_LOST.inc()
        self._notes.append(note)
        self._has_notes.set()
