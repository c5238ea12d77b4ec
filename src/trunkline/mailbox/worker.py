"""The way out of mailboxes: claim, handle, complete; three short steps and no transaction open in between.

A handler gets many mailboxes of its kind at once, each with all its pending events in order, works on them for as long
as its lease lasts, and returns a function that writes what follows. It runs in the transaction that completes the
mailboxes, so effects and completion are one. If the lease was lost meanwhile, nothing is written.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trunkline.bus import nudges
from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable, TrunklineError
from trunkline.loops.base import Loop
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database
from trunkline.store.mailboxes import Claim, Event
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

Batch = Mapping[str, Sequence[Event]]
AfterCommit = Callable[[], Awaitable[None]]
Write = Callable[[Connection], Awaitable[AfterCommit | None]]


class Handler(Protocol):
    """Handles mailboxes of one kind."""

    @property
    def kind(self) -> str: ...

    async def handle(self, batch: Batch) -> Write:
        """Work out what the events mean. No transaction is open. The answer writes it down inside the transaction that
        completes the mailboxes, and may return what is to be awaited after the commit."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    batch_max: int = 100
    lease_s: float = 15.0
    sweep_s: float = 1.0
    failures_max: int = 10
    backoff_first_s: float = 1.0
    backoff_max_s: float = 300.0


class LeaseLost(TrunklineError):
    """Another worker owns one of these mailboxes now; nothing of this batch may be written."""


class MailboxWorker(Loop):
    """Serves the mailboxes of one kind."""

    name = "mailbox"

    def __init__(self, database: Database, bus: Bus, handler: Handler, worker: str, limits: WorkerLimits):
        super().__init__(limits.sweep_s)
        self._database = database
        self._bus = bus
        self._handler = handler
        self._worker = worker
        self._limits = limits
        self._nudged: list[str] | None = None

    async def wait(self) -> None:
        """A nudge, or a second. After a full batch there may be more: look again at once."""
        try:
            keys = await nudges.receive(
                self._bus, self._handler.kind, self._worker,
                count=self._limits.batch_max, timeout_s=self.interval_s,
            )  # fmt: skip
        except BusUnavailable:
            keys = []
            await self.pause(self.interval_s)
        self._nudged = keys or None

    async def run_once(self) -> int:
        """Claim and handle until nothing is due; the number of mailboxes handled."""
        handled = 0
        keys, self._nudged = self._nudged, None
        while not self.stopping:
            claims = await self._claim(keys)
            if claims:
                await self._process(claims)
                handled += len(claims)
            if keys is None and len(claims) < self._limits.batch_max:
                break
            keys = None
        return handled

    async def _claim(self, keys: list[str] | None) -> list[Claim]:
        async with self._database.connection() as conn:
            return await mailboxes.claim(
                conn,
                self._handler.kind,
                keys,
                limit=self._limits.batch_max,
                worker=self._worker,
                lease_s=self._limits.lease_s,
            )

    async def _process(self, claims: list[Claim]) -> None:
        try:
            await self._handle(claims)
        except Exception as error:
            metrics.MAILBOX_FAILED.labels(self._handler.kind).inc()
            if len(claims) == 1:
                await self._fail(claims[0], error)
            else:
                # One poisonous mailbox must not condemn its neighbours.
                for claim in claims:
                    await self._process([claim])

    async def _handle(self, claims: list[Claim]) -> None:
        async with self._database.connection() as conn:
            batch = await mailboxes.events(conn, claims)
        write = await self._handler.handle(batch)
        async with self._database.transaction() as tx:
            after = await write(tx)
            completed = await mailboxes.complete(tx, claims)
            if len(completed) != len(claims):
                raise LeaseLost(f"{len(claims) - len(completed)} mailboxes of kind {self._handler.kind}")
        metrics.MAILBOX_PROCESSED.labels(self._handler.kind).inc(sum(map(len, batch.values())))
        if after is not None:
            await self._follow_up(after)

    async def _follow_up(self, after: AfterCommit) -> None:
        """What is committed stays done; what could not be said to Valkey is healed by its reconciler."""
        try:
            await after()
        except BusUnavailable as error:
            log.warning("mailbox.follow_up_failed", kind=self._handler.kind, error=str(error))

    async def _fail(self, claim: Claim, error: Exception) -> None:
        if isinstance(error, LeaseLost):
            return
        delay_s = min(self._limits.backoff_max_s, self._limits.backoff_first_s * 2**claim.failures)
        async with self._database.connection() as conn:
            status = await mailboxes.fail(
                conn, claim, f"{type(error).__name__}: {error}",
                failures_max=self._limits.failures_max, delay_s=delay_s,
            )  # fmt: skip
        level = log.error if status is MailboxStatus.DEAD else log.warning
        level("mailbox.failed", kind=claim.kind, key=claim.key, status=status, exc_info=error)
