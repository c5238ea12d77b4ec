"""Processes claimed mailboxes: handle, write, complete; or fail and retry later.

Three short steps with no transaction open in between. After a failed batch its mailboxes are processed one by one: the
one that fails is retried later, and the others complete.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from trunkline.crashpoint import crash_point
from trunkline.errors import PoolEmpty, TrunklineError
from trunkline.handlers import HandlerScope, awaitable, callback_refusal
from trunkline.mailbox import measures
from trunkline.mailbox.handler import AfterCommit, BadHandler, Done, Handler, Write, as_done
from trunkline.mailbox.leases import Leases, MailboxLeaseLost
from trunkline.mailbox.notifier import MailboxNotifier
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database, describe, is_of_database, limit_waiting
from trunkline.store.mailboxes import Claim, ClaimedMailbox, Completed
from trunkline.telemetry import bind, get_logger, metrics, span

log = get_logger(__name__)

ERROR_LENGTH_MAX = 2_000
# How many mailboxes of a failed batch are processed concurrently. Each takes a connection for its transaction.
APART_MAX = 4


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
    leases: Leases
    notifier: MailboxNotifier
    rule: FailureRule
    lock_timeout_ms: int | None
    _runs: "dict[asyncio.Task[Any], HandlerRun]" = field(default_factory=dict, init=False)

    async def process(self, pieces: Sequence[ClaimedMailbox]) -> None:
        """Afterwards each mailbox is completed, queued again, dead, or another worker's."""
        slot_task = asyncio.current_task()
        assert slot_task is not None, "a coroutine runs in a task"
        with self.leases.kept([piece.claim for piece in pieces]):
            await self._process(pieces, slot_task)

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
        for claim in held:
            await self._fail(claim, error)

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
        deadline_s = asyncio.get_running_loop().time() + self.rule.timeout_s
        scope = HandlerScope("mailbox", self.handler.kind)
        attempt = HandlerRun(task, slot_task, [piece.claim for piece in pieces], deadline_s, scope)
        self._runs[task] = attempt
        scope.enter()
        try:
            with span("mailbox.fold", kind=self.handler.kind, mailboxes=len(pieces)):
                done = await self._handle(pieces, deadline_s)
                completed, after = await self._commit(pieces, done, attempt)
            crash_point("mailbox.after_commit")
            self._count(pieces, completed)
            self._wake(completed, done)
            if after is not None:
                attempt.deadline_s = asyncio.get_running_loop().time() + self.rule.timeout_s
                await self._follow_up(after, attempt.deadline_s)
        except Exception as error:
            if attempt.is_abandoned:
                raise Abandoned from error
            raise
        finally:
            self._runs.pop(task, None)

    async def _handle(self, pieces: Sequence[ClaimedMailbox], deadline_s: float) -> Done:
        batch = {piece.claim.key: piece.events for piece in pieces if piece.events}
        if not batch:
            return Done()
        with self.leases.cancelled_if_lost([piece.claim for piece in pieces]):
            async with asyncio.timeout_at(deadline_s):
                return as_done(await self.handler.handle(batch))

    async def _commit(
        self, pieces: Sequence[ClaimedMailbox], done: Done, attempt: "HandlerRun"
    ) -> tuple[dict[str, Completed], AfterCommit | None]:
        crash_point("mailbox.before_write")
        if not (done.write or done.send or done.parked):
            return await self._complete(pieces), None
        async with AsyncExitStack() as stack:
            tx = await self._begin(stack, attempt.deadline_s)
            if done.write and self.lock_timeout_ms:
                await limit_waiting(tx, self.lock_timeout_ms)
            after = await self._written(tx, done.write, attempt) if done.write else None
            if done.send:
                await self._send(tx, pieces, done)
            completed = await mailboxes.complete(tx, pieces)
            if len(completed) != len(pieces):
                raise _PartlyLost(frozenset(completed))
            if done.parked:
                await mailboxes.park(tx, self.handler.kind, done.parked)
            crash_point("mailbox.before_commit")
        return completed, after

    async def _begin(self, stack: AsyncExitStack, deadline_s: float) -> Connection:
        """Within the handler's timeout: past it, this would count as a handler that does not stop."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await stack.enter_async_context(self.database.transaction())
        except TimeoutError as error:
            raise PoolEmpty("No connection came free within the time of the handler.") from error

    async def _written(self, tx: Connection, write: Write, attempt: "HandlerRun") -> AfterCommit | None:
        """Before the completion and the commit, which nothing may interrupt: a committed write must not be reported as
        failed."""
        self._check("write", write)
        with attempt.scope.holding(partial(self.database.take_away, tx)):
            async with asyncio.timeout_at(attempt.deadline_s):
                after: AfterCommit | None = await awaitable(write(tx), write)
        if after is not None:
            self._check("function after the commit", after)
        return after

    def _check(self, what: str, function: Write | AfterCommit) -> None:
        """Called before the function has an effect, and before the commit that it would follow."""
        if (reason := callback_refusal(function)) is not None:
            raise BadHandler(f"The {what} of mailboxes of kind {self.handler.kind} cannot be run: {reason}")

    async def _complete(self, pieces: Sequence[ClaimedMailbox]) -> dict[str, Completed]:
        """Without a write, one statement completes all. A lost lease does not affect the others."""
        async with self.own.connection() as conn:
            completed = await mailboxes.complete(conn, pieces)
        if len(completed) < len(pieces):
            log.warning("mailbox.lease_lost", kind=self.handler.kind, count=len(pieces) - len(completed))
        return completed

    async def _send(self, tx: Connection, pieces: Sequence[ClaimedMailbox], done: Done) -> None:
        """Lock the claimed and the receiving mailboxes together, in sorted order: two handlers that send to each
        other's mailboxes would otherwise deadlock."""
        claimed = {(piece.claim.kind, piece.claim.key) for piece in pieces}
        await mailboxes.lock(tx, claimed | {(event.kind, event.key) for event in done.send})
        await mailboxes.append(tx, done.send)

    def _count(self, pieces: Sequence[ClaimedMailbox], completed: dict[str, Completed]) -> None:
        measures.processed(
            self.handler.kind,
            [
                (len(piece.events), mailbox.took.total_seconds())
                for piece in pieces
                if (mailbox := completed.get(piece.claim.key)) is not None
            ],
        )

    def _wake(self, completed: dict[str, Completed], done: Done) -> None:
        """Wake workers for mailboxes that got events meanwhile, and for the receivers of sent events."""
        again = [key for key, mailbox in completed.items() if mailbox.status is MailboxStatus.QUEUED]
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

    async def _follow_up(self, after: AfterCommit, deadline_s: float) -> None:
        """A failure here undoes nothing: the reconcilers of the other components repair what they missed."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await awaitable(after(), after)
        except Exception as error:
            log.warning(
                "mailbox.follow_up_failed", kind=self.handler.kind, error=describe(error), exc_info=error
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
