"""What happens to claimed mailboxes: handle, write, complete; or fail and come back later.

Three short steps with no transaction open in between. The mailboxes of a batch that fails are seen to one by one: the
one that spoils it goes back with a later turn, and its neighbours go on.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.crashpoint import crash_point
from trunkline.mailbox import measures
from trunkline.mailbox.handler import AfterCommit, Done, Handler, as_done
from trunkline.mailbox.leases import LeaseLost, Leases
from trunkline.mailbox.nudger import Nudger
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database, describe, is_of_database
from trunkline.store.mailboxes import Claim, Claimed, Completed
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
    # A handler that never returns would be renewed for ever.
    timeout_s: float = 600.0

    def delay_s(self, failures_before: int) -> float:
        return min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(failures_before, 32))


class Processor:
    def __init__(
        self,
        database: Database,
        handler: Handler,
        leases: Leases,
        nudger: Nudger,
        rule: FailureRule,
        *,
        lock_timeout_ms: int | None,
    ):
        self._database = database
        self._handler = handler
        self._leases = leases
        self._nudger = nudger
        self._rule = rule
        self._lock_timeout_ms = lock_timeout_ms

    async def process(self, pieces: Sequence[Claimed]) -> None:
        """See them through: afterwards each is completed, put back, dead, or somebody else's."""
        with self._leases.kept([piece.claim for piece in pieces]):
            await self._process(pieces)

    async def _process(self, pieces: Sequence[Claimed]) -> None:
        try:
            await self._attempt(pieces)
        except LeaseLost:
            log.warning("mailbox.lease_lost", kind=self._handler.kind, count=len(pieces))
        except _PartlyLost as lost:
            await self._process([piece for piece in pieces if piece.claim.key in lost.still_ours])
        except Exception as error:
            metrics.MAILBOX_FAILED.labels(self._handler.kind).inc()
            if len(pieces) == 1:
                await self._fail(pieces[0].claim, error)
            else:
                log.warning(
                    "mailbox.batch_failed", kind=self._handler.kind, count=len(pieces), error=describe(error)
                )
                await self._process_apart(pieces)

    async def _process_apart(self, pieces: Sequence[Claimed]) -> None:
        hands = asyncio.Semaphore(APART_MAX)

        async def process(piece: Claimed) -> None:
            async with hands:
                await self._process([piece])

        async with asyncio.TaskGroup() as group:
            for piece in pieces:
                group.create_task(process(piece))

    async def _attempt(self, pieces: Sequence[Claimed]) -> None:
        with span("mailbox.fold", kind=self._handler.kind, mailboxes=len(pieces)):
            done = await self._handle(pieces)
            completed, after = await self._commit(pieces, done)
        crash_point("mailbox.after_commit")
        self._count(pieces, completed)
        self._wake(completed, done)
        if after is not None:
            await self._follow_up(after)

    async def _handle(self, pieces: Sequence[Claimed]) -> Done:
        batch = {piece.claim.key: piece.events for piece in pieces if piece.events}
        if not batch:
            return Done()
        with self._leases.cancelled_if_lost([piece.claim for piece in pieces]):
            async with asyncio.timeout(self._rule.timeout_s):
                return as_done(await self._handler.handle(batch))

    async def _commit(
        self, pieces: Sequence[Claimed], done: Done
    ) -> tuple[dict[str, Completed], AfterCommit | None]:
        crash_point("mailbox.before_write")
        if not (done.write or done.send or done.parked):
            return await self._complete(pieces), None
        async with self._database.transaction() as tx:
            if done.write and self._lock_timeout_ms:
                await mailboxes.limit_waiting(tx, self._lock_timeout_ms)
            after = await done.write(tx) if done.write else None
            if done.send:
                await self._send(tx, pieces, done)
            completed = await mailboxes.complete(tx, pieces)
            if len(completed) != len(pieces):
                raise _PartlyLost(frozenset(completed))
            if done.parked:
                await mailboxes.park(tx, self._handler.kind, done.parked)
            crash_point("mailbox.before_commit")
        return completed, after

    async def _complete(self, pieces: Sequence[Claimed]) -> dict[str, Completed]:
        """With nothing to write, one statement does it. What was lost takes nothing from the others."""
        async with self._database.connection() as conn:
            completed = await mailboxes.complete(conn, pieces)
        if len(completed) < len(pieces):
            log.warning("mailbox.lease_lost", kind=self._handler.kind, count=len(pieces) - len(completed))
        return completed

    async def _send(self, tx: Connection, pieces: Sequence[Claimed], done: Done) -> None:
        """Locks are taken sorted, ours and the addressees' together: two handlers that write to each other's
        mailboxes would otherwise wait for each other."""
        ours = {(piece.claim.kind, piece.claim.key) for piece in pieces}
        await mailboxes.lock(tx, ours | {(event.kind, event.key) for event in done.send})
        await mailboxes.append(tx, done.send)

    def _count(self, pieces: Sequence[Claimed], completed: dict[str, Completed]) -> None:
        for piece in pieces:
            if mailbox := completed.get(piece.claim.key):
                measures.processed(self._handler.kind, len(piece.events), mailbox.took.total_seconds())

    def _wake(self, completed: dict[str, Completed], done: Done) -> None:
        """More has come meanwhile, here or for those we wrote to."""
        again = [key for key, mailbox in completed.items() if mailbox.status is MailboxStatus.QUEUED]
        if again:
            self._nudger.wake(self._handler.kind, again)
        for event in done.send:
            self._nudger.wake(event.kind, [event.key])
        for parked in done.parked:
            metrics.MAILBOX_PARKED.labels(self._handler.kind).inc()
            log.error(
                "mailbox.event_parked",
                kind=self._handler.kind,
                key=parked.key,
                seq=parked.seq,
                error=parked.error,
            )

    async def _follow_up(self, after: AfterCommit) -> None:
        """What is committed stays done; what could not be said to others is healed by their reconcilers."""
        try:
            await after()
        except Exception as error:
            log.warning(
                "mailbox.follow_up_failed", kind=self._handler.kind, error=describe(error), exc_info=error
            )

    async def _fail(self, claim: Claim, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}".rstrip(": ").replace("\x00", "")[:ERROR_LENGTH_MAX]
        async with self._database.connection() as conn:
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
            else:
                log.warning("mailbox.failed", failures=claim.failures + 1, exc_info=error)


class _PartlyLost(Exception):
    """Some of a batch were no longer ours when it was to be written. Nothing was; those that are ours go on."""

    def __init__(self, still_ours: frozenset[str]):
        super().__init__(f"{len(still_ours)} are still ours")
        self.still_ours = still_ours
