"""Mailboxes: waiting, stuck and dead ones, and the operations of an operator; appends, with a key or signed with the
secret of the kind."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote
from uuid import uuid4

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from trunkline.api import event_signature
from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_scope, unauthorized
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, Out, require_found
from trunkline.api.openapi import SIGNATURE
from trunkline.api.ownership import record
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.controls import Reason
from trunkline.api.routes.mailbox_kinds import KindName, KindPath, good_secrets, visible_kind
from trunkline.leads.ingest import FieldProblem, Text, payload_problem
from trunkline.mailbox.inbox import BadEvent, Inbox
from trunkline.states import MailboxStatus
from trunkline.store import mailbox_admin, mailbox_kinds
from trunkline.store.database import Connection
from trunkline.store.mailbox_admin import MailboxRow, StoredEvent, Summary
from trunkline.store.mailboxes import KEY_BYTES_MAX, NewEvent
from trunkline.store.tenants import PLATFORM, Tenant, tenant_of

router = APIRouter(prefix=f"{API_ROOT}/mailboxes", tags=["mailboxes"])

# Events in the response for one mailbox. Further ones are in a list of their own.
EVENTS_SHOWN = 50
REPLAY_MAX = 1_000
SEQ_MAX = 2**63 - 1
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


class SummaryOut(Out):
    kind: str
    status: MailboxStatus
    mailboxes: int = Field(description=f"Counted up to {mailbox_admin.COUNT_MAX}.")
    events: int = Field(description="Pending events of the counted mailboxes.")
    oldest_s: float = Field(description="The longest time that one of them has waited.")


class SummariesOut(Out):
    items: list[SummaryOut]


class MailboxOut(Out):
    kind: str
    key: str
    processing_status: MailboxStatus
    pending: int = Field(description="Pending events.")
    appended: int = Field(description="The number of its last event.")
    processed: int = Field(description="Every event up to this number is processed or parked.")
    failures: int = Field(description="Failures in a row.")
    last_error: str | None
    locked_by: str | None = Field(description="The worker that has claimed it.")
    claimable_at: datetime | None = Field(
        description="If queued, when it is due; if processing, when its lease ends."
    )
    processing_started_at: datetime | None
    last_processed_at: datetime | None
    created_at: datetime


class MailboxesOut(Out):
    items: list[MailboxOut]


class EventOut(Out):
    seq: int
    dedupe_key: str
    type: str
    payload: dict[str, Any]
    created_at: datetime
    processed_at: datetime | None
    error: str | None = Field(description="Why it was parked.")


class EventIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"type": "comment.created", "payload": {"by": "ada"}, "dedupe_key": "delivery-4711"}]
        }
    )

    type: Text = Field(min_length=1, max_length=KEY_BYTES_MAX, description="What happened.")
    payload: dict[str, Any] = Field(default_factory=dict, description="Any JSON object.")
    dedupe_key: Text | None = Field(
        None,
        min_length=1,
        max_length=KEY_BYTES_MAX,
        description="A repeated key is the same event. Without a key, a repeated request appends another event.",
    )
    urgent: bool | None = Field(
        None, description="`false`: the event may wait for the next sweep of mailboxes, within a second."
    )


class ReceiptOut(Out):
    kind: str
    key: str
    seq: int = Field(description="The event's number in its mailbox.")
    created: bool = Field(description="`false`: the event was appended before.")


class MailboxDetailOut(MailboxOut):
    events: list[EventOut] = Field(description=f"The first {EVENTS_SHOWN} pending events.")


class KeyPageQuery(PageQuery):
    cursor: str | None = Field(
        None, max_length=CURSOR_LENGTH_MAX, description="`next_cursor` of the previous page."
    )


class MailboxQuery(KeyPageQuery):
    status: MailboxStatus | None = None


class EventQuery(PageQuery):
    which: Literal["all", "unprocessed", "parked"] = Field(
        "all", description="`parked`: events that a handler could not read."
    )


class StuckQuery(PageQuery):
    in_hand_for_s: float = Field(
        600, ge=0, le=1e9, description="Claimed by one worker for at least this long."
    )


class ReplayMailboxesIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The handler is fixed"}]})

    reason: Reason = Field(description="The reason, for the audit log.")
    seq: int | None = Field(
        None, ge=1, le=SEQ_MAX, description="One parked event. Left out: the dead mailbox."
    )


class SetAsideIn(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"seq": 7, "reason": "Its format is not supported"}]}
    )

    seq: int = Field(ge=1, le=SEQ_MAX, description="The number of a pending event.")
    reason: Reason = Field(description="The reason, stored with the event and in the audit log.")


class ReplayKindIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The handler is fixed"}]})

    reason: Reason = Field(description="The reason, for the audit log.")


class RenameIn(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"to": "ticket", "reason": "Its handler has another name"}]}
    )

    to: KindName = Field(description="The new kind.")
    reason: Reason = Field(description="The reason, for the audit log.")


class RenamedOut(Out):
    renamed: int = Field(description=f"At most {REPLAY_MAX} per request: repeat it until it is 0.")
    left: bool = Field(description="Whether mailboxes of the old kind are left.")


class ReplayedOut(Out):
    replayed: int = Field(description=f"At most {REPLAY_MAX} per request: repeat it until it is 0.")


@router.get(
    "", response_model=SummariesOut, responses=READ_ERRORS, summary="Count mailboxes by kind and status"
)
async def summarize(who: ReadKey, api: Deps) -> SummariesOut:
    """By kind and status. Idle mailboxes are not counted."""
    async with api.store.reading() as connection:
        kinds = await mailbox_kinds.names(connection, who.tenant)
        rows: Sequence[Summary] = await mailbox_admin.summary(
            connection, kinds, count_max=mailbox_admin.COUNT_MAX
        )
    return SummariesOut(items=[SummaryOut.model_validate(row) for row in rows])


@router.get(
    "/stuck",
    response_model=MailboxesOut,
    responses=READ_ERRORS,
    summary="List mailboxes that are claimed for long",
)
async def list_stuck(query: Annotated[StuckQuery, Query()], who: ReadKey, api: Deps) -> MailboxesOut:
    """The longest first, of every kind. A handler is slow, or its worker died and the lease is long."""
    async with api.store.reading() as connection:
        kinds = await mailbox_kinds.names(connection, who.tenant)
        rows = await mailbox_admin.stuck(
            connection, in_hand_for_s=query.in_hand_for_s, limit=query.limit, kinds=kinds
        )
    return MailboxesOut(items=[MailboxOut.model_validate(row) for row in rows])


@router.get("/{kind}", response_model=PageOut[MailboxOut], responses=READ_ERRORS, summary="List mailboxes")
async def list_mailboxes(
    kind: KindPath, query: Annotated[MailboxQuery, Query()], who: ReadKey, api: Deps
) -> Page[MailboxRow]:
    """Of one kind, by key."""
    return await mailbox_page(api, who, kind, query, query.status)


async def mailbox_page(
    api: Api, who: Principal, kind: str, query: PageQuery, status: MailboxStatus | None
) -> Page[MailboxRow]:
    cursors = Cursors(f"mailboxes {kind}", who, query)
    after = unquote(cursors.start_key(""))
    async with api.store.reading() as connection:
        await _owner(connection, who, kind)
        rows = await mailbox_admin.list_mailboxes(
            connection, kind, status=status, after=after, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda mailbox: quote(mailbox.key, safe=""))


@router.post("/{kind}/replay", response_model=ReplayedOut, responses=WRITE_ERRORS, summary="Replay a kind")
async def replay_kind(kind: KindPath, body: ReplayKindIn, who: AdminKey, api: Deps) -> ReplayedOut:
    """Queues all dead mailboxes of the kind again, with a failure count of zero."""
    inbox = inbox_of(api)
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        keys = await mailbox_admin.replay(tx, kind, limit=REPLAY_MAX)
        await record(tx, who, "mailboxes.replayed", kind, owner, reason=body.reason, count=len(keys))
    inbox.wake(kind, keys)
    return ReplayedOut(replayed=len(keys))


@router.post("/{kind}/rename", response_model=RenamedOut, responses=WRITE_ERRORS, summary="Rename a kind")
async def rename_kind(kind: KindPath, body: RenameIn, who: AdminKey, api: Deps) -> RenamedOut:
    """Moves its mailboxes to another kind, with all their events. Skips those that a worker has claimed, and those
    whose key exists there."""
    inbox = inbox_of(api)
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        if await _owner(tx, who, body.to) != owner:
            raise conflict("kind_of_another", "The two kinds belong to different tenants.")
        keys, has_more = await mailbox_admin.rename(tx, kind, body.to, limit=REPLAY_MAX)
        await record(
            tx, who, "mailboxes.renamed", kind, owner, reason=body.reason, to=body.to, count=len(keys)
        )
    inbox.wake(body.to, keys)
    return RenamedOut(renamed=len(keys), left=has_more)


@router.get(
    "/{kind}/{key:path}/events",
    response_model=PageOut[EventOut],
    responses=READ_ERRORS,
    summary="List the events of a mailbox",
)
async def list_events(
    kind: KindPath, key: KeyPath, query: Annotated[EventQuery, Query()], who: ReadKey, api: Deps
) -> Page[StoredEvent]:
    """In their order, until their retention ends."""
    cursors = Cursors(f"events {kind} {key}", who, query)
    after = cursors.start_number(SEQ_MAX) if query.cursor else 0
    async with api.store.reading() as connection:
        await _mailbox(connection, who, kind, key)
        rows = await mailbox_admin.list_events(
            connection, kind, key, which=query.which, after=after, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda event: event.seq)


@router.post(
    "/{kind}/{key:path}/replay", response_model=MailboxOut, responses=WRITE_ERRORS, summary="Replay a mailbox"
)
async def replay_mailbox(
    kind: KindPath, key: KeyPath, body: ReplayMailboxesIn, who: AdminKey, api: Deps
) -> MailboxRow:
    """Queues a dead mailbox again; or, with `seq`, appends one event that was set aside again."""
    inbox = inbox_of(api)
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        await _mailbox(tx, who, kind, key)
        await _replay(tx, kind, key, body.seq)
        subject = f"{kind}/{key}"
        await record(tx, who, "mailbox.replayed", subject, owner, reason=body.reason, seq=body.seq)
        mailbox = require_found(await mailbox_admin.get(tx, kind, key), "mailbox")
    inbox.wake(kind, [key])
    return mailbox


@router.post(
    "/{kind}/{key:path}/set-aside",
    response_model=MailboxOut,
    responses=WRITE_ERRORS,
    summary="Park an event",
)
async def set_aside(kind: KindPath, key: KeyPath, body: SetAsideIn, who: AdminKey, api: Deps) -> MailboxRow:
    """The mailbox goes on without the event, which is stored with the reason and can be replayed."""
    async with api.store.writing() as tx:
        owner = await _owner(tx, who, kind)
        await _mailbox(tx, who, kind, key)
        if not await mailbox_admin.set_aside(tx, kind, key, body.seq, body.reason):
            raise conflict("event_not_waiting", "This mailbox has no pending event with this number.")
        subject = f"{kind}/{key}"
        await record(tx, who, "mailbox.event_set_aside", subject, owner, reason=body.reason, seq=body.seq)
        return require_found(await mailbox_admin.get(tx, kind, key), "mailbox")


@router.get(
    "/{kind}/{key:path}", response_model=MailboxDetailOut, responses=READ_ERRORS, summary="Get a mailbox"
)
async def get_mailbox(kind: KindPath, key: KeyPath, who: ReadKey, api: Deps) -> MailboxDetailOut:
    """With its last error and the events that wait."""
    async with api.store.reading() as connection:
        mailbox = await _mailbox(connection, who, kind, key)
        waiting = await mailbox_admin.list_events(
            connection, kind, key, which="unprocessed", after=mailbox.processed, limit=EVENTS_SHOWN
        )
    return MailboxDetailOut(
        events=[EventOut.model_validate(event) for event in waiting],
        **MailboxOut.model_validate(mailbox).model_dump(),
    )


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
    response_model=ReceiptOut,
    responses=WRITE_ERRORS | {200: {"model": ReceiptOut, "description": "This event was sent before."}},
    dependencies=[Depends(may_append)],
    openapi_extra={"security": [{SIGNATURE: []}]},
    summary="Append an event to a mailbox",
)
async def append_event(
    kind: KindPath, key: KeyPath, body: EventIn, api: Deps, response: Response
) -> ReceiptOut:
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
    return ReceiptOut(kind=kind, key=key, seq=receipt.seq, created=receipt.created)


async def _replay(tx: Connection, kind: str, key: str, seq: int | None) -> None:
    if seq is None:
        if not await mailbox_admin.replay(tx, kind, key):
            raise conflict("mailbox_not_dead", "This mailbox is not dead. There is nothing to replay.")
    elif await mailbox_admin.replay_event(tx, kind, key, seq) is None:
        raise conflict("event_not_set_aside", "This mailbox has no parked event with this number.")


async def _owner(conn: Connection, who: Principal, kind: str) -> Tenant:
    """The owner of a kind, if this key may see it. The platform also sees kinds without appends over HTTP."""
    if who.tenant.is_platform:
        known = await mailbox_kinds.get(conn, PLATFORM, kind)
        return tenant_of(known) if known else PLATFORM
    return tenant_of(await visible_kind(conn, who, kind))


async def _mailbox(conn: Connection, who: Principal, kind: str, key: str) -> MailboxRow:
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
