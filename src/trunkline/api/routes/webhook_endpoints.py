"""Webhook endpoints: URLs to which a tenant's events are sent, and the secrets that sign them."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict, Field, StringConstraints

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import invalid
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
from trunkline.api.ownership import owner_of, record, require_owner
from trunkline.api.paging import LAST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.jobs import jobs_api
from trunkline.http.addresses import URL_MAX, check_url
from trunkline.jobs.platform import signing
from trunkline.leads.ingest import FieldProblem, ObjectId
from trunkline.model import new_id
from trunkline.store import webhook_endpoints
from trunkline.store.database import Connection
from trunkline.store.webhook_endpoints import Endpoint

router = APIRouter(prefix=f"{API_ROOT}/webhook-endpoints", tags=["jobs"])

# How long the previous secret signs beside a new one.
OVERLAP_S = 24 * 3600.0
EventType = Annotated[
    str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9_]*(\.[a-z0-9_]+)*)$", max_length=100)
]
Url = Annotated[str, StringConstraints(min_length=1, max_length=URL_MAX, pattern=r"^[\x21-\x7e]+$")]
_TYPES = "Such as `lead.finished`. `*` stands for all of them."


class EndpointIn(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://example.com/hooks", "event_types": ["*"]}]}
    )

    url: Url = Field(description="https, to a public address.")
    event_types: list[EventType] = Field(default=["*"], max_length=50, description=_TYPES)
    reseller_id: ObjectId | None = RESELLER
    merchant_id: ObjectId | None = MERCHANT


class EndpointChange(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "active"}]})

    url: Url | None = None
    event_types: list[EventType] | None = Field(None, max_length=50, description=_TYPES)
    status: Literal["active", "disabled"] | None = Field(
        None, description="A receiver that answers 410 disables its endpoint by itself."
    )


class EndpointOut(Owned):
    id: UUID
    url: str
    event_types: list[str]
    status: Literal["active", "disabled"]
    disabled_reason: str | None
    old_secret_until: datetime | None = Field(description="Until then both secrets sign.")
    updated_at: datetime


class NewSecretOut(EndpointOut):
    secret: str = Field(
        description="Only this response shows it. In the format of Standard Webhooks: `whsec_…`."
    )


@router.post(
    "", status_code=201, response_model=NewSecretOut, responses=WRITE_ERRORS, summary="Add a webhook endpoint"
)
async def create_endpoint(body: EndpointIn, who: AdminKey, api: Deps) -> NewSecretOut:
    """Events are sent to it, signed as https://www.standardwebhooks.com says, until it answers 2xx."""
    _check(api, body.url)
    secret = signing.new_secret()
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        if owner.is_platform:
            raise invalid(
                FieldProblem("reseller_id", "Name the reseller or merchant whose events are to be sent.")
            )
        sealed = jobs_api(api).sealer.seal(secret)
        endpoint = await webhook_endpoints.insert(tx, new_id(), owner, body.url, body.event_types, sealed)
        made = created(endpoint, "An endpoint of this tenant with the URL", body.url)
        await record(tx, who, "webhook_endpoint.created", made.id, owner)
    return _with_secret(made, secret)


@router.get("", response_model=PageOut[EndpointOut], responses=READ_ERRORS, summary="List webhook endpoints")
async def list_endpoints(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[Endpoint]:
    """Newest first."""
    cursors = Cursors("webhook endpoints", who, query)
    before = cursors.start_id(LAST_ID)
    async with api.store.reading() as connection:
        rows = await webhook_endpoints.list_endpoints(
            connection, who.tenant, before=before, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda endpoint: endpoint.id)


@router.get(
    "/{endpoint_id}", response_model=EndpointOut, responses=READ_ERRORS, summary="Get a webhook endpoint"
)
async def get_endpoint(endpoint_id: UUID, who: ReadKey, api: Deps) -> Endpoint:
    async with api.store.reading() as connection:
        return require_found(
            await webhook_endpoints.get(connection, who.tenant, endpoint_id), "webhook endpoint"
        )


@router.patch(
    "/{endpoint_id}", response_model=EndpointOut, responses=WRITE_ERRORS, summary="Change a webhook endpoint"
)
async def change_endpoint(endpoint_id: UUID, body: EndpointChange, who: AdminKey, api: Deps) -> Endpoint:
    """Omitted fields do not change."""
    if body.url is not None:
        _check(api, body.url)
    async with api.store.writing() as tx:
        before = await _owned(tx, who, endpoint_id)
        if body.url is not None and body.url != before.url:
            taken = await webhook_endpoints.by_url(tx, before.tenant, body.url)
            created(None if taken else before, "An endpoint of this tenant with the URL", body.url)
        changed = await webhook_endpoints.update(
            tx,
            endpoint_id,
            url=body.url,
            event_types=body.event_types,
            status=body.status,
            reason="By hand" if body.status == "disabled" else None,
        )
        await record(tx, who, "webhook_endpoint.changed", endpoint_id, before.tenant)
    return require_found(changed, "webhook endpoint")


@router.post(
    "/{endpoint_id}/rotate-secret",
    response_model=NewSecretOut,
    responses=WRITE_ERRORS,
    summary="Change the secret of a webhook endpoint",
)
async def rotate_secret(endpoint_id: UUID, who: AdminKey, api: Deps) -> NewSecretOut:
    """Both secrets sign for a day, so that the receiver can switch."""
    secret = signing.new_secret()
    async with api.store.writing() as tx:
        before = await _owned(tx, who, endpoint_id)
        sealed = jobs_api(api).sealer.seal(secret)
        changed = await webhook_endpoints.rotate(tx, endpoint_id, sealed, overlap_s=OVERLAP_S)
        await record(tx, who, "webhook_endpoint.secret_rotated", endpoint_id, before.tenant)
    return _with_secret(require_found(changed, "webhook endpoint"), secret)


@router.delete(
    "/{endpoint_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove a webhook endpoint"
)
async def delete_endpoint(endpoint_id: UUID, who: AdminKey, api: Deps) -> Response:
    """Pending deliveries to it end as cancelled."""
    async with api.store.writing() as tx:
        before = await _owned(tx, who, endpoint_id)
        await webhook_endpoints.delete(tx, endpoint_id)
        await record(tx, who, "webhook_endpoint.removed", endpoint_id, before.tenant)
    return Response(status_code=204)


async def _owned(tx: Connection, who: Principal, endpoint_id: UUID) -> Endpoint:
    endpoint = require_found(await webhook_endpoints.get(tx, who.tenant, endpoint_id), "webhook endpoint")
    require_owner(who, endpoint.tenant, "webhook endpoint")
    return endpoint


def _check(api: Api, url: str) -> None:
    problem = check_url(url, allow_insecure=jobs_api(api).allow_insecure_webhooks)
    if problem is not None:
        raise invalid(FieldProblem("url", problem))


def _with_secret(endpoint: Endpoint, secret: str) -> NewSecretOut:
    return NewSecretOut(secret=secret, **EndpointOut.model_validate(endpoint).model_dump())
