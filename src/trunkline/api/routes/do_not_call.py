"""Do-not-call lists: of a merchant, of a reseller for all its merchants, of the platform for all tenants."""

from typing import Annotated
from uuid import UUID

from fastapi import Query, Response
from pydantic import Field

from trunkline.api.auth import AdminKey, LeadsKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.errors import invalid
from trunkline.api.models import require_found
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.resources import Routes, get_one, list_page
from trunkline.api.routes.leads import e164
from trunkline.leads import phones
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.do_not_call import (
    DoNotCallEntriesAdded,
    DoNotCallEntry,
    NewDoNotCallEntries,
    NewDoNotCallEntry,
    RefusedPhone,
)
from trunkline.schema.fields import PhoneText
from trunkline.store import do_not_call
from trunkline.store.do_not_call import DO_NOT_CALL
from trunkline.store.tenants import tenant_of

router = Routes("/do-not-call", "policy")


class EntryQuery(PageQuery):
    phone: PhoneText | None = Field(None, description="With its country code; a missing + is added.")


@router.post(
    "",
    status_code=201,
    responses={200: {"model": DoNotCallEntry, "description": "It was on the list before."}},
    summary="Put a phone on a do-not-call list",
)
async def add_do_not_call_entry(
    body: NewDoNotCallEntry, who: LeadsKey, api: Deps, response: Response
) -> DoNotCallEntry:
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


@router.post("/bulk", summary="Put many phones on a do-not-call list")
async def add_do_not_call_entries(
    body: NewDoNotCallEntries, who: LeadsKey, api: Deps
) -> DoNotCallEntriesAdded:
    """A bad row does not affect the others. Idempotent."""
    parsed = [phones.to_e164(text, None) for text in body.phones]
    good = list(dict.fromkeys(phone for phone in parsed if isinstance(phone, str)))
    refused = [
        RefusedPhone(index, phone.error)
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
    return DoNotCallEntriesAdded(added, len(entries) - added, refused)


@router.get("", summary="List do-not-call entries")
async def list_do_not_call_entries(
    query: Annotated[EntryQuery, Query()], who: ReadKey, api: Deps
) -> Page[DoNotCallEntry]:
    """Newest first: your own, and those of your merchants."""
    return await list_page(api, who, DO_NOT_CALL, query, e164(query.phone), name="do_not_call")


@router.get("/{entry_id}", summary="Get a do-not-call entry")
async def get_do_not_call_entry(entry_id: UUID, who: ReadKey, api: Deps) -> DoNotCallEntry:
    return await get_one(api, who, DO_NOT_CALL, entry_id, "entry")


@router.delete("/{entry_id}", status_code=204, summary="Take a phone off a list")
async def remove_do_not_call_entry(entry_id: UUID, who: AdminKey, api: Deps) -> None:
    async with api.store.writing() as tx:
        entry = require_found(await DO_NOT_CALL.get(tx, who.tenant, entry_id), "entry")
        await do_not_call.remove(tx, entry_id)
        await record(tx, who, "do_not_call.removed", entry.id, tenant_of(entry))
