"""Mailboxes: waiting, stuck and dead ones, and the operations of an operator; appends, with a key or signed with the
secret of the kind."""

from typing import Annotated
from urllib.parse import quote, unquote
from uuid import uuid4

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from trunkline.api import event_signature
from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_scope, unauthorized
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, require_found
from trunkline.api.openapi import SIGNATURE
from trunkline.api.ownership import record
from trunkline.api.paging import Cursors, Items, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import extended
from trunkline.api.routes.mailbox_kinds import KindPath, good_secrets, visible_kind
from trunkline.leads.ingest import FieldProblem, payload_problem
from trunkline.mailbox.inbox import BadEvent, Inbox
from trunkline.schema.queues import (
    BATCH_MAX,
    COUNT_MAX,
    EVENTS_SHOWN,
    KEY_BYTES_MAX,
    SEQ_MAX,
    EventReceipt,
    EventToPark,
    MailboxDetail,
    MailboxesRename,
    MailboxesRenamed,
    MailboxesReplayed,
    MailboxEvent,
    MailboxReplay,
    MailboxState,
    MailboxSummary,
    NewMailboxEvent,
    QueueReason,
)
from trunkline.states import MailboxStatus
from trunkline.store import mailbox_admin, mailbox_kinds
from trunkline.store.database import Connection
from trunkline.store.mailbox_admin import Which
from trunkline.store.mailboxes import NewEvent
from trunkline.store.tenants import PLATFORM, Tenant, tenant_of

router = APIRouter(prefix=f"{API_ROOT}/mailboxes", tags=["mailboxes"])

# A key of 500 bytes, each of them escaped, in base64.
CURSOR_LENGTH_MAX = 2_100


KeyPath = Annotated[
    str,
    Path(
        max_length=KEY_BYTES_MAX,
        pattern=r"^[^\x00]+$",
        description="The entity's name, such as `acme/site#12`, URL-encoded.",
    ),
]


class KeyPageQuery(PageQuery):
    cursor: str | None = Field(
        None, max_length=CURSOR_LENGTH_MAX, description="`next_cursor` of the previous page."
    )


class MailboxQuery(KeyPageQuery):
    status: MailboxStatus | None = None


class EventQuery(PageQuery):
    which: Which = Field("all", description="`parked`: events that a handler could not read.")


class StuckQuery(PageQuery):
    in_hand_for_s: float = Field(
        600, ge=0, le=1e9, description="Claimed by one worker for at least this long."
    )


@router.get("", responses=READ_ERRORS, summary="Count mailboxes by kind and status")
async def summarize(who: ReadKey, api: Deps) -> Items[MailboxSummary]:
    """By kind and status. Idle mailboxes are not counted."""
    async with api.store.reading() as connection:
        kinds = await mailbox_kinds.names(connection, who.tenant)
        return Items(await mailbox_admin.summary(connection, kinds, count_max=COUNT_MAX))


@router.get("/stuck", responses=READ_ERRORS, summary="List mailboxes that are claimed for long")
async def list_stuck(query: Annotated[StuckQuery, Query()], who: ReadKey, api: Deps) -> Items[MailboxState]:
    """The longest first, of every kind. A handler is slow, or its worker died and the lease is long."""
    async with api.store.reading() as connection:
        kinds = await mailbox_kinds.names(connection, who.tenant)
        return Items(
            await mailbox_admin.stuck(
                connection, in_hand_for_s=query.in_hand_for_s, limit=query.limit, kinds=kinds
            )
        )


@router.get("/{kind}", responses=READ_ERRORS, summary="List mailboxes")
async def list_mailboxes(
    kind: KindPath, query: Annotated[MailboxQuery, Query()], who: ReadKey, api: Deps
) -> Page[MailboxState]:
    """Of one kind, by key."""
    return await mailbox_page(api, who, kind, query, query.status)


