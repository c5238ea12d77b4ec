"""The way into mailboxes: append events durably, then wake a worker.

Concurrent appends share one transaction (group commit): what arrives while a batch is being written goes into the
next one. Only when a whole batch waits is a second one written beside the first; no mailbox is in both, so its events
keep their order. A mailbox that somebody else's transaction holds open is passed over: its events get a writer of its
own, in their order, and nobody else's wait for it. The caller is answered when its event is committed, and never waits
for a worker. A caller that leaves takes nothing back: its event is written all the same.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trunkline.bus.connection import Bus
from trunkline.crashpoint import crash_point
from trunkline.errors import PoolEmpty, StoreUnavailable, TrunklineError
from trunkline.mailbox import measures
from trunkline.mailbox.notifier import MailboxNotifier
from trunkline.old_names import kept_names
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import ROW_HELD, UNAVAILABLE, Database, describe
from trunkline.store.driver import ROLLED_BACK
from trunkline.store.mailboxes import KEY_BYTES_MAX, KIND_BYTES_MAX, NewEvent, Receipt
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class BadEvent(TrunklineError, ValueError):
    """An event that no mailbox can hold."""


@dataclass(frozen=True, slots=True)
class InboxLimits:
    # A batch is bounded so that one commit stays in the milliseconds.
    batch_max: int = 500
    # Batches that are written at once. The second is begun while Postgres works on the first.
    writers_max: int = 2
    # How long an append waits at most for others, so that a fast machine does not commit a few at a time. Measured at
    # 200 calls a second beside 5 ms and a crowd of 8: a sixth less of Postgres' time and a sixteenth of ours. One that
    # comes alone does not wait at all; two that come again and again wait for each other this long.
    linger_s: float = 0.015
    # A batch of this size does not wait for more.
    batch_target: int = 24
    # How much of the size of an earlier batch still counts after a smaller one: after a burst of fifty some ten more
    # wait, before one that comes alone is taken for alone.
    decay: float = 0.7
    # Beyond this many the store is not keeping up, and callers had better know.
    waiting_max: int = 20_000
    # How many mailboxes are written at once after a batch of them failed.
    apart_max: int = 4
    # How many of the mailboxes that somebody holds are waited for at once, each on a connection.
    held_max: int = 2

    @property
    def connections(self) -> int:
        """What an inbox uses at most: for its batches, for what is held, and for one that is alone."""
        return self.writers_max + self.held_max + 1


@dataclass(slots=True)
class _Waiting:
    event: NewEvent
    done: "asyncio.Future[Receipt]"
    mailbox: tuple[str, str]

    def answer(self, receipt: Receipt) -> None:
        if not self.done.done():
            self.done.set_result(receipt)

    def refuse(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@kept_names
class Inbox:
    """Appends events in groups. One per process."""

    def __init__(self, database: Database, bus: Bus, limits: InboxLimits | None = None):
        self._database = database
        self._notifier = MailboxNotifier(bus)
        self._limits = limits or InboxLimits()
        self._waiting: list[_Waiting] = []
        # Each that is at work, and the mailboxes that it writes to.
        self._writers: dict[asyncio.Future[None], set[tuple[str, str]]] = {}
        # Mailboxes that somebody holds, and the events that wait for each. No batch has them.
        self._held: dict[tuple[str, str], list[_Waiting]] = {}
        self._held_writers: set[asyncio.Task[None]] = set()
        self._held_hands = asyncio.Semaphore(self._limits.held_max)
        self._lingering: asyncio.TimerHandle | None = None
        # As many came together lately. Below two, whoever comes is alone.
        self._recent_batch_size = 1.0
        self._is_closed = False

    async def append(self, event: NewEvent) -> Receipt:
        """Return when the event is durable. A doubled event is durable already."""
        check(event)
        is_alone = (
            not self._writers
            and not self._waiting
            and self._recent_batch_size < 2
            and (event.kind, event.key) not in self._held
        )
        return await (self._append_alone(event) if is_alone else self._add(event))

    async def append_all(self, events: Iterable[NewEvent]) -> list[Receipt]:
        """Many at once, each durable by itself: the first error is raised after all were tried."""
        events = list(events)
        for event in events:
            check(event)
        results = await asyncio.gather(*map(self._add, events), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, Receipt)]

    def wake(self, kind: str, keys: Iterable[str]) -> None:
        """Wake a worker for mailboxes that are queued already, such as those that were replayed."""
        self._notifier.wake(kind, keys)

    async def aclose(self) -> None:
        """Take nothing new, and return when everything taken is written or refused."""
        self._is_closed = True
        if self._waiting and not self._writers:
            self._start_writer()
        while writers := [*self._writers, *self._held_writers]:
            await asyncio.wait(writers)
        await self._notifier.flush()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("The inbox is closing.")

    def _add(self, event: NewEvent) -> "asyncio.Future[Receipt]":
        self._check_open()
        mailbox = (event.kind, event.key)
        waiting = self._held.get(mailbox, self._waiting)
        if len(waiting) >= self._limits.waiting_max:
            raise StoreUnavailable("The inbox is full.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Receipt] = loop.create_future()
        waiting.append(_Waiting(event, done, mailbox))
        if waiting is self._waiting and self._has_free_writer():
            self._write_soon()
        return done

    async def _append_alone(self, event: NewEvent) -> Receipt:
        """Written by its caller: nobody is there to share with, and a task of its own would take a tenth more time.
        Should the caller leave meanwhile, a writer does it: once more does no harm."""
        self._check_open()
        loop = asyncio.get_running_loop()
        waiting = _Waiting(event, loop.create_future(), (event.kind, event.key))
        me: asyncio.Future[None] = loop.create_future()
        self._writers[me] = {waiting.mailbox}
        self._take_in(1)
        try:
            await self._write([waiting])
        except asyncio.CancelledError:
            waiting.done.add_done_callback(_look_at)
            self._waiting.insert(0, waiting)
            raise
        finally:
            del self._writers[me]
            me.set_result(None)
            if self._waiting:
                self._start_writer()
        return await waiting.done

    def _write_soon(self) -> None:
        """A full batch goes as soon as the caller yields. Until it is full they wait a moment."""
        if self._is_crowd():
            self._start_writer()
        elif self._lingering is None:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(self._limits.linger_s, self._start_writer)

    def _is_crowd(self) -> bool:
        return self._is_closed or len(self._waiting) >= min(self._limits.batch_target, self._limits.batch_max)

    def _start_writer(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        writer = asyncio.create_task(self._write_waiting(), name="inbox")
        # It takes its batch when it runs: whoever comes until then goes with it.
        self._writers[writer] = set()

    def _has_free_writer(self) -> bool:
        is_full = len(self._waiting) >= self._limits.batch_max
        return not self._writers or (is_full and len(self._writers) < self._limits.writers_max)

    async def _write_waiting(self) -> None:
        """Batch after batch, while there is something that no other writer has to write first."""
        me = asyncio.current_task()
        assert me is not None, "a coroutine runs in a task"
        try:
            while batch := self._take_batch():
                self._writers[me] = {waiting.mailbox for waiting in batch}
                self._take_in(len(batch))
                if self._waiting and self._has_free_writer():
                    self._start_writer()
                await self._write(batch)
                self._writers[me] = set()
                if len(self._writers) > 1 and len(self._waiting) < self._limits.batch_max:
                    return  # one is enough for what is left
                # Whoever was answered goes on first, and whoever has come meanwhile is heard. Measured under load, by
                # `bench/webhooks.py`: taking the next batch at once costs a fifth of the rate.
                await asyncio.sleep(0)
                if not self._is_crowd():
                    return
        finally:
            del self._writers[me]
            if self._waiting and not self._writers:
                self._write_soon()

    def _take_in(self, count: int) -> None:
        self._recent_batch_size = max(count, self._recent_batch_size * self._limits.decay)

    def _take_batch(self) -> list[_Waiting]:
        batch = self._waiting[: self._limits.batch_max]
        busy = {mailbox for mailboxes in self._writers.values() for mailbox in mailboxes}
        if not busy or busy.isdisjoint([waiting.mailbox for waiting in batch]):
            del self._waiting[: len(batch)]
            return batch
        batch, rest = [], []
        for waiting in self._waiting:
            if len(batch) < self._limits.batch_max and waiting.mailbox not in busy:
                batch.append(waiting)
            else:
                rest.append(waiting)
        self._waiting = rest
        return batch

    async def _write(self, batch: list[_Waiting]) -> None:
        """Every one of them is answered, or has a writer of its own."""
        try:
            await self._append(batch, mailboxes.BATCH_LOCK_TIMEOUT_MS)
        except ROW_HELD:
            await self._pass_over(batch)
        except Exception as error:
            if not _refused(batch, error):
                await self._write_apart(batch, error)

    async def _pass_over(self, batch: list[_Waiting]) -> None:
        """Somebody holds a mailbox of this batch: write the others, and wait for that one apart."""
        named = {waiting.mailbox for waiting in batch}
        free: set[tuple[str, str]] = set()
        try:
            if len(named) > 1:
                free = await self._append_free(batch, named)
        except ROW_HELD:
            pass  # the whole table
        except Exception as error:
            if not _refused(batch, error):
                await self._write_apart(batch, error)
            return
        self._hold([waiting for waiting in batch if waiting.mailbox not in free])

    async def _append_free(self, batch: list[_Waiting], named: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Write the events of the mailboxes that nobody holds; which those are."""
        written: list[_Waiting] = []
        receipts: list[Receipt] = []
        async with self._database.transaction() as tx:
            free = await mailboxes.lock_free(tx, named)
            written = [waiting for waiting in batch if waiting.mailbox in free]
            if written:
                receipts = await mailboxes.append(
                    tx,
                    [waiting.event for waiting in written],
                    lock_timeout_ms=mailboxes.BATCH_LOCK_TIMEOUT_MS,
                )
        self._answer(written, receipts)
        return free

    def _hold(self, batch: Iterable[_Waiting]) -> None:
        """From now on each of these mailboxes has a writer of its own, which also gets what has come for it
        meanwhile."""
        parts: dict[tuple[str, str], list[_Waiting]] = {}
        for waiting in batch:
            parts.setdefault(waiting.mailbox, []).append(waiting)
        rest: list[_Waiting] = []
        for waiting in self._waiting:
            parts.get(waiting.mailbox, rest).append(waiting)
        self._waiting = rest
        for mailbox, part in parts.items():
            assert mailbox not in self._held, "in one writer's hands at a time"
            self._held[mailbox] = part
            writer = asyncio.create_task(self._write_held(mailbox, part), name="inbox held")
            self._held_writers.add(writer)
            writer.add_done_callback(self._held_writers.discard)

    async def _write_held(self, mailbox: tuple[str, str], waiting: list[_Waiting]) -> None:
        """In turns, until nothing is left for it. Its next event goes with everybody's again."""
        try:
            while waiting:
                async with self._held_hands:
                    batch = waiting[: self._limits.batch_max]
                    del waiting[: len(batch)]
                    # Each is asked for within a second or so, however many are held.
                    share = self._limits.held_max / max(self._limits.held_max, len(self._held))
                    await self._write_patiently(batch, max(1, int(mailboxes.LOCK_TIMEOUT_MS * share)))
        finally:
            del self._held[mailbox]

    async def _write_patiently(self, batch: list[_Waiting], lock_timeout_ms: int) -> None:
        """Events of one mailbox: together, and if one of them cannot be written, one by one."""
        try:
            await self._append(batch, lock_timeout_ms)
        except ROW_HELD as error:
            _refuse(batch, StoreUnavailable(f"Try again: {describe(error)}"), error)
        except Exception as error:
            if not _refused(batch, error):
                for waiting in batch:
                    await self._write_patiently([waiting], lock_timeout_ms)

    async def _write_apart(self, batch: list[_Waiting], error: Exception) -> None:
        """What cannot be written must not take its neighbours with it: by mailbox, and there one by one."""
        parts: dict[tuple[str, str], list[_Waiting]] = {}
        for waiting in batch:
            parts.setdefault(waiting.mailbox, []).append(waiting)
        if len(parts) == 1:
            self._hold(batch)
            return
        hands = asyncio.Semaphore(self._limits.apart_max)

        async def write(part: list[_Waiting]) -> None:
            async with hands:
                await self._write(part)

        await asyncio.gather(*map(write, parts.values()))

    async def _append(self, batch: Sequence[_Waiting], lock_timeout_ms: int) -> None:
        events = [waiting.event for waiting in batch]
        try:
            receipts = await self._commit(events, lock_timeout_ms)
        except ROLLED_BACK:
            receipts = await self._commit(events, lock_timeout_ms)
        self._answer(batch, receipts)

    async def _commit(self, events: Sequence[NewEvent], lock_timeout_ms: int) -> list[Receipt]:
        async with self._database.connection() as conn:
            return await mailboxes.append(conn, events, lock_timeout_ms=lock_timeout_ms)

    def _answer(self, batch: Sequence[_Waiting], receipts: Sequence[Receipt]) -> None:
        crash_point("inbox.after_commit")
        for waiting, receipt in zip(batch, receipts, strict=True):
            waiting.answer(receipt)
        self._follow_up(batch, receipts)

    def _follow_up(self, batch: Sequence[_Waiting], receipts: Sequence[Receipt]) -> None:
        for kind, keys in follow_up((waiting.event for waiting in batch), receipts):
            self._notifier.wake(kind, keys)


