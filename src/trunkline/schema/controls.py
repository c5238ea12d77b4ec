"""Stops: of the whole platform, or of a part of it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from trunkline.schema.fields import OF_MERCHANT, OF_RESELLER, Indexed, Moment, TextRule, about, body

REASON_MAX = 500
RAMP_MAX_S = 86_400
RAMP_DEFAULT_S = 30
DURATION_MAX_S = 366 * 86_400
Reason = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$", 1, REASON_MAX)]
ControlScope = Literal["kill_switch", "promoter", "reseller", "merchant", "campaign", "number", "carrier"]
ControlLevel = Literal["platform", "reseller", "merchant"]
StopState = Literal["running", "stopped", "ramping"]

RAMP = "Over how many seconds the pace ramps up when the stop ends."
REASON = about("The reason, for the audit log.")
_SCOPE = about("What kind of thing is stopped.")
_SUBJECT = about("Empty for the whole platform; `merchant/campaign` for a campaign.")
_STATE = about("`ramping`: the stop has ended, and the pace grows to the usual one.")
_SHARE = about("The share of the usual pace that is allowed: 0 while stopped.")


@dataclass(frozen=True, slots=True)
class StopInForce(Indexed):
    """A stop of one level: the platform, a reseller or a merchant."""

    scope: ControlScope = field(metadata=_SCOPE)
    subject: str = field(metadata=_SUBJECT)
    state: StopState = field(metadata=_STATE)
    share: float = field(metadata=_SHARE)
    set_by: ControlLevel = field(metadata=about("The level that set it; only this level can lift it."))
    reason: str | None = field(metadata=about("null if a level above you set it."))
    changed_by: str | None = field(metadata=about("null if a level above you set it."))
    changed_at: datetime = field(metadata=about("When it was set, changed or lifted."))
    stopped_at: datetime = field(metadata=about("Since when it is in force."))
    expires_at: datetime | None = field(metadata=about("When it ends by itself; null: when it is lifted."))
    ramp_s: int = field(metadata=about(RAMP))
    ramp_until: datetime | None = field(metadata=about("When the full pace is reached again."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)


@dataclass(frozen=True, slots=True)
class ControlState(Indexed):
    """The state of one subject, over all levels."""

    scope: ControlScope = field(metadata=_SCOPE)
    subject: str = field(metadata=_SUBJECT)
    state: StopState = field(metadata=_STATE)
    share: float = field(metadata=_SHARE)
    stops: list[StopInForce] = field(
        metadata=about("The stops of all levels that are in force or ramping up.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Stops a subject, or changes its stop."""

    __pydantic_config__ = body({"reason": "Complaints about this campaign", "duration_s": 3600})

    reason: Reason = field(metadata=REASON)
    expires_at: Moment | None = field(
        default=None, metadata=about("When the stop ends by itself. Left out: when it is lifted.")
    )
    duration_s: int | None = field(
        default=None, metadata=about("The same as a duration from now.", ge=1, le=DURATION_MAX_S, strict=True)
    )
    ramp_s: int = field(default=RAMP_DEFAULT_S, metadata=about(RAMP, ge=0, le=RAMP_MAX_S, strict=True))