async def mailbox_page(
    api: Api, who: Principal, kind: str, query: PageQuery, status: MailboxStatus | None
) -> Page[MailboxState]:
    cursors = Cursors(f"mailboxes {kind}", who, query)
    after = unquote(cursors.start_key(""))
    async with api.store.reading() as connection:
        await _owner(connection, who, kind)
        rows = await mailbox_admin.list_mailboxes(
            connection, kind, status=status, after=after, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda mailbox: quote(mailbox.key, safe=""))


@router.post("/{kind}/replay", responses=WRITE_ERRORS, summary="Replay a kind")
async def replay_kind(kind: KindPath, body: QueueReason, who: AdminKey, api: Deps) -> MailboxesReplayed:
    """Queues all dead mailboxes of the kind again, with a failure count of zero."""
    inbox = inbox_of(api)
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        keys = await mailbox_admin.replay(tx, kind, limit=BATCH_MAX)
        await record(tx, who, "mailboxes.replayed", kind, owner, reason=body.reason, count=len(keys))
    inbox.wake(kind, keys)
    return MailboxesReplayed(replayed=len(keys))


@router.post("/{kind}/rename", responses=WRITE_ERRORS, summary="Rename a kind")
async def rename_kind(kind: KindPath, body: MailboxesRename, who: AdminKey, api: Deps) -> MailboxesRenamed:
    """Moves its mailboxes to another kind, with all their events. Skips those that a worker has claimed, and those
    whose key exists there."""
    inbox = inbox_of(api)
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        if await _owner(tx, who, body.to) != owner:
            raise conflict("kind_of_another", "The two kinds belong to different tenants.")
        keys, has_more = await mailbox_admin.rename(tx, kind, body.to, limit=BATCH_MAX)
        await record(
            tx, who, "mailboxes.renamed", kind, owner, reason=body.reason, to=body.to, count=len(keys)
        )
    inbox.wake(body.to, keys)
    return MailboxesRenamed(renamed=len(keys), left=has_more)


@router.get("/{kind}/{key:path}/events", responses=READ_ERRORS, summary="List the events of a mailbox")
async def list_events(
    kind: KindPath, key: KeyPath, query: Annotated[EventQuery, Query()], who: ReadKey, api: Deps
) -> Page[MailboxEvent]:
    """In their order, until their retention ends."""
    cursors = Cursors(f"events {kind} {key}", who, query)
    after = cursors.start_number(SEQ_MAX) if query.cursor else 0
    async with api.store.reading() as connection:
        await _mailbox(connection, who, kind, key)
        rows = await mailbox_admin.list_events(
            connection, kind, key, which=query.which, after=after, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda event: event.seq)


@router.post("/{kind}/{key:path}/replay", responses=WRITE_ERRORS, summary="Replay a mailbox")
async def replay_mailbox(
    kind: KindPath, key: KeyPath, body: MailboxReplay, who: AdminKey, api: Deps
) -> MailboxState:
    """Queues a dead mailbox again; or, with `seq`, appends one event that was set aside again."""
    inbox = inbox_of(api)
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        await _mailbox(tx, who, kind, key)
        if body.seq is None:
            if not await mailbox_admin.replay(tx, kind, key):
                raise conflict("mailbox_not_dead", "This mailbox is not dead. There is nothing to replay.")
        elif await mailbox_admin.replay_event(tx, kind, key, body.seq) is None:
            raise conflict("event_not_set_aside", "This mailbox has no parked event with this number.")
        subject = f"{kind}/{key}"
        await record(tx, who, "mailbox.replayed", subject, owner, reason=body.reason, seq=body.seq)
        mailbox = require_found(await mailbox_admin.get(tx, kind, key), "mailbox")
    inbox.wake(kind, [key])
    return mailbox