def follow_up(events: Iterable[NewEvent], receipts: Iterable[Receipt]) -> Iterator[tuple[str, Iterable[str]]]:
    """Count what is new and alarm about what nobody will process; the mailboxes of each kind to wake workers for."""
    tallies: dict[str, _Tally] = {}
    for event, receipt in zip(events, receipts, strict=True):
        if receipt.created:
            tally = tallies.get(event.kind) or tallies.setdefault(event.kind, _Tally())
            tally.events += 1
            tally.add(event, receipt.status_before)
    for kind, tally in tallies.items():
        measures.appended(kind, tally.events, queued=len(tally.queued), dead=len(tally.dead))
        for key in tally.dead:
            log.error("mailbox.append_to_dead", kind=kind, key=key)
        if tally.wake:
            yield kind, tally.wake


@dataclass(slots=True)
class _Tally:
    """What a batch did to the mailboxes of one kind."""

    events: int = 0
    queued: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    wake: dict[str, None] = field(default_factory=dict)

    def add(self, event: NewEvent, status_before: MailboxStatus) -> None:
        if status_before is MailboxStatus.IDLE:
            self.queued.add(event.key)
            if event.urgent is not False:
                self.wake[event.key] = None
        elif status_before is MailboxStatus.DEAD:
            self.dead.add(event.key)
        elif event.urgent and status_before is MailboxStatus.QUEUED:
            self.wake[event.key] = None


