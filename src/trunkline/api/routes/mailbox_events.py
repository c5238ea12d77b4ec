"""Appends to mailboxes over HTTP: with a key, or signed with the secret of the kind."""

from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import ConfigDict, Field

from trunkline.api import event_signature
from trunkline.api.auth import API_ROOT, require_scope, unauthorized
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, invalid
from trunkline.api.models import WRITE_ERRORS, Body, Out
from trunkline.api.openapi import SIGNATURE
from trunkline.api.principal import Principal
from trunkline.api.routes.mailbox_kinds import KindPath, good_secrets, visible_kind
from trunkline.leads import payloads
from trunkline.leads.ingest import FieldProblem, Text
from trunkline.mailbox.inbox import BadEvent, Inbox
from trunkline.store import mailbox_kinds
from trunkline.store.mailboxes import KEY_BYTES_MAX, NewEvent

router = APIRouter(prefix=f"{API_ROOT}/mailboxes", tags=["mailboxes"])

KeyPath = Annotated[
    str,
    Path(
        max_length=KEY_BYTES_MAX,
        pattern=r"^[^\x00]+$",
        description="The entity's name, such as `acme/site#12`, URL-encoded.",
    ),
]


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
    problem = payloads.problem(body.payload, bytes_max=api.deps.limits.payload_bytes_max)
    if problem is not None:
        raise invalid(FieldProblem("payload", problem))
    event = NewEvent(kind, key, body.dedupe_key or uuid4().hex, body.type, body.payload, body.urgent)
    try:
        receipt = await inbox_of(api).append(event)
    except BadEvent as error:
        raise invalid(FieldProblem("key", str(error))) from None
    if not receipt.created:
        response.status_code = 200
    return ReceiptOut(kind=kind, key=key, seq=receipt.seq, created=receipt.created)


def inbox_of(api: Api) -> Inbox:
    if api.deps.inbox is None:
        raise ApiError(
            503,
            "mailboxes_unavailable",
            "This process has no mailboxes. Send the request to one with the role api.",
        )
    return api.deps.inbox
