"""API keys."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from trunkline.schema.fields import (
    CREATED_AT,
    FOR_MERCHANT,
    FOR_RESELLER,
    ITS_ID,
    OF_MERCHANT,
    OF_RESELLER,
    Moment,
    Name,
    ObjectId,
    about,
    body,
)

Scope = Literal["admin", "leads", "router", "read", "jobs"]
SCOPES_MAX = 5

_NAME = about("What it is for.")
_SCOPES = (
    "`admin` may do everything, `leads` may create and read leads, `router` may route calls, `read` may read, `jobs` "
    "may enqueue jobs of types that allow it."
)
_EXPIRES_AT = about("From then on it is refused. null: it does not expire.")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, without the secret itself."""

    id: UUID = field(metadata=ITS_ID)
    hint: str = field(metadata=about("The beginning of the key."))
    name: str = field(metadata=_NAME)
    scopes: list[str] = field(metadata=about(_SCOPES))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)
    created_at: datetime = field(metadata=CREATED_AT)
    created_by: str = field(metadata=about("Who created it."))
    expires_at: datetime | None = field(metadata=_EXPIRES_AT)
    revoked_at: datetime | None = field(metadata=about("When it was revoked. null: it was not."))


@dataclass(frozen=True, slots=True)
class CreatedKey(ApiKey):
    """A new key, with its secret."""

    key: str = field(
        repr=False, metadata=about("The key. It is stored as a hash and can never be shown again.")
    )


@dataclass(frozen=True, slots=True)
class NewKey:
    """Creates a key."""

    __pydantic_config__ = body({"name": "shop backend", "scopes": ["leads"], "merchant_id": "acme-store"})

    name: Name = field(metadata=_NAME)
    scopes: list[Scope] = field(
        metadata=about(_SCOPES, min_length=1, max_length=SCOPES_MAX, json_schema_extra={"uniqueItems": True})
    )
    _: KW_ONLY
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    merchant_id: ObjectId | None = field(default=None, metadata=FOR_MERCHANT)
    expires_at: Moment | None = field(default=None, metadata=about("Left out: it does not expire."))


@dataclass(frozen=True, slots=True)
class Me:
    """The key of this request: its scopes and its tenant."""

    key_id: UUID = field(metadata=about("The id of the key."))
    name: str = field(metadata=_NAME)
    scopes: list[str] = field(metadata=about(_SCOPES))
    reseller_id: str | None = field(metadata=about("null: a key of the platform."))
    merchant_id: str | None = field(metadata=about("null: a key of a whole reseller, or of the platform."))
    expires_at: datetime | None = field(metadata=_EXPIRES_AT)
