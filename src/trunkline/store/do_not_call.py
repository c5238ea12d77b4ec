"""Do-not-call lists of a merchant, of a reseller, of the platform. Checked at ingest and inside every intent."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from trunkline.model import new_id
from trunkline.schema.do_not_call import DoNotCallEntry
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tables import LAST_ID, Table
from trunkline.store.tenants import Tenant

_SQL = Area("do_not_call")


DO_NOT_CALL = Table(DoNotCallEntry, get=_SQL.get, select=_SQL.list, start=LAST_ID)


async def add(
    tx: Connection,
    phones: Sequence[str],
    *,
    owner: Tenant,
    reason: str,
    actor: str,
    expires_at: datetime | None = None,
) -> list[tuple[DoNotCallEntry, bool]]:
    """Each phone once; with every entry, whether it is new."""
    rows = await tx.fetch(
        _SQL.add,
        [new_id() for _ in phones],
        phones,
        owner.reseller_id,
        owner.merchant_id,
        reason,
        expires_at,
        actor,
    )
    return [(pick(DoNotCallEntry, row), row["is_new"]) for row in rows]


async def remove(tx: Connection, entry_id: UUID) -> None:
    await tx.execute(_SQL.remove, entry_id)
