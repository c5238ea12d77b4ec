"""Kinds of mailboxes with appends over HTTP: their owners, and the secrets that sign appends."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import ConfigDict, Field, StringConstraints

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid
from trunkline.api.models import (
    DELETE_ERRORS,
    MERCHANT,
    READ_ERRORS,
    RESELLER,
    WRITE_ERRORS,
    Body,
    Owned,
    created,
    require_found,
)
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.jobs import jobs_api
from trunkline.dispatch.calls import KIND as CALL
from trunkline.leads.ingest import FieldProblem, ObjectId
from trunkline.store import mailbox_kinds
from trunkline.store.database import Connection
from trunkline.store.mailbox_kinds import MailboxKind

router = APIRouter(prefix=f"{API_ROOT}/mailbox-kinds", tags=["mailboxes"])

# The platform's own kind, whose events come from carriers; and a word that is a path.
RESERVED = frozenset({CALL, "stuck"})
SECRET_BYTES = 32
# How long the previous secret stays valid beside a new one.
OVERLAP_S = 24 * 3600.0

KindName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
KindPath = Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$", description="A kind of mailbox.")]


class KindIn(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "issue", "merchant_id": "acme-store"}]}
    )

    kind: KindName = Field(description="The kind, as the handler declares it.")
    reseller_id: ObjectId | None = RESELLER
    merchant_id: ObjectId | None = MERCHANT


class KindOut(Owned):
    kind: str


class NewKindOut(KindOut):
    secret: str = Field(
        description="Signs appends of senders without an API key. Only this response shows it."
    )


@router.post(
    "", status_code=201, response_model=NewKindOut, responses=WRITE_ERRORS, summary="Open a kind of mailbox"
)
async def create_kind(body: KindIn, who: AdminKey, api: Deps) -> NewKindOut:
    """For appends over HTTP by this tenant. Handlers are the operator's, so this needs a key of the platform."""
    require_platform(who, "open a kind of mailbox")
    if body.kind in RESERVED:
        raise invalid(FieldProblem("kind", "This name is the platform's own. Choose another one."))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        made = await mailbox_kinds.insert(tx, body.kind, owner, jobs_api(api).sealer.seal(secret))
        kind = created(made, "A kind", body.kind)
        await record(tx, who, "mailbox_kind.created", kind.kind, owner)
    return _with_secret(kind, secret)


@router.get("", response_model=PageOut[KindOut], responses=READ_ERRORS, summary="List kinds of mailboxes")
async def list_kinds(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[MailboxKind]:
    """By name."""
    cursors = Cursors("mailbox kinds", who, query)
    after = cursors.start_key("")
    async with api.store.reading() as connection:
        rows = await mailbox_kinds.list_kinds(connection, who.tenant, after=after, limit=cursors.fetch_limit)
    return cursors.page(rows, lambda kind: kind.kind)


@router.post(
    "/{kind}/rotate-secret",
    response_model=NewKindOut,
    responses=WRITE_ERRORS,
    summary="Change the secret of a kind of mailbox",
)
async def rotate_secret(kind: KindPath, who: AdminKey, api: Deps) -> NewKindOut:
    """Both secrets are valid for a day, so that senders can switch."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    async with api.store.writing() as tx:
        before = await visible_kind(tx, who, kind)
        sealed = jobs_api(api).sealer.seal(secret)
        changed = await mailbox_kinds.rotate(tx, kind, sealed, overlap_s=OVERLAP_S)
        await record(tx, who, "mailbox_kind.secret_rotated", kind, before.tenant)
    return _with_secret(require_found(changed, "kind of mailbox"), secret)


@router.delete("/{kind}", status_code=204, responses=DELETE_ERRORS, summary="Close a kind of mailbox")
async def delete_kind(kind: KindPath, who: AdminKey, api: Deps) -> Response:
    """Nothing can be appended to it over HTTP any more. 409 `in_use` while it has mailboxes. Needs a key of the
    platform."""
    async with api.store.writing() as tx:
        before = await visible_kind(tx, who, kind)
        require_platform(who, "close a kind of mailbox")
        if not await mailbox_kinds.delete(tx, kind):
            raise conflict("in_use", "This kind cannot be removed while it has mailboxes.")
        await record(tx, who, "mailbox_kind.removed", kind, before.tenant)
    return Response(status_code=204)


async def visible_kind(conn: Connection, who: Principal, kind: str) -> MailboxKind:
    return require_found(await mailbox_kinds.get(conn, who.tenant, kind), "kind of mailbox")


def good_secrets(api: Api, sealed: list[bytes]) -> list[str]:
    sealer = jobs_api(api).sealer
    return [sealer.open(each) for each in sealed]


def _with_secret(kind: MailboxKind, secret: str) -> NewKindOut:
    return NewKindOut(secret=secret, **KindOut.model_validate(kind).model_dump())