def _look_at(done: "asyncio.Future[Receipt]") -> None:
    """Nobody waits for it any more: should it fail, it fails quietly."""
    if not done.cancelled():
        done.exception()


_BOUNDS = (
    ("kind", KIND_BYTES_MAX),
    ("key", KEY_BYTES_MAX),
    ("dedupe key", KEY_BYTES_MAX),
    ("type", KEY_BYTES_MAX),
)


def check(event: NewEvent) -> None:
    """Refuse what Postgres would refuse, in words, and without a batch that has to be written twice."""
    texts = (event.kind, event.key, event.dedupe_key, event.type)
    for (name, bytes_max), text in zip(_BOUNDS, texts, strict=True):
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if not 0 < size <= bytes_max or "\x00" in text:
            raise BadEvent(f"The {name} of an event has 1 to {bytes_max} bytes, and no NUL among them.")


def _refused(batch: Sequence[_Waiting], error: Exception) -> bool:
    """Whether trying them apart would help none of them: then all are told why."""
    if isinstance(error, PoolEmpty):
        _refuse(batch, error, error)
    elif isinstance(error, UNAVAILABLE):
        _refuse(batch, StoreUnavailable(f"Postgres cannot be reached: {describe(error)}"), error)
    elif len(batch) > 1:
        return False
    elif isinstance(error, ROLLED_BACK):
        _refuse(batch, StoreUnavailable(f"Try again: {describe(error)}"), error)
    else:
        _refuse(batch, error, error)
    return True


def _refuse(batch: Iterable[_Waiting], error: Exception, cause: BaseException) -> None:
    if error is not cause:
        error.__cause__ = cause
    for waiting in batch:
        waiting.refuse(error)
