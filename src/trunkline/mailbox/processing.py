"""What happens to claimed mailboxes: handle, write, complete; or fail and come back later.

Three short steps with no transaction open in between. The mailboxes of a batch that fails are seen to one by one: the
one that spoils it goes back with a later turn, and its neighbours go on.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
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
from trunkline.store.database import Connection, Database, describe, is_of_database
from trunkline.store.mailboxes import Claim, ClaimedMailbox, Completed
from trunkline.telemetry import bind, get_logger, metrics, span

log = get_logger(__name__)

ERROR_LENGTH_MAX = 2_000
# How many of a failed batch are seen to at once. Each takes a connection for its transaction.
APART_MAX = 4


@dataclass(frozen=True, slots=True)
class FailureRule:
    """How often a mailbox may fail, and when it is tried again: after the first failure in a row, the second, …"""

    failures_max: int = 10
    backoff_first_s: float = 1.0
    backoff_max_s: float = 300.0
    # For all that a handler does: `handle`, and the writing that it returned. What it asked for after the commit has as
    # long again. One that never returns would be renewed for ever.
    timeout_s: float = 600.0

    def delay_s(self, failures_before: int) -> float:
        return min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(failures_before, 32))


class Processor:
    def __init__(
        self,
        database: Database,
        handler: Handler,
        leases: Leases,
        notifier: MailboxNotifier,
        rule: FailureRule,
        *,
        lock_timeout_ms: int | None,
        own: Database,
    ):
        # Connections of handlers' transactions. What they hold open starves nobody but handlers: completions that write
        # nothing and failures have others.
        self._database = database
        self._own = own
        self._handler = handler
        self._leases = leases
        self._notifier = notifier
        self._rule = rule
        self._lock_timeout_ms = lock_timeout_ms
        self._attempts: dict[asyncio.Task[Any], HandlerRun] = {}

    async def process(self, pieces: Sequence[ClaimedMailbox]) -> None:
        """See them through: afterwards each is completed, put back, dead, or somebody else's."""
        hand = asyncio.current_task()
        assert hand is not None, "a coroutine runs in a task"
        with self._leases.kept([piece.claim for piece in pieces]):
            await self._process(pieces, hand)

    @property
    def attempts(self) -> "list[HandlerRun]":
        return list(self._attempts.values())

    def of_task(self, task: "asyncio.Task[Any] | None") -> "HandlerRun | None":
        """What this task is at. Asked from another thread too."""
        return self._attempts.get(task) if task is not None else None

    async def abandon(self, attempt: "HandlerRun", error: Exception) -> None:
        """Its handler was told to stop and goes on: its mailboxes are let go of, and come back later. What the handler
        still does is refused by the fence."""
        self._attempts.pop(attempt.task, None)
        attempt.is_abandoned = True
        attempt.scope.give_up()
        ours = [claim for claim in attempt.claims if self._leases.is_kept(claim)]
        self._leases.give_up(ours)
        metrics.MAILBOX_FAILED.labels(self._handler.kind).inc()
        for claim in ours:
            await self._fail(claim, error)

    async def _process(self, pieces: Sequence[ClaimedMailbox], hand: "asyncio.Task[Any]") -> None:
        try:
            await self._attempt(pieces, hand)
        except MailboxLeaseLost:
            log.warning("mailbox.lease_lost", kind=self._handler.kind, count=len(pieces))
        except _PartlyLost as lost:
            await self._process([piece for piece in pieces if piece.claim.key in lost.still_ours], hand)
        except Abandoned:
            log.warning("mailbox.ended_after_all", kind=self._handler.kind, count=len(pieces))
        except Exception as error:
            metrics.MAILBOX_FAILED.labels(self._handler.kind).inc()
            if len(pieces) == 1:
                await self._fail(pieces[0].claim, error)
            else:
                log.warning(
                    "mailbox.batch_failed", kind=self._handler.kind, count=len(pieces), error=describe(error)
                )
                await self._process_apart(pieces, hand)

    async def _process_apart(self, pieces: Sequence[ClaimedMailbox], hand: "asyncio.Task[Any]") -> None:
        hands = asyncio.Semaphore(APART_MAX)

        async def process(piece: ClaimedMailbox) -> None:
            async with hands:
                await self._process([piece], hand)

        async with asyncio.TaskGroup() as group:
            for piece in pieces:
                group.create_task(process(piece))

    async def _attempt(self, pieces: Sequence[ClaimedMailbox], hand: "asyncio.Task[Any]") -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        deadline_s = asyncio.get_running_loop().time() + self._rule.timeout_s
        scope = HandlerScope("mailbox", self._handler.kind)
        attempt = HandlerRun(task, hand, [piece.claim for piece in pieces], deadline_s, scope)
        self._attempts[task] = attempt
        scope.enter()
        try:
            with span("mailbox.fold", kind=self._handler.kind, mailboxes=len(pieces)):
                done = await self._handle(pieces, deadline_s)
                completed, after = await self._commit(pieces, done, attempt)
            crash_point("mailbox.after_commit")
            self._count(pieces, completed)
            self._wake(completed, done)
            if after is not None:
                attempt.deadline_s = asyncio.get_running_loop().time() + self._rule.timeout_s
                await self._follow_up(after, attempt.deadline_s)
        except Exception as error:
            if attempt.is_abandoned:
                raise Abandoned from error
            raise
        finally:
            self._attempts.pop(task, None)

    async def _handle(self, pieces: Sequence[ClaimedMailbox], deadline_s: float) -> Done:
        batch = {piece.claim.key: piece.events for piece in pieces if piece.events}
        if not batch:
            return Done()
        with self._leases.cancelled_if_lost([piece.claim for piece in pieces]):
            async with asyncio.timeout_at(deadline_s):
                return as_done(await self._handler.handle(batch))

    async def _commit(
        self, pieces: Sequence[ClaimedMailbox], done: Done, attempt: "HandlerRun"
    ) -> tuple[dict[str, Completed], AfterCommit | None]:
        crash_point("mailbox.before_write")
        if not (done.write or done.send or done.parked):
            return await self._complete(pieces), None
        async with AsyncExitStack() as stack:
            tx = await self._begin(stack, attempt.deadline_s)
            if done.write and self._lock_timeout_ms:
                await mailboxes.limit_waiting(tx, self._lock_timeout_ms)
            after = await self._written(tx, done.write, attempt) if done.write else None
            if done.send:
                await self._send(tx, pieces, done)
            completed = await mailboxes.complete(tx, pieces)
            if len(completed) != len(pieces):
                raise _PartlyLost(frozenset(completed))
            if done.parked:
                await mailboxes.park(tx, self._handler.kind, done.parked)
            crash_point("mailbox.before_commit")
        return completed, after

    async def _begin(self, stack: AsyncExitStack, deadline_s: float) -> Connection:
        """Within the handler's time: past it, this would look like a handler that does not stop."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await stack.enter_async_context(self._database.transaction())
        except TimeoutError as error:
            raise PoolEmpty("No connection came free within the time of the handler.") from error

    async def _written(self, tx: Connection, write: Write, attempt: "HandlerRun") -> AfterCommit | None:
        """Before the completion and the commit, which nothing may interrupt: what is written must not be told as
        failed."""
        self._check("write", write)
        with attempt.scope.holding(partial(self._database.take_away, tx)):
            async with asyncio.timeout_at(attempt.deadline_s):
                after: AfterCommit | None = await awaitable(write(tx), write)
        if after is not None:
            self._check("function after the commit", after)
        return after

    def _check(self, what: str, function: Write | AfterCommit) -> None:
        """Before it has an effect, and before anything is committed that would have to follow."""
        if (reason := callback_refusal(function)) is not None:
            raise BadHandler(f"The {what} of mailboxes of kind {self._handler.kind} cannot be run: {reason}")

    async def _complete(self, pieces: Sequence[ClaimedMailbox]) -> dict[str, Completed]:
        """With nothing to write, one statement does it. What was lost takes nothing from the others."""
        async with self._own.connection() as conn:
            completed = await mailboxes.complete(conn, pieces)
        if len(completed) < len(pieces):
            log.warning("mailbox.lease_lost", kind=self._handler.kind, count=len(pieces) - len(completed))
        return completed

    async def _send(self, tx: Connection, pieces: Sequence[ClaimedMailbox], done: Done) -> None:
        """Locks are taken sorted, ours and the addressees' together: two handlers that write to each other's
        mailboxes would otherwise wait for each other."""
        ours = {(piece.claim.kind, piece.claim.key) for piece in pieces}
        await mailboxes.lock(tx, ours | {(event.kind, event.key) for event in done.send})
        await mailboxes.append(tx, done.send)

    def _count(self, pieces: Sequence[ClaimedMailbox], completed: dict[str, Completed]) -> None:
        for piece in pieces:
            if mailbox := completed.get(piece.claim.key):
                measures.processed(self._handler.kind, len(piece.events), mailbox.took.total_seconds())

    def _wake(self, completed: dict[str, Completed], done: Done) -> None:
        """More has come meanwhile, here or for those we wrote to."""
        again = [key for key, mailbox in completed.items() if mailbox.status is MailboxStatus.QUEUED]
        if again:
            self._notifier.wake(self._handler.kind, again)
        for event in done.send:
            self._notifier.wake(event.kind, [event.key])
        for parked in done.parked:
            metrics.MAILBOX_PARKED.labels(self._handler.kind).inc()
            log.error(
                "mailbox.event_parked",
                kind=self._handler.kind,
                key=parked.key,
                seq=parked.seq,
                error=parked.error,
            )

    async def _follow_up(self, after: AfterCommit, deadline_s: float) -> None:
        """What is committed stays done; what could not be said to others is healed by their reconcilers."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await awaitable(after(), after)
        except Exception as error:
            log.warning(
                "mailbox.follow_up_failed", kind=self._handler.kind, error=describe(error), exc_info=error
            )

    async def _fail(self, claim: Claim, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}".rstrip(": ").replace("\x00", "")[:ERROR_LENGTH_MAX]
        async with self._own.connection() as conn:
            status = await mailboxes.fail(
                conn,
                claim,
                words.encode("utf-8", "replace").decode(),
                failures_max=self._rule.failures_max,
                delay_s=self._rule.delay_s(claim.failures),
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


@dataclass(slots=True, eq=False)
class HandlerRun:
    """One call of a handler, with all that follows from it."""

    task: "asyncio.Task[Any]"
    # The one that has a slot of the worker's: this one, unless a batch is seen to one by one.
    hand: "asyncio.Task[Any]"
    claims: Sequence[Claim]
    # By then it was told to end, on the clock of the event loop.
    deadline_s: float
    # What it holds (connections of what it writes, with their locks) goes back if it is given up on.
    scope: HandlerScope
    # When it was first seen that none of its leases is ours any more.
    lost_s: float | None = None
    is_abandoned: bool = False


class Abandoned(Exception):
    """A handler ended after it had been given up on. What came of it counts for nothing."""


class HandlerStuck(TrunklineError):
    """A handler was told to stop and goes on."""


class _PartlyLost(Exception):
    """Some of a batch were no longer ours when it was to be written. Nothing was; those that are ours go on."""

    def __init__(self, still_ours: frozenset[str]):
        super().__init__(f"{len(still_ours)} are still ours")
        self.still_ours = still_ours
