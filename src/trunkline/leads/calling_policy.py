"""The calling policy: who may be called when, how often, and after which pre-checks. Pure.

Four layers may state one: the platform, a reseller, a merchant, a campaign. Restrictions add up over all layers, and
the strictest wins; no tenant can loosen what the platform or its reseller has tightened. Preferences (retries,
pre-checks, the time zone of callees) come from the nearest layer that states them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field

from trunkline.leads import abandonment, windows
from trunkline.leads.abandonment import NAMES_THE_CALLER, Message, Share
from trunkline.leads.immutable import Frozen, ZoneName
from trunkline.leads.limits import CallsPerPerson, PersonLimit
from trunkline.leads.precheck_conditions import HttpCheck, fingerprint
from trunkline.leads.retries import DEFAULT, Retries
from trunkline.leads.rule_packs import AbandonedCalls, Pack, PackName, known_packs, named
from trunkline.leads.windows import Opening, Window, WindowRule
from trunkline.leads.zones import zones_of

Scope = Literal["platform", "reseller", "merchant", "campaign"]
T = TypeVar("T")
N = TypeVar("N", int, float)


Prefix = Annotated[str, Field(pattern=r"^\+[1-9][0-9]{0,14}$", examples=["+1415"])]
Micros = Annotated[int, Field(ge=0, le=10**15, strict=True)]


class Destinations(Frozen):
    """Which numbers may be dialled, by how they begin. Nothing under `allow` allows all."""

    allow: tuple[Prefix, ...] = Field(
        (), max_length=500, description="Beginnings of the numbers that may be called. Empty: all."
    )
    deny: tuple[Prefix, ...] = Field(
        (), max_length=500, description="Beginnings of the numbers that must not be called."
    )

    def permit(self, phone: str) -> bool:
        return (not self.allow or phone.startswith(self.allow)) and not phone.startswith(self.deny or "-")


class Price(Frozen):
    """What a call is expected to cost, in millionths of the currency. The intent sets aside `reserve_minutes` of it."""

    per_call_micros: Micros = Field(0, description="Per call, in millionths of the currency.")
    per_minute_micros: Micros = Field(0, description="Per minute, in millionths of the currency.")
    reserve_minutes: float = Field(
        1.0, ge=0, le=240, description="How many minutes of a call are set aside before its dial."
    )

    @property
    def reserved_micros(self) -> int:
        return self.per_call_micros + round(self.per_minute_micros * self.reserve_minutes)


class RecentContact(Frozen):
    """A person who has recently talked with this merchant is not called."""

    cooldown_h: int = Field(24, ge=1, le=168, description="How long a contact is recent.")
    then: Literal["defer", "abort"] = Field("defer", description="What happens to the lead.")


class CallingPolicy(Frozen):
    """One layer. A field that is left out states nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "windows": [
                        {"spans": [{"start": "09:00", "end": "18:00"}], "holidays": [{"country": "US"}]}
                    ],
                    "packs": ["us-tcpa"],
                    "person_limits": [{"max_calls": 3, "window_h": 24}],
                    "attempts_per_day": 10000,
                    "retries": {"by_outcome": {"BUSY": {"delays_s": [300, 900]}}},
                }
            ]
        }
    )

    windows: tuple[Window, ...] = Field((), max_length=20, description="All of them must be open.")
    packs: tuple[PackName, ...] = Field(
        (), max_length=20, description="Legal hours, by country: see /policy/packs."
    )
    edited_packs: tuple[Pack, ...] | None = Field(
        None,
        max_length=100,
        description="Packs that replace those of the same name, and additional ones. Platform only: see "
        "/policy/packs.",
    )
    destinations: Destinations | None = Field(None, description="Which numbers may be called.")
    person_limits: tuple[PersonLimit, ...] = Field(
        (), max_length=10, description="How often a merchant may call one person. All limits apply."
    )
    attempts_per_day: int | None = Field(None, ge=0, le=10**9, description="Of one merchant, in its own day.")
    spend_per_day_micros: Micros | None = Field(None, description="Of one merchant, in its own day.")
    calls_per_person: CallsPerPerson | None = Field(
        None, description="By all tenants together; 7 an hour by default. Platform only."
    )
    max_concurrent: int | None = Field(
        None, ge=0, le=100_000, description="The maximum of concurrent calls. Campaigns only."
    )
    starts_per_s: float | None = Field(None, gt=0, le=10_000, description="Campaigns only.")
    abandon_max: Share | None = Field(
        None,
        description="The target of predictive dialling: the maximum share of calls answered by a person that may "
        "find no agent, 0.03 for 3 %. 0 by default: an agent is reserved for every call.",
    )
    abandon_threshold_s: float | None = Field(
        None,
        ge=1,
        le=30,
        description="A person who answers and waits longer for an agent counts as abandoned; 2 s by default. "
        "Measured from the carrier's report that the call was answered.",
    )
    abandon_window_h: int | None = Field(
        None,
        ge=1,
        le=24,
        description="Overdialling also ends at 80 % of the target, measured over this many hours.",
    )
    abandon_message: Message | None = Field(
        None,
        description="The message for an abandoned call. It may name {caller} (the merchant's name) and {number}.",
    )
    timezone: ZoneName | None = Field(
        None,
        description="The time zone of callees, and of the merchant's day. Left out: by the callee's number, and UTC.",
    )
    price: Price | None = Field(None, description="What a call costs, for the daily spending limit.")
    retries: Retries | None = Field(None, description="When an unsuccessful call is repeated.")
    prechecks: tuple[HttpCheck, ...] | None = Field(
        None, max_length=5, description="Requests that decide before a dial whether it is made."
    )
    recent_contact: RecentContact | None = Field(
        None, description="What happens to a lead whose person was reached recently."
    )


