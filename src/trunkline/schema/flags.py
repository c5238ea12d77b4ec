"""Feature flags."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Literal

from trunkline.schema.controls import REASON, Reason
from trunkline.schema.fields import Indexed, ObjectId, about, body

NAMED_MAX = 10_000

TAKE_OVERDUE = (
    "For merchants that this turns on, call also the leads that were due before: at most this many, as counted "
    "by the preview. Left out: another system has called them, and they end as ABORTED (`DUE_BEFORE_CUTOVER`)."
)
_ENABLED = about("false: off for everybody, independently of the other fields.", strict=True)
_PERCENTAGE = about(
    "The percentage of tenants that are not named for which the flag is on.", ge=0, le=100, strict=True
)
_NAMED = about(
    "Ids that are on (true) or off (false), whatever the percentage. A merchant wins over its reseller.",
    max_length=NAMED_MAX,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRule:
    """For whom a flag is on."""

    __pydantic_config__ = body({"enabled": True, "percentage": 0, "resellers": {"acme": True}})

    enabled: bool = field(metadata=_ENABLED)
    percentage: int = field(default=100, metadata=_PERCENTAGE)
    resellers: dict[ObjectId, bool] = field(default_factory=dict, metadata=_NAMED)
    merchants: dict[ObjectId, bool] = field(default_factory=dict, metadata=_NAMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSetting(FlagRule):
    """Sets a flag."""

    __pydantic_config__ = body(
        {
            "enabled": True,
            "percentage": 10,
            "resellers": {"acme": True},
            "reason": "First tenth",
            "version": 3,
        }
    )

    reason: Reason = field(metadata=REASON)
    version: int = field(
        default=0,
        metadata=about(
            "The version that you have read; left out: the flag is not set yet. A request with another version is "
            "refused (409).",
            ge=0,
            strict=True,
        ),
    )
    take_overdue: int | None = field(default=None, metadata=about(TAKE_OVERDUE, ge=0, strict=True))


@dataclass(frozen=True, slots=True)
class Flag(Indexed):
    """Off if it is not enabled; else on or off for those it names, and on for a percentage of the others."""

    name: str = field(metadata=about("Its name."))
    enabled: bool = field(metadata=_ENABLED)
    percentage: int = field(metadata=_PERCENTAGE)
    resellers: dict[str, bool] = field(metadata=_NAMED)
    merchants: dict[str, bool] = field(metadata=_NAMED)
    reason: str | None = field(metadata=about("Why it was set; null: it is not."))
    changed_by: str | None = field(metadata=about("Who set it."))
    changed_at: datetime | None = field(metadata=about("When it was set."))
    version: int = field(default=0, metadata=about("To send with the next change. 0: the flag is not set."))
    _: KW_ONLY
    meaning: str | None = field(
        default=None, metadata=about("What it is for. null: no code of this version evaluates it.")
    )
    decided_by: Literal["platform", "flag_service"] = field(
        default="platform",
        metadata=about(
            "`flag_service`: FEATURE_FLAG_PROVIDER names a hosted service, which alone decides. The values here were "
            "set before, or are the defaults, and have no effect."
        ),
    )
    is_set: bool = field(
        default=True, metadata=about("false: the flag is not set, and the default of the code applies.")
    )


@dataclass(frozen=True, slots=True)
class MerchantOverdue(Indexed):
    """The leads of a merchant that were due before a flag is turned on for it."""

    merchant_id: str = field(metadata=about("The merchant."))
    leads: int = field(metadata=about("How many of its leads were due before."))


@dataclass(frozen=True, slots=True)
class FlagPreview(Indexed):
    """What setting a flag would change."""

    version: int = field(metadata=about("The present version of the flag."))
    turned_on: int = field(metadata=about("Merchants for whom it would be on, and is off now."))
    turned_off: int = field(metadata=about("Merchants for whom it would be off, and is on now."))
    overdue: int = field(
        metadata=about(
            "For `event_dispatch`: leads of these merchants that were due before. They are not called, unless "
            "`take_overdue` is set."
        )
    )
    merchants: list[MerchantOverdue] = field(
        metadata=about("The merchants of these leads, most leads first, 100 at most.")
    )


@dataclass(frozen=True, slots=True)
class FlagEvaluation(Indexed):
    """Whether a flag is on for a tenant."""

    flag: str = field(metadata=about("The current name of the evaluated flag."))
    is_on: bool = field(metadata=about("Whether it is on."))
