"""API keys: create, list, revoke. The key itself is shown once, in the response to its creation."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from trunkline.api import key_format
from trunkline.api.auth import API_ROOT, AdminKey
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
    created,
    require_found,
)
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import FIRST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import SCOPES, Principal, Scope
from trunkline.leads.ingest import FieldProblem, Moment, ObjectId
from trunkline.model import new_id
from trunkline.store import keys
from trunkline.store.keys import ApiKey, NewKey
from trunkline.store.tenants import Tenant

router = APIRouter(prefix=f"{API_ROOT}/keys", tags=["keys"])


class KeyIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "shop backend", "scopes": ["leads"], "merchant_id": "acme-store"}]
        }
    )

    name: Name = Field(description="What it is for.")
    scopes: list[Scope] = Field(
        min_length=1,
        max_length=len(SCOPES),
        json_schema_extra={"uniqueItems": True},
        description="`admin` may do everything, `leads` may create and read leads, `router` may route calls, "
        "`read` may read, `jobs` may enqueue jobs of types that allow it.",
    )
    reseller_id: ObjectId | None = RESELLER
    merchant_id: ObjectId | None = MERCHANT
    expires_at: Moment | None = Field(None, description="Left out: it does not expire.")


class KeyOut(Owned):
    id: UUID
    hint: str = Field(description="The beginning of the key.")
    name: str
    scopes: list[str]
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


class KeyCreatedOut(KeyOut):
    key: str = Field(description="The key. It is stored as a hash and can never be shown again.")


@router.post(
    "", status_code=201, response_model=KeyCreatedOut, responses=WRITE_ERRORS, summary="Create a key"
)
async def create_key(body: KeyIn, who: AdminKey, api: Deps) -> KeyCreatedOut:
    """For the tenant of your own key, or for one below it. Only this response shows the key."""
    if body.expires_at is not None and body.expires_at <= api.deps.clock.now():
        raise invalid(FieldProblem("expires_at", "This time is in the past."))
    if len(set(body.scopes)) < len(body.scopes):
        raise invalid(FieldProblem("scopes", "Name each scope once."))
    secret = key_format.mint()
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        key = created(await keys.insert(tx, _new(body, secret, who, owner)), "The key", body.name)
        await record(tx, who, "key.created", key.id, owner, name=key.name, scopes=key.scopes)
    return KeyCreatedOut(key=secret, **KeyOut.model_validate(key).model_dump())


@router.get("", response_model=PageOut[KeyOut], responses=READ_ERRORS, summary="List keys")
async def list_keys(query: Annotated[PageQuery, Query()], who: AdminKey, api: Deps) -> Page[ApiKey]:
    """Oldest first, revoked ones included: those of your own tenant and of all tenants below it."""
    cursors = Cursors("keys", who, query)
    after = cursors.start_id(FIRST_ID)
    async with api.store.reading() as connection:
        rows = await keys.list_keys(connection, who.tenant, after=after, limit=cursors.fetch_limit)
    return cursors.page(rows, lambda key: key.id)


@router.get("/{key_id}", response_model=KeyOut, responses=READ_ERRORS, summary="Get a key")
async def get_key(key_id: UUID, who: AdminKey, api: Deps) -> ApiKey:
    async with api.store.reading() as connection:
        return require_found(await keys.get(connection, who.tenant, key_id), "key")


@router.delete("/{key_id}", response_model=KeyOut, responses=DELETE_ERRORS, summary="Revoke a key")
async def revoke_key(key_id: UUID, who: AdminKey, api: Deps) -> ApiKey:
    """Takes effect within ten seconds in every process. It cannot be undone. Idempotent."""
    async with api.store.writing() as tx:
        before = require_found(await keys.get(tx, who.tenant, key_id), "key")
        key = require_found(await keys.revoke(tx, key_id), "key")
        if before.revoked_at is None:
            await record(tx, who, "key.revoked", key.id, key.tenant, name=key.name)
    api.verifier.forget(key_id)
    return key


def _new(body: KeyIn, secret: str, who: Principal, owner: Tenant) -> NewKey:
    return NewKey(
        id=new_id(),
        key_hash=key_format.digest(secret),
        hint=key_format.hint(secret),
        name=body.name,
        scopes=list(body.scopes),
        tenant=owner,
        created_by=who.actor,
        expires_at=body.expires_at,
    )
