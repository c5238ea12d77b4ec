"""Kinds of mailboxes that external systems may append to, with their owners. Secrets arrive here sealed."""

from trunkline.schema.mailbox_kinds import MailboxKind
from trunkline.store.database import Connection
from trunkline.store.sql import Area, query
from trunkline.store.tables import Table
from trunkline.store.tenants import Tenant

_SQL = Area("mailbox_kinds")


KINDS = Table(MailboxKind, get=_SQL.get, select=_SQL.list, insert=query("mailbox_kinds/insert"), key="kind")
get = KINDS.get


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
    return KINDS.row(await tx.fetchrow(_SQL.rotate, kind, secret_sealed, overlap_s))


async def delete(tx: Connection, kind: str) -> bool:
    """False: it has mailboxes."""
    return await tx.fetchval(_SQL.delete, kind) is not None
