"""Webhook endpoints."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from trunkline.schema.fields import (
    CREATED_AT,
    FOR_MERCHANT,
    FOR_RESELLER,
    ITS_ID,
    OF_MERCHANT,
    UPDATED_AT,
    ObjectId,
    TextRule,
    about,
    body,
)

URL_MAX = 2048
EventType = Annotated[str, TextRule(r"^(\*|[a-z][a-z0-9_]*(\.[a-z0-9_]+)*)$", max_length=100)]
Url = Annotated[str, TextRule(r"^[\x21-\x7e]+$", 1, URL_MAX)]
EndpointStatus = Literal["active", "disabled"]

_URL = about("https, to a public address.")
_TYPES = about("Such as `lead.finished`. `*` stands for all of them.")
_NEW_TYPES = about("Such as `lead.finished`. `*` stands for all of them.", max_length=50)
_STATUS = about("A receiver that answers 410 disables its endpoint by itself.")


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """A URL to which a tenant's events are sent."""

    id: UUID = field(metadata=ITS_ID)
    reseller_id: str = field(metadata=about("The reseller whose events are sent."))
    merchant_id: str | None = field(metadata=OF_MERCHANT)
    url: str = field(metadata=_URL)
    event_types: list[str] = field(metadata=_TYPES)
    status: EndpointStatus = field(metadata=_STATUS)
    disabled_reason: str | None = field(metadata=about("Why it is disabled."))
    old_secret_until: datetime | None = field(metadata=about("Until then both secrets sign."))
    created_at: datetime = field(metadata=CREATED_AT)
    updated_at: datetime = field(metadata=UPDATED_AT)


@dataclass(frozen=True, slots=True)
class WebhookEndpointWithSecret(WebhookEndpoint):
    """A webhook endpoint, with its signing secret."""

    secret: str = field(
        repr=False,
        metadata=about("Only this response shows it. In the format of Standard Webhooks: `whsec_…`."),
    )


@dataclass(frozen=True, slots=True)
class NewWebhookEndpoint:
    """Adds a webhook endpoint."""

    __pydantic_config__ = body({"url": "https://example.com/hooks", "event_types": ["*"]})

    url: Url = field(metadata=_URL)
    _: KW_ONLY
    event_types: list[EventType] = field(default_factory=lambda: ["*"], metadata=_NEW_TYPES)
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    merchant_id: ObjectId | None = field(default=None, metadata=FOR_MERCHANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpointChange:
    """Changes a webhook endpoint."""

    __pydantic_config__ = body({"status": "active"})

    url: Url | None = field(default=None, metadata=_URL)
    event_types: list[EventType] | None = field(default=None, metadata=_NEW_TYPES)
    status: EndpointStatus | None = field(default=None, metadata=_STATUS)
