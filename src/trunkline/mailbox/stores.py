"""The two stores that issue-centric processing is usually written against, on top of mailboxes.

For code that drives the steps itself instead of being called as a handler. The names are those of the interfaces
`IssueStore` and `EventLogStore`; every transition is guarded as in the worker.
"""

from collections.abc import Sequence

from trunkline.schema.queues import MailboxState
from trunkline.store import mailbox_admin, mailboxes
from trunkline.store.database import Connection, Database
from trunkline.store.mailbox_admin import StoredEvent
from trunkline.store.mailboxes import Claim, ClaimedMailbox, NewEvent
from trunkline.store.sql import Area

_SQL = Area("mailbox")

LIST_MAX = 1_000


def issue_id_of(integration_id: str, external_issue_id: str) -> str:
    """The key of an issue, from the id that its tracker has for it."""
    return f"{integration_id}/{external_issue_id}"


class IssueStore:
    """The entities of one kind, and their atomic transitions."""

    def __init__(self, database: Database, *, worker: str, kind: str = "issue", lease_s: float = 15.0):
        self._database = database
        self._worker = worker
        self._kind = kind
        self._lease_s = lease_s

    async def upsert(self, issue_id: str) -> MailboxState:
        """The issue, created if it is new."""
        async with self._database.transaction() as tx:
            await mailboxes.lock(tx, {(self._kind, issue_id)})
            row = await mailbox_admin.get(tx, self._kind, issue_id)
        assert row is not None, "locked"
        return row

    async def get_by_id(self, issue_id: str) -> MailboxState | None:
        async with self._database.connection() as conn:
            return await mailbox_admin.get(conn, self._kind, issue_id)

    async def get_by_integration_and_external_id(
        self, integration_id: str, external_issue_id: str
    ) -> MailboxState | None:
        """If several trackers share a kind, an issue is identified by both ids."""
        return await self.get_by_id(issue_id_of(integration_id, external_issue_id))

    async def queue_if_idle(self, issue_id: str) -> bool:
        """`idle → queued`. An append does this by itself, together with the event."""
        async with self._database.connection() as conn:
            return await conn.fetchval(_SQL.queue_if_idle, self._kind, issue_id) is not None

    async def claim_queued(self, issue_id: str) -> ClaimedMailbox | None:
        """`queued → processing`, also after an expired lease. None if another worker has it, or it has no events."""
        async with self._database.connection() as conn:
            claimed = await mailboxes.claim(
                conn,
                self._kind,
                [issue_id],
                limit=1,
                worker=self._worker,
                lease_s=self._lease_s,
                events_max=LIST_MAX,
            )
        return claimed[0] if claimed else None

    async def set_processed(self, tx: Connection, claimed: ClaimedMailbox) -> bool:
        """`processing → idle`, or `queued` if events came meanwhile. Last in its transaction. False: the lease was
        lost, and the transaction must not be committed."""
        return bool(await mailboxes.complete(tx, [claimed]))


class EventLogStore:
    """The events of the entities of one kind."""

    def __init__(self, database: Database, *, kind: str = "issue"):
        self._database = database
        self._kind = kind

    async def create(self, event: NewEvent) -> StoredEvent:
        """The event, or for a duplicate the first one. Its issue is queued with it."""
        stored, _ = await self.create_or_get(event)
        return stored

    async def create_or_get(self, event: NewEvent) -> tuple[StoredEvent, bool]:
        """The event, and whether it is new. Its issue is queued with it."""
        async with self._database.transaction() as tx:
            [receipt] = await mailboxes.append(tx, [event])
            stored = await mailbox_admin.get_event(tx, event.kind, event.key, receipt.seq)
        assert stored is not None, "just written, or known by its dedupe key"
        return stored, receipt.created

    async def get_by_id(self, issue_id: str, seq: int) -> StoredEvent | None:
        async with self._database.connection() as conn:
            return await mailbox_admin.get_event(conn, self._kind, issue_id, seq)

    async def list_unprocessed_by_issue(self, issue_id: str) -> list[StoredEvent]:
        async with self._database.connection() as conn:
            return await mailbox_admin.list_events(
                conn, self._kind, issue_id, which="unprocessed", after=0, limit=LIST_MAX
            )

    async def mark_batch_processed(self, tx: Connection, claim: Claim, seqs: Sequence[int]) -> int:
        """Returns how many were marked: 0 if the claim was lost."""
        return len(await tx.fetch(_SQL.mark, self._kind, claim.key, claim.fence, list(seqs)))

    async def mark_processed(self, tx: Connection, claim: Claim, seq: int) -> bool:
        return await self.mark_batch_processed(tx, claim, [seq]) == 1

    async def mark_failed(self, issue_id: str, seq: int, error: str) -> bool:
        """Set one event aside with its error; the issue goes on without it."""
        async with self._database.connection() as conn:
            return await mailbox_admin.set_aside(conn, self._kind, issue_id, seq, error)