EMPTY = CallingPolicy()


@dataclass(frozen=True, slots=True)
class Effective:
    """The policy of a lead: all layers together."""

    windows: tuple[Window, ...]
    packs: tuple[Pack, ...]
    destinations: tuple[Destinations, ...]
    person_limits: tuple[PersonLimit, ...]
    attempts_per_day: int | None
    spend_per_day_micros: int | None
    calls_per_person: CallsPerPerson
    campaign_max_concurrent: int | None
    campaign_starts_per_s: float | None
    timezone: str | None
    price: Price
    retries: Retries
    prechecks: tuple[HttpCheck, ...]
    # A pass is valid for the checks that ran, not for those that replaced them.
    checks_hash: bytes
    recent_contact: RecentContact | None
    # By the layers; `abandon_max_of` adds the packs that apply to a person's number.
    abandon_max: float = 0.0
    abandon_threshold_s: float = abandonment.THRESHOLD_S
    abandon_window_h: int | None = None
    abandon_message: str | None = None
    # Whether a merchant's calls have to be counted one intent at a time.
    counts_by_merchant: bool = False
    # What the intent sets aside for a call, by the price.
    reserved_micros: int = 0

    def day_at(self, at: datetime) -> date:
        """The merchant's day at this time."""
        return at.astimezone(ZoneInfo(self.timezone or "UTC")).date()

    def permits(self, phone: str) -> bool:
        return all(each.permit(phone) for each in self.destinations)

    def limits_of(self, phone: str) -> tuple[PersonLimit, ...]:
        if not self.packs:
            return self.person_limits
        by_pack = (pack.person_limits for pack in self.packs if pack.concerns(phone))
        return sum(by_pack, self.person_limits)

    def abandon_max_of(self, phone: str) -> float:
        """The share of abandoned calls that a call to this person may add to. 0: only with an agent reserved."""
        if self.abandon_max == 0:
            return 0.0
        shares = [rule.max_share for rule in self._on_abandoned(phone) if rule.max_share is not None]
        return min([self.abandon_max, *shares])

    def ring_min_s(self, phone: str) -> int:
        return max((rule.ring_min_s or 0 for rule in self._on_abandoned(phone)), default=0)

    def message_on_abandonment(self, phone: str, *, caller: str, number: str) -> str:
        """The message for this person's abandoned call: the policy's, else that of a pack."""
        by_pack = (rule.message for rule in self._on_abandoned(phone) if rule.message)
        message = self.abandon_message or next(by_pack, NAMES_THE_CALLER)
        return abandonment.spoken(message, caller=caller, number=number)

    def _on_abandoned(self, phone: str) -> list[AbandonedCalls]:
        return [pack.abandoned_calls for pack in self.packs if pack.abandoned_calls and pack.concerns(phone)]

    def opening(self, phone: str, zone: str | None, at: datetime) -> Opening | None:
        """When this person may be called, from `at` on. None: never. `zone` is the lead's own, if it has one."""
        rules = self.rules_of(phone, zone)
        return windows.next_opening(rules, at) if rules else Opening(at, None)

    def rules_of(self, phone: str, zone: str | None) -> tuple[WindowRule, ...]:
        by_pack = (pack.windows for pack in self.packs if pack.concerns(phone))
        in_force: tuple[Window, ...] = sum(by_pack, self.windows)
        if not in_force:
            return ()
        own_zone = zone or self.timezone
        zones = (own_zone,) if own_zone else zones_of(phone)
        return tuple(
            WindowRule(window, (window.timezone,) if window.timezone else zones) for window in in_force
        )


