"""Number pools, and the outbound numbers in them."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from trunkline.schema.controls import Reason
from trunkline.schema.fields import (
    AGENTS,
    CREATED_AT,
    FOR_MERCHANT,
    FOR_RESELLER,
    ITS_ID,
    OF_MERCHANT,
    OF_RESELLER,
    UPDATED_AT,
    Indexed,
    Name,
    ObjectId,
    PhoneText,
    TextRule,
    WhoseAgents,
    about,
    body,
)
from trunkline.states import AttemptState

CHANNELS_MAX = 10_000

Carrier = Annotated[str, TextRule(r"^[a-z][a-z0-9_-]{0,31}$")]
Account = Annotated[str, TextRule(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
NumberStatus = Literal["active", "draining", "disabled"]

_NAME = about("For people.")
_OVERFLOW_TEXT = (
    "The pool whose numbers a lead may use once this pool had no channel for `overflow_after_s`. It does not go the "
    "other way."
)
_OVERFLOW = about(_OVERFLOW_TEXT)
_AFTER = about(
    "How long a lead waits for a channel of this pool first, in seconds. Required with `overflow_pool`.",
    ge=0,
    le=86_400,
)
_REGION = about(
    "Whether a lead prefers a number of its own region: of its country, in North America of its area. The least loaded "
    "of those, or of all if none is free."
)
_AGENTS = about(AGENTS)


@dataclass(frozen=True, slots=True)
class Pool:
    """The numbers that a lead may be dialled from."""

    id: str = field(metadata=about("Its id, as chosen when it was created."))
    name: str = field(metadata=_NAME)
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)
    overflow_pool: str | None = field(metadata=_OVERFLOW)
    overflow_after_s: float | None = field(
        metadata=about("How long a lead waits for a channel of this pool first.")
    )
    region_affinity: bool = field(metadata=_REGION)
    created_at: datetime = field(metadata=CREATED_AT)
    # An older platform does not send it, and has no external agents.
    agents: WhoseAgents = field(metadata=_AGENTS | {"absent": "ours"})


@dataclass(frozen=True, slots=True)
class NewPool:
    """Creates a pool."""

    __pydantic_config__ = body({"id": "acme-main", "merchant_id": "acme-store", "name": "Main numbers"})

    id: ObjectId = field(metadata=about("Unique over the platform."))
    name: Name = field(metadata=_NAME)
    _: KW_ONLY
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    merchant_id: ObjectId | None = field(default=None, metadata=FOR_MERCHANT)
    overflow_pool: ObjectId | None = field(default=None, metadata=_OVERFLOW)
    overflow_after_s: float | None = field(default=None, metadata=_AFTER)
    region_affinity: bool = field(default=False, metadata=_REGION)
    agents: WhoseAgents = field(default="ours", metadata=_AGENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """Changes a pool."""

    __pydantic_config__ = body({"name": "Numbers of the shop"})

    name: Name | None = field(default=None, metadata=_NAME)
    overflow_pool: ObjectId | None = field(default=None, metadata=about(f"{_OVERFLOW_TEXT} null: none."))
    overflow_after_s: float | None = field(default=None, metadata=_AFTER)
    region_affinity: bool | None = field(default=None, metadata=_REGION)
    agents: WhoseAgents | None = field(default=None, metadata=_AGENTS)


_IDLE = about("Only while the number has no live call.")
_CHANNELS = about(
    "The maximum of concurrent calls. A lower value takes effect as calls end.",
    ge=0,
    le=CHANNELS_MAX,
    strict=True,
)
_PACE = about(
    "The maximum of starts per second, besides that of the account. Left out: only the account's applies.",
    gt=0,
    le=1000,
)
_STATUS = about("A draining number finishes its calls and starts none; a disabled one is out of use.")


@dataclass(frozen=True, slots=True)
class Number:
    """An outbound number."""

    id: UUID = field(metadata=ITS_ID)
    e164: str = field(metadata=about("The number itself, as E.164."))
    pool: str = field(metadata=about("The pool of the number."))
    carrier: str = field(metadata=about("The carrier of the number."))
    account: str = field(metadata=about("The account at the carrier."))
    channels_held: int | None = field(
        metadata=about(
            "How many channels live calls hold. null: the number is shared, and this key may see only its own calls."
        )
    )
    max_channels: int = field(metadata=about("The maximum of concurrent calls."))
    starts_per_s: float | None = field(
        metadata=about("The maximum of starts per second. null: only the account's applies.")
    )
    status: str = field(metadata=_STATUS)
    version: int = field(metadata=about("Rises with every change."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)
    created_at: datetime = field(metadata=CREATED_AT)
    updated_at: datetime = field(metadata=UPDATED_AT)


@dataclass(frozen=True, slots=True)
class NewNumber:
    """Adds a number."""

    __pydantic_config__ = body(
        {"e164": "+14155550100", "pool": "acme-main", "carrier": "twilio", "max_channels": 20}
    )

    e164: PhoneText = field(metadata=about("The number itself, as E.164."))
    _: KW_ONLY
    pool: ObjectId = field(metadata=about("The pool of the number. The owner of the pool owns the number."))
    carrier: Carrier = field(metadata=about("The carrier of the number."))
    account: Account = field(default="default", metadata=about("The account at the carrier."))
    max_channels: int = field(metadata=_CHANNELS)
    starts_per_s: float | None = field(default=None, metadata=_PACE)
    status: NumberStatus = field(default="active", metadata=_STATUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberChange:
    """Changes a number."""

    __pydantic_config__ = body({"max_channels": 10})

    pool: ObjectId | None = field(default=None, metadata=_IDLE)
    carrier: Carrier | None = field(default=None, metadata=_IDLE)
    account: Account | None = field(default=None, metadata=_IDLE)
    max_channels: int | None = field(default=None, metadata=_CHANNELS)
    starts_per_s: float | None = field(default=None, metadata=_PACE)
    status: NumberStatus | None = field(default=None, metadata=_STATUS)


@dataclass(frozen=True, slots=True)
class ChannelHolder(Indexed):
    """A call that holds a channel."""

    channel_no: int = field(metadata=about("The channel."))
    attempt_id: UUID = field(metadata=about("The call."))
    lead_id: UUID | None = field(metadata=about("Its lead; null for an inbound call."))
    direction: str = field(metadata=about("Whether it is outbound or inbound."))
    merchant_id: str = field(metadata=about("Its merchant."))
    to_phone: str = field(repr=False, metadata=about("Who is called."))
    from_phone: str = field(repr=False, metadata=about("Who calls."))
    state: str = field(metadata=about("How far it has come.", json_schema_extra={"enum": [*AttemptState]}))
    carrier_call_id: str | None = field(metadata=about("The carrier's id of the call."))
    held_since: datetime = field(metadata=about("Since when it holds the channel."))
    answered_at: datetime | None = field(metadata=about("When it was answered."))
    pod: str | None = field(metadata=about("The pod that takes it."))


@dataclass(frozen=True, slots=True)
class NumberChannels(Indexed):
    """The channels of a number, one by one."""

    number_id: UUID = field(metadata=about("The number."))
    e164: str = field(metadata=about("The number itself, as E.164."))
    max_channels: int = field(metadata=about("The maximum of concurrent calls."))
    is_whole: bool = field(
        metadata=about("false: the number is shared with you, and only your own calls are shown.")
    )
    holders: list[ChannelHolder] = field(
        metadata=about("By channel. A channel that is missing is free, or not shown.")
    )


@dataclass(frozen=True, slots=True)
class ChannelsToFree:
    """Frees channels that Valkey holds for nobody."""

    __pydantic_config__ = body({"reason": "None of these calls is live"})

    reason: Reason = field(metadata=about("Why the channels are free, for the audit log."))


@dataclass(frozen=True, slots=True)
class FreedChannels(Indexed):
    """What was freed."""

    freed: int = field(
        metadata=about("How many channels were freed. Their leads are called unless they have ended.")
    )
