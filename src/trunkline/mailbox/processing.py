"""Processes claimed mailboxes: handle, write, complete; or fail and retry later.

Three short steps with no transaction open in between. After a failed batch its mailboxes are processed one by one: the
one that fails is retried later, and the others complete.

`Leases` are renewed while handlers run: one statement for all leases of a worker, three times per lease. A handler
whose lease is lost all the same (this process was paused, or Postgres was away) is cancelled: another worker has the
mailbox, and the fence would refuse its effects.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from trunkline.bus.mailbox_wakeups import MailboxNotifier
from trunkline.crashpoint import crash_point
from trunkline.errors import PoolEmpty, TrunklineError
from trunkline.handlers import HandlerScope, awaitable, refusal
from trunkline.mailbox.handler import AfterCommit, BadHandler, Done, Handler, Write
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database, describe, is_of_database, limit_waiting
from trunkline.store.mailboxes import ISSUE, Claim, ClaimedMailbox, Completed
from trunkline.telemetry import bind, get_logger, metrics, span

log = get_logger(__name__)

ERROR_LENGTH_MAX = 2_000
# How many mailboxes of a failed batch are processed concurrently. Each takes a connection for its transaction.
APART_MAX = 4
BEATS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class FailureRule:
    """How often a mailbox may fail in a row, and the backoff between its tries."""

    failures_max: int = 10
    backoff_first_s: float = 1.0
    backoff_max_s: float = 300.0
    # For `handle` and the write that it returned; the function after the commit has as long again. Without it the lease
    # of a handler that never returns would be renewed for ever.
    timeout_s: float = 600.0

    def delay_s(self, failures_before: int) -> float:
        return min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(failures_before, 32))


@dataclass(slots=True, eq=False)
class Processor:
    # The pool of handlers' transactions. Open ones starve only handlers: completions without a write and failures use
    # the pool `own`.
    database: Database
    own: Database
    handler: Handler
    leases: "Leases"
    notifier: MailboxNotifier
    rule: FailureRule
    lock_timeout_ms: int | None
    _runs: "dict[asyncio.Task[Any], HandlerRun]" = field(default_factory=dict, init=False)
    _counters: "ProcessedCounters" = field(init=False)

    def __post_init__(self) -> None:
        self._counters = ProcessedCounters(self.handler.kind)

    async def process(self, pieces: Sequence[ClaimedMailbox]) -> None:
        """Afterwards each mailbox is completed, queued again, dead, or another worker's."""
        slot_task = asyncio.current_task()
        assert slot_task is not None, "a coroutine runs in a task"
        with self.leases.kept(pieces):
            try:
                await self._process(pieces, slot_task)
            except Exception as error:
                # Not even the failure could be written. The lease expires, and a worker claims it again.
                log.warning(
                    "mailbox.abandoned", kind=self.handler.kind, count=len(pieces), error=describe(error)
                )

    @property
    def attempts(self) -> "list[HandlerRun]":
        return list(self._runs.values())

    def find_by_task(self, task: "asyncio.Task[Any] | None") -> "HandlerRun | None":
        """The run of this task. Called from another thread too."""
        return self._runs.get(task) if task is not None else None

    async def abandon(self, attempt: "HandlerRun", error: Exception) -> None:
        """Its handler was cancelled and runs on: release its mailboxes, which are retried later. The fence refuses what
        the handler still writes."""
        self._runs.pop(attempt.task, None)
        held = [claim for claim in attempt.claims if self.leases.is_kept(claim)]
        self.leases.drop(held)
        metrics.MAILBOX_FAILED.labels(self.handler.kind).inc()
        try:
            for claim in held:
                await self._fail(claim, error)
        except Exception as failure:
            # Its leases are not renewed any more: another worker claims the mailboxes when they expire.
            log.warning("mailbox.not_given_back", kind=self.handler.kind, error=describe(failure))

    async def _process(self, pieces: Sequence[ClaimedMailbox], slot_task: "asyncio.Task[Any]") -> None:
        try:
            await self._attempt(pieces, slot_task)
        except MailboxLeaseLost:
            log.warning("mailbox.lease_lost", kind=self.handler.kind, count=len(pieces))
        except _PartlyLost as lost:
            await self._process([piece for piece in pieces if piece.claim.key in lost.still_ours], slot_task)
        except Abandoned:
            log.warning("mailbox.ended_after_all", kind=self.handler.kind, count=len(pieces))
        except Exception as error:
            metrics.MAILBOX_FAILED.labels(self.handler.kind).inc()
            if len(pieces) == 1:
                await self._fail(pieces[0].claim, error)
            else:
                log.warning(
                    "mailbox.batch_failed", kind=self.handler.kind, count=len(pieces), error=describe(error)
                )
                await self._process_apart(pieces, slot_task)

    async def _process_apart(self, pieces: Sequence[ClaimedMailbox], slot_task: "asyncio.Task[Any]") -> None:
        slots = asyncio.Semaphore(APART_MAX)

        async def process(piece: ClaimedMailbox) -> None:
            async with slots:
                await self._process([piece], slot_task)

        async with asyncio.TaskGroup() as group:
            for piece in pieces:
                group.create_task(process(piece))

    async def _attempt(self, pieces: Sequence[ClaimedMailbox], slot_task: "asyncio.Task[Any]") -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        now_s = asyncio.get_running_loop().time
        scope = HandlerScope("mailbox", self.handler.kind)
        claims = [piece.claim for piece in pieces]
        attempt = HandlerRun(task, slot_task, claims, now_s() + self.rule.timeout_s, scope)
        self._runs[task] = attempt
        scope.enter()
        try:
            with span("mailbox.fold", kind=self.handler.kind, mailboxes=len(pieces)):
                answer: Write | Done | None = None
                if batch := {piece.claim.key: piece.events for piece in pieces if piece.events}:
                    with self.leases.cancelled_if_lost(claims):
                        async with asyncio.timeout_at(attempt.deadline_s):
                            answer = await self.handler.handle(batch)
                done = answer if isinstance(answer, Done) else Done(write=answer)
                completed, after = await self._commit(pieces, done, attempt)
            crash_point("mailbox.after_commit")
            self._report(pieces, completed, done)
            if after is not None:
                attempt.deadline_s = now_s() + self.rule.timeout_s
                try:
                    async with asyncio.timeout_at(attempt.deadline_s):
                        await awaitable(after(), after)
                except Exception as error:
                    # It undoes nothing: the reconcilers of the other components repair what they missed.
                    log.warning(
                        "mailbox.follow_up_failed",
                        kind=self.handler.kind,
                        error=describe(error),
                        exc_info=error,
                    )
        except Exception as error:
            if attempt.is_abandoned:
                raise Abandoned from error
            raise
        finally:
            self._runs.pop(task, None)

    async def _commit(
        self, pieces: Sequence[ClaimedMailbox], done: Done, attempt: "HandlerRun"
    ) -> tuple[dict[str, Completed], AfterCommit | None]:
        crash_point("mailbox.before_write")
        if not (done.write or done.send or done.parked):
            # One statement completes all. A lost lease does not affect the others.
            async with self.own.connection() as conn:
                completed = await mailboxes.complete(conn, pieces)
            if lost := len(pieces) - len(completed):
                log.warning("mailbox.lease_lost", kind=self.handler.kind, count=lost)
            return completed, None
        async with AsyncExitStack() as stack:
            try:
                # Within the handler's timeout: past it, this would count as a handler that does not stop.
                async with asyncio.timeout_at(attempt.deadline_s):
                    tx = await stack.enter_async_context(self.database.transaction())
            except TimeoutError as error:
                raise PoolEmpty("No connection came free within the time of the handler.") from error
            after: AfterCommit | None = None
            if done.write:
                self._check("write", done.write)
                if self.lock_timeout_ms:
                    await limit_waiting(tx, self.lock_timeout_ms)
                # Nothing may interrupt the completion and the commit: a committed write must not be reported as failed.
                with attempt.scope.holding(partial(self.database.take_away, tx)):
                    async with asyncio.timeout_at(attempt.deadline_s):
                        after = await awaitable(done.write(tx), done.write)
                if after is not None:
                    self._check("function after the commit", after)
            if done.send:
                await self._send(tx, pieces, done)
            completed = await mailboxes.complete(tx, pieces)
            if len(completed) != len(pieces):
                raise _PartlyLost(frozenset(completed))
            if done.parked:
                await mailboxes.park(tx, self.handler.kind, done.parked)
            crash_point("mailbox.before_commit")
        return completed, after

    def _check(self, what: str, function: Write | AfterCommit) -> None:
        """Called before the function has an effect, and before the commit that it would follow. A lambda may return an
        awaitable, which is checked when it is called."""
        is_lambda = getattr(function, "__name__", None) == "<lambda>"
        if not is_lambda and (reason := refusal(function)) is not None:
            raise BadHandler(f"The {what} of mailboxes of kind {self.handler.kind} cannot be run: {reason}")

    async def _send(self, tx: Connection, pieces: Sequence[ClaimedMailbox], done: Done) -> None:
        """Lock the claimed and the receiving mailboxes together, in sorted order: two handlers that send to each
        other's mailboxes would otherwise deadlock."""
        claimed = {(piece.claim.kind, piece.claim.key) for piece in pieces}
        await mailboxes.lock(tx, claimed | {(event.kind, event.key) for event in done.send})
        await mailboxes.append(tx, done.send)

    def _report(self, pieces: Sequence[ClaimedMailbox], completed: dict[str, Completed], done: Done) -> None:
        """Count what was processed; wake workers for mailboxes that got events meanwhile, and for the receivers of sent
        events."""
        counts: list[tuple[int, float]] = []
        again: list[str] = []
        for piece in pieces:
            key = piece.claim.key
            if (mailbox := completed.get(key)) is not None:
                counts.append((len(piece.events), mailbox.took.total_seconds()))
                if mailbox.status is MailboxStatus.QUEUED:
                    again.append(key)
        self._counters.add(counts)
        if again:
            self.notifier.wake(self.handler.kind, again)
        for event in done.send:
            self.notifier.wake(event.kind, [event.key])
        for parked in done.parked:
            metrics.MAILBOX_PARKED.labels(self.handler.kind).inc()
            log.error(
                "mailbox.event_parked",
                kind=self.handler.kind,
                key=parked.key,
                seq=parked.seq,
                error=parked.error,
            )

    async def _fail(self, claim: Claim, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}".rstrip(": ").replace("\x00", "")[:ERROR_LENGTH_MAX]
        async with self.own.connection() as conn:
            status = await mailboxes.fail(
                conn,
                claim,
                text.encode("utf-8", "replace").decode(),
                failures_max=self.rule.failures_max,
                delay_s=self.rule.delay_s(claim.failures),
                counts=not is_of_database(error),
            )
        with bind(kind=claim.kind, key=claim.key):
            if status is MailboxStatus.DEAD:
                metrics.MAILBOX_DIED.labels(claim.kind).inc()
                log.error("mailbox.died", failures=claim.failures + 1, exc_info=error)
            elif status is None:
                log.warning("mailbox.lease_lost", count=1)
            else:
                log.warning("mailbox.failed", failures=claim.failures + 1, exc_info=error)


