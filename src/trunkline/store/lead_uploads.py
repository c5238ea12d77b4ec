"""Bulk load of leads: staged by COPY, then inserted by one statement that finds duplicates."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from trunkline.errors import StoreUnavailable
from trunkline.store.database import Connection
from trunkline.store.leads import NewLead
from trunkline.store.sql import Area

_SQL = Area("leads")

_TABLE = "staged_leads"


class StagedLead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row that passed every check. Small, and not tracked by the garbage collector: thousands of them wait for their
    batch."""

    row_no: int
    payload: str
    id: UUID
    reseller_id: str
    merchant_id: str
    request_id: str
    request_hash: bytes
    phone: str
    timezone: str | None
    campaign_id: UUID | None
    pool_id: str
    priority: int
    max_attempts: int
    reporting_webhook_url: str | None
    scheduled_at: datetime | None
    due_at: datetime | None
    closes_at: datetime | None
    is_deferred: bool
    expires_at: datetime | None


# As they follow in a staged lead.
_NEW_VALUES = attrgetter(*StagedLead.__struct_fields__[2:])


def staged(row_no: int, payload: bytes, new: NewLead) -> StagedLead:
    return StagedLead(row_no, payload.decode(), *_NEW_VALUES(new))


@dataclass(frozen=True, slots=True)
class KnownLead:
    """An existing lead with this row's request_id, with the same content or with other."""

    lead_id: UUID
    is_same: bool


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """This person is on a do-not-call list."""


SkippedRows = dict[int, KnownLead | ListedPerson]


async def stage(tx: Connection) -> None:
    await tx.execute(_SQL.stage)


async def copy(tx: Connection, rows: AsyncIterator[tuple[Any, ...]], *, timeout_s: float) -> None:
    await tx.copy_records_to_table(
        _TABLE, records=rows, columns=list(StagedLead.__struct_fields__), timeout=timeout_s
    )


async def load(tx: Connection, staged: int, *, timeout_s: float) -> SkippedRows:
    """Insert leads for the staged rows; returns, by row number, why the others made none."""
    inserted = await tx.fetchval(_SQL.load, timeout=timeout_s)
    if inserted == staged:
        return {}
    skipped = await tx.fetch(_SQL.load_skipped, timeout=timeout_s)
    return {row["row_no"]: _known(row) for row in skipped}


def _known(row: Any) -> KnownLead | ListedPerson:
    if row["id"] is not None:
        return KnownLead(row["id"], row["is_same"])
    if row["is_listed"]:
        return ListedPerson()
    raise StoreUnavailable("the lead of a request_id was removed while it was read")
