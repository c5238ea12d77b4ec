"""What was learnt of calls after their end. A row moves from ENRICHING once."""

from dataclasses import dataclass

from trunkline.store.database import Connection
from trunkline.store.rows import pick_or_none
from trunkline.store.sql import query
from trunkline.store.tenants import Tenant

_INSERT = query("enrichments/insert")
_GET = query("enrichments/get")
_COMPLETE = query("enrichments/complete")


@dataclass(frozen=True, slots=True)
class Item:
    item_id: str
    status: str
    source: str
    recording_ref: str | None
    transcript: str | None
    data: str | None


@dataclass(frozen=True, slots=True)
class Enriched:
    """`data` is JSON."""

    recording_ref: str | None = None
    transcript: str | None = None
    data: str | None = None


async def insert(tx: Connection, item_id: str, tenant: Tenant, source: str) -> bool:
    """Whether the item is new."""
    return await tx.fetchval(_INSERT, item_id, tenant.reseller_id, tenant.merchant_id, source) is not None


async def get(conn: Connection, item_id: str) -> Item | None:
    return pick_or_none(Item, await conn.fetchrow(_GET, item_id))


async def complete(tx: Connection, item_id: str, found: Enriched) -> bool:
    """False: somebody else was faster, or the item was discarded."""
    return (
        await tx.fetchval(_COMPLETE, item_id, found.recording_ref, found.transcript, found.data) is not None
    )