class ProcessedCounters:
    """Counters of one kind. Finding a counter by its label costs three times as much as counting."""

    def __init__(self, kind: str):
        self._is_issue = kind == ISSUE
        self._events = metrics.MAILBOX_PROCESSED.labels(kind)
        self._mailboxes = metrics.MAILBOX_COMPLETED.labels(kind)
        self._seconds = metrics.MAILBOX_SECONDS.labels(kind)
        self._batch_events = metrics.MAILBOX_BATCH_EVENTS.labels(kind)

    def add(self, completed: Sequence[tuple[int, float]]) -> None:
        """Mailboxes that were completed together: the events of each, and the seconds that it took."""
        self._mailboxes.inc(len(completed))
        total = 0
        for events, took_s in completed:
            total += events
            self._seconds.observe(took_s)
            self._batch_events.observe(events)
            if self._is_issue:
                metrics.ISSUES_SECONDS.observe(took_s)
                metrics.ISSUE_BATCH_EVENTS.observe(events)
        self._events.inc(total)
        if self._is_issue:
            metrics.ISSUES_PROCESSED.inc(len(completed))


def report_stuck(kind: str, keys: Sequence[str], handler: str, place: str, *, how: str | None = None) -> None:
    """A handler, or a function that it called in a thread, outlived its cancellation."""
    metrics.HANDLERS_STUCK.labels("mailbox", kind, how or "ignores_cancellation").inc()
    named = {"how": how} if how else {}
    log.error("mailbox.ignores_cancellation", kind=kind, keys=keys, handler=handler, where=place, **named)


