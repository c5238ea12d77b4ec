"""Layers of calling policy, and rule packs. What a policy may say is in `trunkline.leads.calling_policy`."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime
from typing import Any, Literal

from trunkline.schema.fields import Indexed, about

PolicyScope = Literal["platform", "reseller", "merchant", "campaign"]


@dataclass(frozen=True, slots=True)
class PolicyLayer(Indexed):
    """The calling policy of the platform, a reseller, a merchant or a campaign."""

    scope: PolicyScope = field(metadata=about("Whose layer it is."))
    subject: str = field(
        metadata=about("The id of the reseller or merchant, or `merchant/campaign`; empty for the platform.")
    )
    policy: dict[str, Any] = field(
        metadata=about("The layer, as it was set. Empty: this layer sets nothing.")
    )
    version: int = field(metadata=about("Rises with every change. 0: it was never set."))
    updated_at: datetime | None = field(metadata=about("When it was set; null: never."))
    _: KW_ONLY
    warnings: list[str] = field(
        default_factory=list,
        metadata=about("Warnings about named packs that were not compared with the law within a year."),
    )


@dataclass(frozen=True, slots=True)
class RulePack(Indexed):
    """Legal hours and limits of a country or of some areas, under a name that policies refer to."""

    name: str = field(metadata=about("By which policies refer to it."))
    is_edited: bool = field(metadata=about("Edited or added by the operator of this platform."))
    as_of: date = field(metadata=about("When it was last compared with the law."))
    is_old: bool = field(metadata=about("It was not compared with the law for a year."))
    note: str = field(metadata=about("What it is based on."))
    region: str | None = field(metadata=about("The country of the callee's number."))
    prefixes: list[str] = field(metadata=about("Instead of the country: the beginnings of numbers."))
    windows: list[dict[str, Any]] = field(metadata=about("When calls are allowed."))
    person_limits: list[dict[str, Any]] = field(metadata=about("How often one person is called at most."))
    abandoned_calls: dict[str, Any] | None = field(
        metadata=about("Overdialling: the share, the message, the ring time, and the next call.")
    )


@dataclass(frozen=True, slots=True)
class RulePacks(Indexed):
    """All packs."""

    packs: list[RulePack] = field(metadata=about("Legal hours as people expect them. Not legal advice."))
