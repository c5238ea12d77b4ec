"""Kinds of mailboxes that external systems may append to, with their owners. Secrets arrive here sealed."""

from dataclasses import dataclass
from datetime import datetime

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("mailbox_kinds")


@dataclass(frozen=True, slots=True)
class MailboxKind:
    kind: str
    reseller_id: str | None
    merchant_id: str | None
    old_secret_until: datetime | None
    created_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


async def insert(tx: Connection, kind: str, tenant: Tenant, secret_sealed: bytes) -> MailboxKind | None:
    """None: there is a kind of this name."""
    row = await tx.fetchrow(_SQL.insert, kind, tenant.reseller_id, tenant.merchant_id, secret_sealed)
    return pick_or_none(MailboxKind, row)


async def get(conn: Connection, tenant: Tenant, kind: str) -> MailboxKind | None:
    return pick_or_none(
        MailboxKind, await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, kind)
    )


async def list_kinds(conn: Connection, tenant: Tenant, *, after: str, limit: int) -> list[MailboxKind]:
    rows = await conn.fetch(_SQL.list, tenant.reseller_id, tenant.merchant_id, after, limit)
    return [pick(MailboxKind, row) for row in rows]


async def names(conn: Connection, tenant: Tenant) -> list[str] | None:
    """The kinds whose mailboxes a tenant may see. None: all of them, also those that were not made by the API."""
    if tenant.is_platform:
        return None
    rows = await conn.fetch(_SQL.names, tenant.reseller_id, tenant.merchant_id)
    return [row["kind"] for row in rows]


async def secrets(conn: Connection, kind: str) -> list[bytes]:
    """The sealed secrets that are valid now; none if there is no such kind."""
    row = await conn.fetchrow(_SQL.secrets, kind)
    return [secret for secret in row if secret is not None] if row else []


async def rotate(tx: Connection, kind: str, secret_sealed: bytes, *, overlap_s: float) -> MailboxKind | None:
    return pick_or_none(MailboxKind, await tx.fetchrow(_SQL.rotate, kind, secret_sealed, overlap_s))


async def delete(tx: Connection, kind: str) -> bool:
    """False: it has mailboxes."""
    return await tx.fetchval(_SQL.delete, kind) is not None
