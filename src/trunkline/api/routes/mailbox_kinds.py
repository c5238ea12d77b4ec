"""Kinds of mailboxes with appends over HTTP: their owners, and the secrets that sign appends."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid
from trunkline.api.models import DELETE_ERRORS, READ_ERRORS, WRITE_ERRORS, created, require_found
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import extended, list_page
from trunkline.api.routes.jobs import jobs_api
from trunkline.dispatch.calls import KIND as CALL
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.mailbox_kinds import KindName as KindName
from trunkline.schema.mailbox_kinds import MailboxKind, MailboxKindWithSecret, NewMailboxKind
from trunkline.store import mailbox_kinds
from trunkline.store.database import Connection
from trunkline.store.mailbox_kinds import KINDS
from trunkline.store.tenants import tenant_of

router = APIRouter(prefix=f"{API_ROOT}/mailbox-kinds", tags=["mailboxes"])

# The platform's own kind, whose events come from carriers; and a word that is a path.
RESERVED = frozenset({CALL, "stuck"})
SECRET_BYTES = 32
# How long the previous secret stays valid beside a new one.
OVERLAP_S = 24 * 3600.0

KindPath = Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$", description="A kind of mailbox.")]


@router.post("", status_code=201, responses=WRITE_ERRORS, summary="Open a kind of mailbox")
async def create_mailbox_kind(body: NewMailboxKind, who: AdminKey, api: Deps) -> MailboxKindWithSecret:
    """For appends over HTTP by this tenant. Handlers are the operator's, so this needs a key of the platform."""
    require_platform(who, "open a kind of mailbox")
    if body.kind in RESERVED:
        raise invalid(FieldProblem("kind", "This name is the platform's own. Choose another one."))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        made = await KINDS.insert(
            tx,
            body,
            reseller_id=owner.reseller_id,
            merchant_id=owner.merchant_id,
            secret_sealed=jobs_api(api).sealer.seal(secret),
        )
        kind = created(made, "A kind", body.kind)
        await record(tx, who, "mailbox_kind.created", kind.kind, owner)
    return extended(MailboxKindWithSecret, kind, secret=secret)


@router.get("", responses=READ_ERRORS, summary="List kinds of mailboxes")
async def list_mailbox_kinds(
    query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps
) -> Page[MailboxKind]:
    """By name."""
    return await list_page(api, who, KINDS, query, name="mailbox kinds")


@router.post(
    "/{kind}/rotate-secret",
    responses=WRITE_ERRORS,
    summary="Change the secret of a kind of mailbox",
)
async def rotate_mailbox_secret(kind: KindPath, who: AdminKey, api: Deps) -> MailboxKindWithSecret:
    """Both secrets are valid for a day, so that senders can switch."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    async with api.store.writing() as tx:
        before = await visible_kind(tx, who, kind)
        sealed = jobs_api(api).sealer.seal(secret)
        changed = await mailbox_kinds.rotate(tx, kind, sealed, overlap_s=OVERLAP_S)
        await record(tx, who, "mailbox_kind.secret_rotated", kind, tenant_of(before))
    return extended(MailboxKindWithSecret, require_found(changed, "kind of mailbox"), secret=secret)


@router.delete("/{kind}", status_code=204, responses=DELETE_ERRORS, summary="Close a kind of mailbox")
async def delete_mailbox_kind(kind: KindPath, who: AdminKey, api: Deps) -> Response:
    """Nothing can be appended to it over HTTP any more. 409 `in_use` while it has mailboxes. Needs a key of the
    platform."""
    async with api.store.writing() as tx:
        before = await visible_kind(tx, who, kind)
        require_platform(who, "close a kind of mailbox")
        if not await mailbox_kinds.delete(tx, kind):
            raise conflict("in_use", "This kind cannot be removed while it has mailboxes.")
        await record(tx, who, "mailbox_kind.removed", kind, tenant_of(before))
    return Response(status_code=204)


async def visible_kind(conn: Connection, who: Principal, kind: str) -> MailboxKind:
    return require_found(await KINDS.get(conn, who.tenant, kind), "kind of mailbox")


def good_secrets(api: Api, sealed: list[bytes]) -> list[str]:
    sealer = jobs_api(api).sealer
    return [sealer.open(each) for each in sealed]
