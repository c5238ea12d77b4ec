"""Resellers and merchants."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime

from trunkline.schema.fields import (
    AGENTS,
    CREATED_AT,
    FOR_RESELLER,
    Name,
    ObjectId,
    Region,
    WhoseAgents,
    about,
    body,
)

CONCURRENT_MAX = 100_000

_NAME = about("For people.")
_REGION = about("Country of phones that are written without one, for example US or IN.")
_POOL = about("The number pool of leads that name none.")
_WEIGHT = about(
    "Its share of the channels beside other merchants. Only a key of the platform may set it.",
    ge=1,
    le=1000,
    strict=True,
)
_MAX_CONCURRENT = about(
    "The maximum of concurrent calls of all its leads; null: no limit. A merchant's key cannot set it.",
    ge=0,
    le=CONCURRENT_MAX,
    strict=True,
)
_AGENTS = about(AGENTS)


@dataclass(frozen=True, slots=True)
class Reseller:
    """A tenant of the platform."""

    id: str = field(metadata=about("Its id, as chosen when it was created."))
    name: str = field(metadata=_NAME)
    created_at: datetime = field(metadata=CREATED_AT)


@dataclass(frozen=True, slots=True)
class NewReseller:
    """Creates a reseller."""

    __pydantic_config__ = body({"id": "acme", "name": "Acme Inc."})

    id: ObjectId = field(metadata=about("Unique over the platform."))
    name: Name = field(metadata=_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResellerChange:
    """Changes a reseller."""

    __pydantic_config__ = body({"name": "Acme Ltd."})

    name: Name | None = field(default=None, metadata=_NAME)


@dataclass(frozen=True, slots=True)
class Merchant:
    """A customer of a reseller, and the owner of leads."""

    id: str = field(metadata=about("Unique over all resellers."))
    name: str = field(metadata=_NAME)
    reseller_id: str = field(metadata=about("The reseller it belongs to."))
    default_region: str | None = field(metadata=_REGION)
    default_pool: str | None = field(metadata=_POOL)
    weight: int = field(metadata=about("Its share of the channels beside other merchants."))
    max_concurrent: int | None = field(metadata=about("The maximum of concurrent calls; null: no limit."))
    created_at: datetime = field(metadata=CREATED_AT)
    # An older platform does not send it, and has no external agents.
    agents: WhoseAgents = field(metadata=_AGENTS | {"absent": "ours"})


@dataclass(frozen=True, slots=True)
class NewMerchant:
    """Creates a merchant."""

    __pydantic_config__ = body(
        {"id": "acme-store", "reseller_id": "acme", "name": "Acme Store", "default_region": "US"}
    )

    id: ObjectId = field(metadata=about("Unique over all resellers."))
    name: Name = field(metadata=_NAME)
    _: KW_ONLY
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    default_region: Region | None = field(default=None, metadata=_REGION)
    default_pool: ObjectId | None = field(default=None, metadata=_POOL)
    weight: int = field(default=1, metadata=_WEIGHT)
    max_concurrent: int | None = field(default=None, metadata=_MAX_CONCURRENT)
    agents: WhoseAgents = field(default="ours", metadata=_AGENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MerchantChange:
    """Changes a merchant."""

    __pydantic_config__ = body({"default_pool": "acme-main"})

    name: Name | None = field(default=None, metadata=_NAME)
    default_region: Region | None = field(default=None, metadata=_REGION)
    default_pool: ObjectId | None = field(default=None, metadata=_POOL)
    weight: int | None = field(default=None, metadata=_WEIGHT)
    max_concurrent: int | None = field(default=None, metadata=_MAX_CONCURRENT)
    agents: WhoseAgents | None = field(default=None, metadata=_AGENTS)
