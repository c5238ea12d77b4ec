"""Writes the events of answers after the carrier has its document, and retries while Postgres is away.

A person waits on the phone, so the document does not wait for a commit. If the process dies, the carrier's webhook at
the end of the call carries the same facts. Memory is bounded: beyond `waiting_max` an event is dropped, and counted.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from trunkline.errors import StoreUnavailable
from trunkline.store.mailboxes import NewEvent, Receipt
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

WAITING_MAX = 10_000
RETRY_S = (0.2, 2.0)
BATCH_MAX = 200

Append = Callable[[Sequence[NewEvent]], Awaitable[list[Receipt]]]


class LateEvents:
    def __init__(
        self, append_all: Append, *, waiting_max: int = WAITING_MAX, retry_s: tuple[float, float] = RETRY_S
    ):
        self._append_all = append_all
        self._waiting_max = waiting_max
        self._retry_s = retry_s
        self._new: deque[tuple[str, NewEvent]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._new)

    def put(self, carrier: str, event: NewEvent) -> None:
        """Never waits and never fails: the response does not depend on its event."""
        if len(self._new) >= self._waiting_max:
            self._drop(carrier, event, "too many wait")
            return
        self._new.append((carrier, event))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="late events")
            self._writer.add_done_callback(self._ended)

    async def written(self) -> None:
        """Returns when no event waits any more."""
        while self._writer is not None:
            await asyncio.wait({self._writer})

    async def aclose(self) -> None:
        """Write the waiting events, with one try."""
        self._is_closing = True
        await self.written()
        for carrier, event in self._new:
            self._drop(carrier, event, "the process ends")
        self._new.clear()

    async def _write(self) -> None:
        wait_s, longest_s = self._retry_s
        while self._new:
            batch = [self._new[n] for n in range(min(len(self._new), BATCH_MAX))]
            try:
                receipts = await self._append_all([event for _, event in batch])
            except StoreUnavailable as error:
                log.error("answer.events_not_stored_yet", waiting=len(self._new), error=str(error))
                if self._is_closing:
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)
                continue
            except Exception as error:  # an event that is refused must not block the others
                log.error("answer.events_not_stored", events=len(batch), exc_info=error)
                await self._one_by_one(batch)
                receipts = []
            wait_s = self._retry_s[0]
            for _ in batch:
                self._new.popleft()
            for (carrier, _), receipt in zip(batch, receipts, strict=False):
                if not receipt.created:
                    metrics.WEBHOOKS_REPEATED.labels(carrier).inc()

    async def _one_by_one(self, batch: Sequence[tuple[str, NewEvent]]) -> None:
        for carrier, event in batch:
            try:
                await self._append_all([event])
            except Exception as error:
                self._drop(carrier, event, type(error).__name__)

    def _ended(self, _task: "asyncio.Task[None]") -> None:
        self._writer = None
        if self._new and not self._is_closing:
            carrier, event = self._new.popleft()
            self.put(carrier, event)

    def _drop(self, carrier: str, event: NewEvent, reason: str) -> None:
        metrics.ANSWER_EVENTS_DROPPED.labels(carrier).inc()
        log.error("answer.event_dropped", attempt_id=event.key, reason=reason)
