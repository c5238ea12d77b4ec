"""API keys: create, list, revoke. The key itself is shown once, in the response to its creation."""

from typing import Annotated
from uuid import UUID

from fastapi import Query

from trunkline.api import key_format
from trunkline.api.auth import AdminKey
from trunkline.api.deps import Deps
from trunkline.api.errors import invalid
from trunkline.api.models import created, require_found
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.resources import Routes, extended, get_one, list_page
from trunkline.leads.ingest import FieldProblem
from trunkline.model import new_id
from trunkline.schema.keys import ApiKey, CreatedKey, NewKey
from trunkline.store import keys
from trunkline.store.keys import KEYS
from trunkline.store.tenants import tenant_of

router = Routes("/keys", "keys")


@router.post("", status_code=201, summary="Create a key")
async def create_key(body: NewKey, who: AdminKey, api: Deps) -> CreatedKey:
    """For the tenant of your own key, or for one below it. Only this response shows the key."""
    if body.expires_at is not None and body.expires_at <= api.deps.clock.now():
        raise invalid(FieldProblem("expires_at", "This time is in the past."))
    if len(set(body.scopes)) < len(body.scopes):
        raise invalid(FieldProblem("scopes", "Name each scope once."))
    secret = key_format.mint()
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        inserted = await KEYS.insert(
            tx,
            body,
            id=new_id(),
            key_hash=key_format.digest(secret),
            hint=key_format.hint(secret),
            reseller_id=owner.reseller_id,
            merchant_id=owner.merchant_id,
            created_by=who.actor,
        )
        key = created(inserted, "The key", body.name)
        await record(tx, who, "key.created", key.id, owner, name=key.name, scopes=key.scopes)
    return extended(CreatedKey, key, key=secret)


@router.get("", summary="List keys")
async def list_keys(query: Annotated[PageQuery, Query()], who: AdminKey, api: Deps) -> Page[ApiKey]:
    """Oldest first, revoked ones included: those of your own tenant and of all tenants below it."""
    return await list_page(api, who, KEYS, query, name="keys")


@router.get("/{key_id}", summary="Get a key")
async def get_key(key_id: UUID, who: AdminKey, api: Deps) -> ApiKey:
    return await get_one(api, who, KEYS, key_id, "key")


@router.delete("/{key_id}", summary="Revoke a key")
async def revoke_key(key_id: UUID, who: AdminKey, api: Deps) -> ApiKey:
    """Takes effect within ten seconds in every process. It cannot be undone. Idempotent."""
    async with api.store.writing() as tx:
        before = require_found(await KEYS.get(tx, who.tenant, key_id), "key")
        key = require_found(await keys.revoke(tx, key_id), "key")
        if before.revoked_at is None:
            await record(tx, who, "key.revoked", key.id, tenant_of(key), name=key.name)
    api.verifier.forget(key_id)
    return key
