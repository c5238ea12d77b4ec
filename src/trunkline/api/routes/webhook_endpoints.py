"""Webhook endpoints: URLs to which a tenant's events are sent, and the secrets that sign them."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import invalid
from trunkline.api.models import DELETE_ERRORS, READ_ERRORS, WRITE_ERRORS, created, require_found
from trunkline.api.ownership import owner_of, record, require_owner
from trunkline.api.paging import Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Sent, extended, get_one, list_page
from trunkline.api.routes.jobs import jobs_api
from trunkline.http.outgoing import check_url
from trunkline.jobs.platform import signing
from trunkline.leads.ingest import FieldProblem
from trunkline.model import new_id
from trunkline.schema.webhook_endpoints import (
    NewWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointChange,
    WebhookEndpointWithSecret,
)
from trunkline.store import webhook_endpoints
from trunkline.store.database import Connection
from trunkline.store.tenants import tenant_of
from trunkline.store.webhook_endpoints import ENDPOINTS

router = APIRouter(prefix=f"{API_ROOT}/webhook-endpoints", tags=["jobs"])

# How long the previous secret signs beside a new one.
OVERLAP_S = 24 * 3600.0


@router.post("", status_code=201, responses=WRITE_ERRORS, summary="Add a webhook endpoint")
async def create_webhook_endpoint(
    body: NewWebhookEndpoint, who: AdminKey, api: Deps
) -> WebhookEndpointWithSecret:
    """Events are sent to it, signed as https://www.standardwebhooks.com says, until it answers 2xx."""
    _check(api, body.url)
    secret = signing.new_secret()
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        if owner.is_platform:
            raise invalid(
                FieldProblem("reseller_id", "Name the reseller or merchant whose events are to be sent.")
            )
        endpoint = await ENDPOINTS.insert(
            tx,
            body,
            id=new_id(),
            reseller_id=owner.reseller_id,
            merchant_id=owner.merchant_id,
            secret_sealed=jobs_api(api).sealer.seal(secret),
        )
        made = created(endpoint, "An endpoint of this tenant with the URL", body.url)
        await record(tx, who, "webhook_endpoint.created", made.id, owner)
    return extended(WebhookEndpointWithSecret, made, secret=secret)


@router.get("", responses=READ_ERRORS, summary="List webhook endpoints")
async def list_webhook_endpoints(
    query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps
) -> Page[WebhookEndpoint]:
    """Newest first."""
    return await list_page(api, who, ENDPOINTS, query, name="webhook endpoints")


@router.get("/{endpoint_id}", responses=READ_ERRORS, summary="Get a webhook endpoint")
async def get_webhook_endpoint(endpoint_id: UUID, who: ReadKey, api: Deps) -> WebhookEndpoint:
    return await get_one(api, who, ENDPOINTS, endpoint_id, "webhook endpoint")


@router.patch("/{endpoint_id}", responses=WRITE_ERRORS, summary="Change a webhook endpoint")
async def update_webhook_endpoint(
    endpoint_id: UUID, body: Sent[WebhookEndpointChange], who: AdminKey, api: Deps
) -> WebhookEndpoint:
    """Omitted fields do not change."""
    url, changes = body.value.url, body.fields()
    if url is not None:
        _check(api, url)
    if body.value.status is not None:
        changes["disabled_reason"] = "By hand" if body.value.status == "disabled" else None
    async with api.store.writing() as tx:
        before = await _owned(tx, who, endpoint_id)
        if url is not None and url != before.url:
            taken = await webhook_endpoints.by_url(tx, tenant_of(before), url)
            created(None if taken else before, "An endpoint of this tenant with the URL", url)
        changed = await ENDPOINTS.update(tx, endpoint_id, changes)
        await record(tx, who, "webhook_endpoint.changed", endpoint_id, tenant_of(before))
    return require_found(changed, "webhook endpoint")


@router.post(
    "/{endpoint_id}/rotate-secret",
    responses=WRITE_ERRORS,
    summary="Change the secret of a webhook endpoint",
)
async def rotate_webhook_secret(endpoint_id: UUID, who: AdminKey, api: Deps) -> WebhookEndpointWithSecret:
    """Both secrets sign for a day, so that the receiver can switch."""
    secret = signing.new_secret()
    async with api.store.writing() as tx:
        before = await _owned(tx, who, endpoint_id)
        sealed = jobs_api(api).sealer.seal(secret)
        changed = await webhook_endpoints.rotate(tx, endpoint_id, sealed, overlap_s=OVERLAP_S)
        await record(tx, who, "webhook_endpoint.secret_rotated", endpoint_id, tenant_of(before))
    return extended(WebhookEndpointWithSecret, require_found(changed, "webhook endpoint"), secret=secret)


@router.delete(
    "/{endpoint_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove a webhook endpoint"
)
async def delete_webhook_endpoint(endpoint_id: UUID, who: AdminKey, api: Deps) -> Response:
    """Pending deliveries to it end as cancelled."""
    async with api.store.writing() as tx:
        before = await _owned(tx, who, endpoint_id)
        await webhook_endpoints.delete(tx, endpoint_id)
        await record(tx, who, "webhook_endpoint.removed", endpoint_id, tenant_of(before))
    return Response(status_code=204)


async def _owned(tx: Connection, who: Principal, endpoint_id: UUID) -> WebhookEndpoint:
    endpoint = require_found(await ENDPOINTS.get(tx, who.tenant, endpoint_id), "webhook endpoint")
    require_owner(who, tenant_of(endpoint), "webhook endpoint")
    return endpoint


def _check(api: Api, url: str) -> None:
    problem = check_url(url, allow_insecure=jobs_api(api).allow_insecure_webhooks)
    if problem is not None:
        raise invalid(FieldProblem("url", problem))