@dataclass(slots=True, eq=False)
class HandlerRun:
    """One call of a handler, with its write and completion."""

    task: "asyncio.Task[Any]"
    # The task that has a slot of the worker: `task`, unless a batch is processed one by one.
    slot_task: "asyncio.Task[Any]"
    claims: Sequence[Claim]
    # When it is cancelled, on the clock of the event loop.
    deadline_s: float
    # Releases its resources (connections, with their locks) if it is abandoned.
    scope: HandlerScope
    # When the worker first saw that it holds none of its leases any more.
    lost_s: float = inf
    is_abandoned: bool = False


class Abandoned(Exception):
    """A handler ended after it was abandoned. Its result is ignored."""


class HandlerStuck(TrunklineError):
    """A handler was cancelled and runs on."""


class _PartlyLost(Exception):
    """Another worker owned some of a batch at its write. Nothing was written; those still held are processed again."""

    def __init__(self, still_ours: frozenset[str]):
        super().__init__(f"{len(still_ours)} are still ours")
        self.still_ours = still_ours


class MailboxLeaseLost(Exception):
    """Another worker owns these mailboxes now: this run must write nothing."""


class Leases:
    def __init__(
        self, database: Database, kind: str, lease_s: float, *, on_beat: Callable[[], None] = lambda: None
    ):
        self._database = database
        self._kind = kind
        self._lease_s = lease_s
        self._on_beat = on_beat
        self._held: dict[int, Claim] = {}
        self._cancellable: dict[int, asyncio.Task[object]] = {}
        self._heart: asyncio.Task[None] | None = None

    @contextmanager
    def kept(self, pieces: Sequence[ClaimedMailbox]) -> Iterator[None]:
        """Renew the leases of these until the end of the block."""
        for piece in pieces:
            self._held[piece.claim.fence] = piece.claim
        if self._heart is None or self._heart.done() or self._heart.cancelling():
            self._heart = asyncio.create_task(self._beat(), name="leases")
        try:
            yield
        finally:
            for piece in pieces:
                self._held.pop(piece.claim.fence, None)
            if not self._held:
                self._heart.cancel()

    @contextmanager
    def cancelled_if_lost(self, claims: Sequence[Claim]) -> Iterator[None]:
        """Leave the block with `MailboxLeaseLost` once this worker holds none of these. Never around a commit:
        committed work must not be reported as lost."""
        task = asyncio.current_task()
        assert task is not None
        for claim in claims:
            self._cancellable[claim.fence] = task
        try:
            yield
        except asyncio.CancelledError:
            if any(map(self.is_kept, claims)) or task.uncancel() > 0:
                raise
            raise MailboxLeaseLost(f"{len(claims)} mailboxes of kind {self._kind}") from None
        finally:
            for claim in claims:
                self._cancellable.pop(claim.fence, None)

    def drop(self, claims: Sequence[Claim]) -> None:
        """Stop renewing these."""
        for claim in claims:
            self._held.pop(claim.fence, None)
            self._cancellable.pop(claim.fence, None)

    def is_kept(self, claim: Claim) -> bool:
        return claim.fence in self._held

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)
            self._on_beat()
            await self.renew()

    async def renew(self) -> None:
        """Renew all of them now."""
        if not self._held:
            return
        try:
            async with self._database.connection() as conn:
                lost = await mailboxes.renew(
                    conn, self._kind, list(self._held.values()), lease_s=self._lease_s
                )
        except Exception as error:  # the loop must go on: without renewals every lease would be lost
            log.warning(
                "mailbox.leases_not_renewed", kind=self._kind, count=len(self._held), error=describe(error)
            )
            return
        for fence in lost:
            self._held.pop(fence, None)
            task = self._cancellable.pop(fence, None)
            if task is not None and task not in self._cancellable.values():
                task.cancel()