def resolve(
    platform: CallingPolicy = EMPTY,
    reseller: CallingPolicy = EMPTY,
    merchant: CallingPolicy = EMPTY,
    campaign: CallingPolicy = EMPTY,
    *,
    usual_retries: Retries = DEFAULT,
) -> Effective:
    layers = (platform, reseller, merchant, campaign)
    known = known_packs(platform.edited_packs or ())
    prechecks = _nearest([layer.prechecks for layer in layers]) or ()
    price = _nearest([layer.price for layer in layers]) or Price()
    attempts_per_day = _least(layer.attempts_per_day for layer in layers)
    spend_per_day_micros = _least(layer.spend_per_day_micros for layer in layers)
    counted = (attempts_per_day, spend_per_day_micros, campaign.max_concurrent, campaign.starts_per_s)
    return Effective(
        windows=sum((layer.windows for layer in layers), ()),
        packs=tuple(
            named(name, known) for name in dict.fromkeys(name for layer in layers for name in layer.packs)
        ),
        destinations=tuple(layer.destinations for layer in layers if layer.destinations),
        person_limits=sum((layer.person_limits for layer in layers), ()),
        attempts_per_day=attempts_per_day,
        spend_per_day_micros=spend_per_day_micros,
        calls_per_person=platform.calls_per_person or CallsPerPerson(),
        campaign_max_concurrent=campaign.max_concurrent,
        campaign_starts_per_s=campaign.starts_per_s,
        timezone=_nearest([layer.timezone for layer in layers]),
        price=price,
        retries=_nearest([layer.retries for layer in layers]) or usual_retries,
        prechecks=prechecks,
        checks_hash=fingerprint(prechecks),
        recent_contact=_nearest([layer.recent_contact for layer in layers]),
        abandon_max=_least(layer.abandon_max for layer in layers) or 0.0,
        abandon_threshold_s=_least(layer.abandon_threshold_s for layer in layers) or abandonment.THRESHOLD_S,
        abandon_window_h=_nearest([layer.abandon_window_h for layer in layers]),
        abandon_message=_nearest([layer.abandon_message for layer in layers]),
        counts_by_merchant=counted != (None, None, None, None),
        reserved_micros=price.reserved_micros,
    )


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    field: str
    error: str


def problems(
    policy: CallingPolicy, scope: Scope, above: Sequence[CallingPolicy], now: datetime
) -> list[PolicyProblem]:
    """Problems of a layer that its schema does not show. `above` are the layers it adds to."""
    found = []
    for name, who in _RESERVED.items():
        if scope not in who and getattr(policy, name) is not None:
            found.append(PolicyProblem(name, f"Only {who} may set this."))
    known = known_packs(pack for layer in (*above, policy) for pack in layer.edited_packs or ())
    for name in policy.packs:
        if name not in known:
            error = f"There is no pack {name!r}. There are: {', '.join(sorted(known))}."
            found.append(PolicyProblem("packs", error))
    # A share above that of a higher layer would have no effect: the tenant should know.
    allowed = _least(layer.abandon_max for layer in above)
    if allowed is not None and policy.abandon_max is not None and policy.abandon_max > allowed:
        error = f"At most {allowed:g}: a layer above says so, and can only be tightened."
        found.append(PolicyProblem("abandon_max", error))
    # Judged as if all callees were in one place; ingest and the dial judge each of the others.
    layers = [*above, policy]
    zone = _nearest([layer.timezone for layer in layers]) or "UTC"
    in_force = [window for layer in layers for window in layer.windows]
    rules = tuple(WindowRule(window, (window.timezone or zone,)) for window in in_force)
    if rules and windows.next_opening(rules, now) is None:
        error = "Together with the windows above it, it never opens: no lead would ever be called."
        found.append(PolicyProblem("windows", error))
    return found


_RESERVED = {
    "edited_packs": "the platform",
    "calls_per_person": "the platform",
    "max_concurrent": "a campaign",
    "starts_per_s": "a campaign",
}


def _least(values: Iterable[N | None]) -> N | None:
    return min((value for value in values if value is not None), default=None)


def _nearest(values: Sequence[T | None]) -> T | None:
    return next((value for value in reversed(values) if value is not None), None)