@router.post("/{kind}/{key:path}/set-aside", responses=WRITE_ERRORS, summary="Park an event")
async def set_aside(
    kind: KindPath, key: KeyPath, body: EventToPark, who: AdminKey, api: Deps
) -> MailboxState:
    """The mailbox goes on without the event, which is stored with the reason and can be replayed."""
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        await _mailbox(tx, who, kind, key)
        if not await mailbox_admin.set_aside(tx, kind, key, body.seq, body.reason):
            raise conflict("event_not_waiting", "This mailbox has no pending event with this number.")
        subject = f"{kind}/{key}"
        await record(tx, who, "mailbox.event_set_aside", subject, owner, reason=body.reason, seq=body.seq)
        return require_found(await mailbox_admin.get(tx, kind, key), "mailbox")


@router.get("/{kind}/{key:path}", responses=READ_ERRORS, summary="Get a mailbox")
async def get_mailbox(kind: KindPath, key: KeyPath, who: ReadKey, api: Deps) -> MailboxDetail:
    """With its last error and the events that wait."""
    async with api.store.reading() as connection:
        mailbox = await _mailbox(connection, who, kind, key)
        waiting = await mailbox_admin.list_events(
            connection, kind, key, which="unprocessed", after=mailbox.processed, limit=EVENTS_SHOWN
        )
    return extended(MailboxDetail, mailbox, events=waiting)


async def may_append(request: Request, kind: KindPath, key: KeyPath, api: Deps) -> None:
    """A key that sees the kind; or a signature, whose refusal does not reveal whether the kind exists."""
    who: Principal | None = request.state.principal
    if who is not None:
        require_scope(who, ("leads",))
        async with api.store.reading() as connection:
            await visible_kind(connection, who, kind)
        return
    async with api.store.reading() as connection:
        sealed = await mailbox_kinds.secrets(connection, kind)
    header, body = request.headers[event_signature.HEADER], await request.body()
    now_s = api.deps.clock.now().timestamp()
    if not event_signature.is_good(header, good_secrets(api, sealed), now_s, kind, key, body):
        raise unauthorized("The signature does not fit this kind, key and body, or is older than 5 minutes.")


@router.post(
    "/{kind}/{key:path}/events",
    status_code=201,
    responses=WRITE_ERRORS | {200: {"model": EventReceipt, "description": "This event was sent before."}},
    dependencies=[Depends(may_append)],
    openapi_extra={"security": [{SIGNATURE: []}]},
    summary="Append an event to a mailbox",
)
async def append_event(
    kind: KindPath, key: KeyPath, body: NewMailboxEvent, api: Deps, response: Response
) -> EventReceipt:
    """201 when the event is durable; it never waits for a worker. 200 if its `dedupe_key` is known to the mailbox.

    Instead of a key, `Trunkline-Signature: t=<unix seconds>,v1=<hex>` will do: the HMAC-SHA256 of
    `<t>.<kind>/<key>.<body>` with the secret of the kind.
    """
    if problem := payload_problem(body.payload, api.deps.limits.payload_bytes_max):
        raise invalid(problem)
    event = NewEvent(kind, key, body.dedupe_key or uuid4().hex, body.type, body.payload, body.urgent)
    try:
        receipt = await inbox_of(api).append(event)
    except BadEvent as error:
        raise invalid(FieldProblem("key", str(error))) from None
    if not receipt.created:
        response.status_code = 200
    return EventReceipt(kind=kind, key=key, seq=receipt.seq, created=receipt.created)


async def _owner(conn: Connection, who: Principal, kind: str) -> Tenant:
    """The owner of a kind, if this key may see it. The platform also sees kinds without appends over HTTP."""
    if who.tenant.is_platform:
        known = await mailbox_kinds.get(conn, PLATFORM, kind)
        return tenant_of(known) if known else PLATFORM
    return tenant_of(await visible_kind(conn, who, kind))


async def _mailbox(conn: Connection, who: Principal, kind: str, key: str) -> MailboxState:
    await _owner(conn, who, kind)
    return require_found(await mailbox_admin.get(conn, kind, key), "mailbox")


def inbox_of(api: Api) -> Inbox:
    if api.deps.inbox is None:
        raise ApiError(
            503,
            "mailboxes_unavailable",
            "This process has no mailboxes. Send the request to one with the role api.",
        )
    return api.deps.inbox
