"""What the intent reads and writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import query

_LOCK_LEADS = query("dispatch/lock_leads")
_LOCK_NUMBERS = query("dispatch/lock_numbers")
_INSERT_ATTEMPTS = query("dispatch/insert_attempts")
_START_LEADS = query("dispatch/start_leads")


@dataclass(frozen=True, slots=True)
class LockedLead:
    id: UUID
    phone: str
    merchant_id: str
    reseller_id: str
    attempt_count: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class LockedNumber:
    id: UUID
    e164: str
    carrier: str
    account: str
    max_channels: int


@dataclass(frozen=True, slots=True)
class NewAttempt:
    id: UUID
    lead: LockedLead
    number: LockedNumber
    channel_no: int


async def lock_leads(
    tx: Connection, lead_ids: Sequence[UUID], versions: Sequence[int]
) -> dict[UUID, LockedLead]:
    """The leads that are still as granted, locked in id order."""
    rows = await tx.fetch(_LOCK_LEADS, lead_ids, versions)
    return {row["id"]: LockedLead(**row) for row in rows}


async def lock_numbers(tx: Connection, number_ids: Sequence[UUID]) -> dict[UUID, LockedNumber]:
    rows = await tx.fetch(_LOCK_NUMBERS, number_ids)
    return {row["id"]: LockedNumber(**row) for row in rows}


async def insert_attempts(tx: Connection, attempts: Sequence[NewAttempt], dialer: str) -> set[UUID]:
    """The ids that went in. Whoever is missing met a live attempt: of its lead, its channel or its person."""
    rows = await tx.fetch(
        _INSERT_ATTEMPTS,
        [a.id for a in attempts],
        [a.lead.id for a in attempts],
        [a.lead.attempt_count + 1 for a in attempts],
        [a.lead.reseller_id for a in attempts],
        [a.lead.merchant_id for a in attempts],
        [a.number.id for a in attempts],
        [a.channel_no for a in attempts],
        [a.number.carrier for a in attempts],
        [a.number.account for a in attempts],
        [a.lead.phone for a in attempts],
        [a.number.e164 for a in attempts],
        [a.lead.due_at for a in attempts],
        dialer,
    )
    return {row["id"] for row in rows}


async def start_leads(tx: Connection, lead_ids: Sequence[UUID]) -> None:
    await tx.execute(_START_LEADS, lead_ids)
