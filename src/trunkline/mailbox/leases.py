"""Renews the leases of claimed mailboxes while their handlers run.

One statement renews all leases of a worker, three times per lease. A handler whose lease is lost all the same (this
process was paused, or Postgres was away) is cancelled: another worker has the mailbox, and the fence would refuse its
effects.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trunkline.store import mailboxes
from trunkline.store.database import Database, describe
from trunkline.store.mailboxes import Claim
from trunkline.telemetry import get_logger

log = get_logger(__name__)

BEATS_PER_LEASE = 3


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
    def kept(self, claims: Sequence[Claim]) -> Iterator[None]:
        """Renew these leases until the end of the block."""
        self._held.update((claim.fence, claim) for claim in claims)
        if self._heart is None or self._heart.done() or self._heart.cancelling():
            self._heart = asyncio.create_task(self._beat(), name="leases")
        try:
            yield
        finally:
            for claim in claims:
                self._held.pop(claim.fence, None)
            if not self._held:
                self._heart.cancel()

    @contextmanager
    def cancelled_if_lost(self, claims: Sequence[Claim]) -> Iterator[None]:
        """Leave the block with `MailboxLeaseLost` once this worker holds none of these. Never around a commit:
        committed work must not be reported as lost."""
        task = asyncio.current_task()
        assert task is not None
        fences = [claim.fence for claim in claims]
        self._cancellable.update(dict.fromkeys(fences, task))
        try:
            yield
        except asyncio.CancelledError:
            if any(fence in self._held for fence in fences) or task.uncancel() > 0:
                raise
            raise MailboxLeaseLost(f"{len(claims)} mailboxes of kind {self._kind}") from None
        finally:
            for fence in fences:
                self._cancellable.pop(fence, None)

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
            self._lose(fence)

    def _lose(self, fence: int) -> None:
        self._held.pop(fence, None)
        task = self._cancellable.pop(fence, None)
        if task is not None and task not in self._cancellable.values():
            task.cancel()
