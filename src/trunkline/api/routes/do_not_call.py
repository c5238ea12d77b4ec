"""Do-not-call lists: of a merchant, of a reseller for all its merchants, of the platform for all tenants."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, LeadsKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.errors import invalid
from trunkline.api.models import (
    DELETE_ERRORS,
    MERCHANT,
    READ_ERRORS,
    RESELLER,
    WRITE_ERRORS,
    Body,
    Name,
    Owned,
    require_found,
)
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import LAST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.leads import phones
from trunkline.leads.ingest import FieldProblem, Moment, ObjectId, Text
from trunkline.store import do_not_call
from trunkline.store.do_not_call import DoNotCallEntry

router = APIRouter(prefix=f"{API_ROOT}/do-not-call", tags=["policy"])

BULK_MAX = 10_000

Phone = Annotated[Text, Field(min_length=1, max_length=phones.TEXT_MAX)]


class _Entry(Body):
    reseller_id: ObjectId | None = RESELLER
    merchant_id: ObjectId | None = MERCHANT
    reason: Name = Field("asked", max_length=200, description="Why the person is not called.")
    expires_at: Moment | None = Field(None, description="Left out: it does not expire.")


class EntryIn(_Entry):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"phone": "+14155550123", "reason": "asked us to stop"}]}
    )

    phone: Phone = Field(description="With its country code.")


class EntriesIn(_Entry):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"phones": ["+14155550123", "+14155550124"], "reason": "registry"}]}
    )

    phones: list[str] = Field(min_length=1, max_length=BULK_MAX)


class EntryOut(Owned):
    id: UUID
    phone: str
    reason: str
    expires_at: datetime | None
    created_by: str


class RowError(BaseModel):
    index: int = Field(description="Its index in `phones`, from 0.")
    error: str


class EntriesOut(BaseModel):
    added: int
    known: int = Field(description="Entries that existed before; reason and end were updated.")
    refused: list[RowError] = Field(
        description="Rows that are not phone numbers. The others are on the list."
    )


class EntryQuery(PageQuery):
    phone: Phone | None = Field(None, description="With its country code; a missing + is added.")


@router.post(
    "",
    status_code=201,
    response_model=EntryOut,
    responses=WRITE_ERRORS | {200: {"model": EntryOut, "description": "It was on the list before."}},
    summary="Put a phone on a do-not-call list",
)
async def add_entry(body: EntryIn, who: LeadsKey, api: Deps, response: Response) -> DoNotCallEntry:
    """Takes effect at the next dial: a lead to this person ends as BLACKLISTED, and a new one is refused with 403."""
    phone = phones.to_e164(body.phone, None)
    if isinstance(phone, phones.BadPhone):
        raise invalid(FieldProblem("phone", phone.error))
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        ((entry, is_new),) = await do_not_call.add(
            tx, [phone], owner=owner, reason=body.reason, actor=who.actor, expires_at=body.expires_at
        )
        await record(tx, who, "do_not_call.added", entry.id, owner, reason=body.reason)
    if not is_new:
        response.status_code = 200
    return entry


@router.post(
    "/bulk",
    response_model=EntriesOut,
    responses=WRITE_ERRORS,
    summary="Put many phones on a do-not-call list",
)
async def add_entries(body: EntriesIn, who: LeadsKey, api: Deps) -> EntriesOut:
    """A bad row does not affect the others. Idempotent."""
    parsed = [phones.to_e164(text, None) for text in body.phones]
    good = list(dict.fromkeys(phone for phone in parsed if isinstance(phone, str)))
    refused = [
        RowError(index=index, error=phone.error)
        for index, phone in enumerate(parsed)
        if isinstance(phone, phones.BadPhone)
    ]
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        entries = await do_not_call.add(
            tx, good, owner=owner, reason=body.reason, actor=who.actor, expires_at=body.expires_at
        )
        await record(tx, who, "do_not_call.added", "bulk", owner, reason=body.reason, count=len(entries))
    added = sum(is_new for _, is_new in entries)
    return EntriesOut(added=added, known=len(entries) - added, refused=refused)


@router.get("", response_model=PageOut[EntryOut], responses=READ_ERRORS, summary="List do-not-call entries")
async def list_entries(
    query: Annotated[EntryQuery, Query()], who: ReadKey, api: Deps
) -> Page[DoNotCallEntry]:
    """Newest first: your own, and those of your merchants."""
    cursors = Cursors("do_not_call", who, query)
    before = cursors.start_id(LAST_ID)
    async with api.store.reading() as connection:
        rows = await do_not_call.list_entries(
            connection, who.tenant, phone=_e164(query.phone), before=before, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda entry: entry.id)


@router.get("/{entry_id}", response_model=EntryOut, responses=READ_ERRORS, summary="Get a do-not-call entry")
async def get_entry(entry_id: UUID, who: ReadKey, api: Deps) -> DoNotCallEntry:
    async with api.store.reading() as connection:
        return require_found(await do_not_call.get(connection, who.tenant, entry_id), "entry")


@router.delete("/{entry_id}", status_code=204, responses=DELETE_ERRORS, summary="Take a phone off a list")
async def remove_entry(entry_id: UUID, who: AdminKey, api: Deps) -> None:
    async with api.store.writing() as tx:
        entry = require_found(await do_not_call.get(tx, who.tenant, entry_id), "entry")
        await do_not_call.remove(tx, entry_id)
        await record(tx, who, "do_not_call.removed", entry.id, entry.tenant)


def _e164(text: str | None) -> str | None:
    """The + of a query string arrives as a space when a client does not escape it."""
    if text is None:
        return None
    phone = phones.to_e164(f"+{text.strip().removeprefix('+')}", None)
    if isinstance(phone, phones.BadPhone):
        raise invalid(FieldProblem("phone", phone.error))
    return phone
