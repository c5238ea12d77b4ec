"""What was given and ended while Postgres was silent, written down when it answers again.

An end wins: a note of a beginning that comes after it changes nothing. A note that meets another call on its slot is
written without a pod, and the pod's next heartbeat decides.
"""

import asyncio
from collections import deque
from uuid import UUID

from trunkline.crashpoint import crash_point
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.model import Slot, new_id
from trunkline.store import allocations
from trunkline.store.allocations import Release
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics
from trunkline.value import Value

log = get_logger(__name__)

# At 200 calls a second the notes of a minute. Then the oldest are lost, and the pods' heartbeats have to tell.
NOTES_MAX = 20_000
LINGER_S = 0.05


class Note(Value, frozen=True):
    """A call that was given a slot. Of one that the answer URL named the slot's number is known to its row alone."""

    allocation_id: UUID
    call_sid: str
    has_attempt: bool
    merchant_id: str = ""
    slot: Slot | None = None


class AllocationNotes(Loop):
    name = "allocation_notes"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database):
        super().__init__(LINGER_S)
        self._database = database
        self._notes: deque[Note | Release] = deque()
        self._news = asyncio.Event()

    def begun(self, note: Note) -> None:
        self._keep(note)

    def over(self, call_sid: str, by_pod: str, turn: int | None) -> None:
        self._keep(Release(call_sid, new_id(), by_pod, turn))

    async def wait(self) -> None:
        await self._news.wait()
        await self.pause(LINGER_S)

    def stop(self) -> None:
        super().stop()
        self._news.set()

    async def run_once(self) -> int:
        """Write what has come in, in order. What could not be written stays for the next run."""
        self._news.clear()
        written = 0
        try:
            while self._notes:
                await self._write(self._notes[0])
                self._notes.popleft()
                written += 1
        finally:
            if self._notes:
                self._news.set()
        return written

    async def _write(self, note: Note | Release) -> None:
        crash_point("router.before_note")
        async with self._database.connection() as conn:
            match note:
                case Release():
                    await allocations.release(conn, [note])
                case Note(slot=None):
                    await allocations.begin(conn, note.allocation_id, note.call_sid)
                case Note(slot=Slot() as slot):
                    is_free = await allocations.note(
                        conn, note.allocation_id, note.call_sid, has_attempt=note.has_attempt,
                        merchant_id=note.merchant_id, slot=slot,
                    )  # fmt: skip
                    if not is_free:
                        log.warning("router.note_without_pod", call_id=note.call_sid, pod=slot.pod)
        crash_point("router.after_note")

    def _keep(self, note: Note | Release) -> None:
        if len(self._notes) >= NOTES_MAX:
            self._notes.popleft()
            metrics.ROUTER_JOURNAL_LOST.inc()
        self._notes.append(note)
        self._news.set()
