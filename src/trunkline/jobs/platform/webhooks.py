"""`deliver_webhook`: sends an event to a tenant's endpoint, signed, until the endpoint acknowledges it.

    {"type": "lead.finished", "timestamp": "2025-01-01T12:00:00Z", "data": {…}}

Delivered at least once: the receiver recognises a repeat by its `webhook-id`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
from yarl import URL

from trunkline.clock import Clock
from trunkline.http.outgoing import FAILURES, Outgoing, was_refused
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Failed, Outcome, Policy
from trunkline.jobs.platform import signing
from trunkline.jobs.registry import JobType
from trunkline.jobs.run import Run
from trunkline.model import new_id
from trunkline.schema.webhook_endpoints import NewWebhookEndpoint, WebhookEndpoint
from trunkline.sealing import Sealer
from trunkline.store import webhook_endpoints
from trunkline.store.database import Connection, Database
from trunkline.store.jobs import Inserted
from trunkline.store.tenants import Tenant
from trunkline.store.webhook_endpoints import ENDPOINTS, WebhookTarget
from trunkline.telemetry import get_logger

log = get_logger(__name__)

MINUTE_S, HOUR_S = 60.0, 3600.0
# Ten attempts over three days: an endpoint that is down over a weekend misses nothing.
RETRIES_S = (
    5, 5 * MINUTE_S, 30 * MINUTE_S, 2 * HOUR_S, 5 * HOUR_S, 10 * HOUR_S, 14 * HOUR_S, 20 * HOUR_S, 24 * HOUR_S,
)  # fmt: skip
RETRY_AFTER_MAX_S = 24 * HOUR_S
ANSWER_BYTES_MAX = 500


class Webhook(msgspec.Struct):
    endpoint_id: UUID
    message_id: str
    type: str
    timestamp: datetime
    data: dict[str, Any]


DELIVER_WEBHOOK: JobType[Webhook] = JobType(
    "deliver_webhook",
    Webhook,
    # A slow endpoint may occupy four slots of a worker, not all of them.
    Policy(backoff_s=RETRIES_S, jitter=0.1, timeout_s=60.0, per_key=4),
)


async def deliver(
    tx: Connection,
    outbox: Outbox,
    endpoints: Sequence[UUID],
    tenant: Tenant,
    event_type: str,
    data: dict[str, Any],
    *,
    at: datetime,
    about: str | None = None,
) -> list[Inserted]:
    """Enqueue one message for each of these endpoints, all with the same id. With `about` the id stays the same when
    the message is enqueued again. Wake the workers after the commit."""
    message_id = f"msg_{about or new_id().hex}"
    return await outbox.enqueue_many(
        tx,
        [
            DELIVER_WEBHOOK.new(
                Webhook(endpoint_id, message_id, event_type, at, data),
                concurrency_key=str(endpoint_id),
                unique_key=f"{message_id}/{endpoint_id}",
                tenant=tenant,
            )
            for endpoint_id in endpoints
        ],
    )


async def ensure_endpoint(tx: Connection, sealer: Sealer, tenant: Tenant, url: str) -> WebhookEndpoint:
    """The endpoint of a URL that came with a request. A new one has a secret and subscribes to no events: it only gets
    messages that name its URL."""
    known = await webhook_endpoints.by_url(tx, tenant, url)
    if known is not None:
        return known
    sealed = sealer.seal(signing.new_secret())
    new = NewWebhookEndpoint(
        url, event_types=[], reseller_id=tenant.reseller_id, merchant_id=tenant.merchant_id
    )
    made = await ENDPOINTS.insert(tx, new, id=new_id(), secret_sealed=sealed)
    known = made or await webhook_endpoints.by_url(tx, tenant, url)
    assert known is not None, "a conflict waits for the other's commit"
    return known


class WebhookDelivery:
    """The handler."""

    def __init__(self, database: Database, sealer: Sealer, outgoing: Outgoing, clock: Clock):
        self._database = database
        self._sealer = sealer
        self._outgoing = outgoing
        self._clock = clock

    async def run(self, webhook: Webhook, run: Run) -> Outcome:
        async with self._database.connection() as conn:
            target = await webhook_endpoints.for_delivery(conn, webhook.endpoint_id)
        if target is None:
            return Cancel("The endpoint was removed")
        if target.status != "active":
            return Cancel("The endpoint is disabled")
        try:
            return await self._send(target, webhook)
        except FAILURES as error:
            if was_refused(error):
                return Failed("address_refused", str(error), final=True)
            code = "timeout" if isinstance(error, TimeoutError) else "not_reached"
            return Failed(code, f"{type(error).__name__}: {error}")

    async def _send(self, target: WebhookTarget, webhook: Webhook) -> Outcome:
        body = body_of(webhook)
        sent_at = self._clock.now()
        sealed = [target.secret_sealed, target.old_secret_sealed]
        keys = [self._sealer.open(secret) for secret in sealed if secret is not None]
        headers = signing.signed_headers(webhook.message_id, int(sent_at.timestamp()), body, keys)
        headers["Content-Type"] = "application/json"
        async with self._outgoing.request("POST", target.url, body=body, headers=headers) as answer:
            if 200 <= answer.status < 300:
                return Done({"status": answer.status})
            if answer.status != 410:
                return await _failed(answer, sent_at)
        async with self._database.connection() as conn:
            if await webhook_endpoints.disable(conn, target.id, "It answered 410 Gone"):
                host = URL(target.url).host
                log.warning("jobs.webhook_endpoint_disabled", endpoint_id=target.id, host=host)
        return Cancel("The endpoint answered 410 Gone and is disabled")


def body_of(webhook: Webhook) -> bytes:
    return msgspec.json.encode(
        {
            "type": webhook.type,
            "timestamp": webhook.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "data": webhook.data,
        }
    )


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds or a date, as HTTP allows; None for anything else, or beyond `RETRY_AFTER_MAX_S`."""
    if value is None:
        return None
    try:
        wait_s = (
            float(value)
            if value.strip().isdecimal()
            else (parsedate_to_datetime(value) - now).total_seconds()
        )
    except (ValueError, TypeError):
        return None
    return wait_s if 0 < wait_s <= RETRY_AFTER_MAX_S else None


async def _failed(answer: aiohttp.ClientResponse, now: datetime) -> Failed:
    if 300 <= answer.status < 400:
        return Failed(f"http_{answer.status}", "It answered with a redirect, and redirects are not followed")
    text = (await answer.content.read(ANSWER_BYTES_MAX)).decode("utf-8", "replace")
    wait_s = retry_after_s(answer.headers.get("Retry-After"), now) if answer.status in (429, 503) else None
    return Failed(f"http_{answer.status}", text, retry_in_s=wait_s)
