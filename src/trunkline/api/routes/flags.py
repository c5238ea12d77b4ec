"""Feature flags: on or off for all, for a percentage, for named tenants. Only the platform sees them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid, not_found
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, Out
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.controls import LiftReason, Reason
from trunkline.control.flags import DEFINITIONS, EVENT_DISPATCH, translate
from trunkline.control.flags import decide as decide_flag
from trunkline.dispatch.rollout import NOTHING, Cutover, carry_out, foresee
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.fields import ObjectId
from trunkline.store import audit, flags
from trunkline.store.database import Connection
from trunkline.store.flags import Flag
from trunkline.store.tenants import PLATFORM

router = APIRouter(prefix=f"{API_ROOT}/flags", tags=["control"])

NAMED_MAX = 10_000
NEVER = datetime.min.replace(tzinfo=UTC)
# How many merchants a preview lists: those with the most overdue leads.
SHOWN_MAX = 100
NAME = r"^[a-z][a-z0-9_]{0,62}$"
FlagName = Annotated[str, Path(pattern=NAME, description="The name of the flag.")]
# With the names of the system before this one, which carry the id of a reseller.
AnyFlagName = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9_-]{0,150}$", description="The name of the flag, or an old name of it.")
]
_NAMED = "Ids that are on (true) or off (false), whatever the percentage. A merchant wins over its reseller."
_TAKE_OVERDUE = (
    "For merchants that this turns on, call also the leads that were due before: at most this many, as counted "
    "by the preview. Left out: another system has called them, and they end as ABORTED (`DUE_BEFORE_CUTOVER`)."
)
_VERSION = (
    "The version that you have read; left out: the flag is not set yet. A request with another version is "
    "refused (409)."
)


class FlagRule(Body):
    enabled: bool = Field(
        strict=True, description="false: off for everybody, independently of the other fields."
    )
    percentage: int = Field(
        100,
        ge=0,
        le=100,
        strict=True,
        description="The percentage of tenants that are not named for which the flag is on.",
    )
    resellers: dict[ObjectId, bool] = Field(default_factory=dict, max_length=NAMED_MAX, description=_NAMED)
    merchants: dict[ObjectId, bool] = Field(default_factory=dict, max_length=NAMED_MAX, description=_NAMED)


class PreviewIn(FlagRule):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"enabled": True, "percentage": 0, "resellers": {"acme": True}}]}
    )


class FlagIn(FlagRule):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "enabled": True,
                    "percentage": 10,
                    "resellers": {"acme": True},
                    "reason": "First tenth",
                    "version": 3,
                }
            ]
        }
    )

    reason: Reason = Field(description="The reason, for the audit log.")
    version: int = Field(0, ge=0, strict=True, description=_VERSION)
    take_overdue: int | None = Field(None, ge=0, strict=True, description=_TAKE_OVERDUE)


class UnsetQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: LiftReason = None
    version: int | None = Field(None, ge=0, description="The version that you have read.")
    take_overdue: int | None = Field(None, ge=0, description=_TAKE_OVERDUE)


class FlagOut(Out):
    name: str
    meaning: str | None = Field(description="null: no code of this version evaluates it.")
    decided_by: Literal["platform", "flag_service"] = Field(
        description="`flag_service`: FEATURE_FLAG_PROVIDER names a hosted service, which alone decides. The "
        "values here were set before, or are the defaults, and have no effect."
    )
    is_set: bool = Field(description="false: the flag is not set, and the default of the code applies.")
    enabled: bool
    percentage: int
    resellers: dict[str, bool]
    merchants: dict[str, bool]
    reason: str | None
    changed_by: str | None
    changed_at: datetime | None
    version: int = Field(description="To send with the next change. 0: the flag is not set.")


class MerchantOverdueOut(Out):
    merchant_id: str
    leads: int


class PreviewOut(Out):
    version: int = Field(description="The present version of the flag.")
    turned_on: int = Field(description="Merchants for whom it would be on, and is off now.")
    turned_off: int = Field(description="Merchants for whom it would be off, and is on now.")
    overdue: int = Field(
        description="For `event_dispatch`: leads of these merchants that were due before. They are not called, "
        "unless `take_overdue` is set."
    )
    merchants: list[MerchantOverdueOut] = Field(
        description="The merchants of these leads, most leads first, 100 at most."
    )


class EvaluationOut(Out):
    flag: str = Field(description="The current name of the evaluated flag.")
    is_on: bool


class EvaluationQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reseller_id: ObjectId | None = Field(None, description="The reseller to evaluate for.")
    merchant_id: ObjectId | None = Field(None, description="The merchant to evaluate for, of that reseller.")


@router.get("", response_model=PageOut[FlagOut], responses=READ_ERRORS, summary="List flags")
async def list_flags(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[FlagOut]:
    """By name: those that are set, and those that the code defines. A tenant's key sees none."""
    cursors = Cursors("flags", who, query)
    after = cursors.start_key("")
    if not who.tenant.is_platform:
        return cursors.page([], lambda flag: flag.name)
    async with api.store.reading() as connection:
        stored = {flag.name: flag for flag in await flags.list_flags(connection)}
    names = [name for name in sorted({*stored, *DEFINITIONS}) if name > after]
    shown = [_shown(api, name, stored) for name in names[: cursors.fetch_limit]]
    return cursors.page(shown, lambda flag: flag.name)


@router.get(
    "/{flag}/evaluation", response_model=EvaluationOut, responses=READ_ERRORS, summary="Evaluate a flag"
)
async def evaluate_flag(
    flag: AnyFlagName, query: Annotated[EvaluationQuery, Query()], who: ReadKey, api: Deps
) -> EvaluationOut:
    """Evaluates as the platform itself does, also with a hosted flag service, for a system that shares the work with
    it. Accepts the names of the system before this one. Needs a key of the platform."""
    _require_platform(who)
    name, reseller_in_name = translate(flag)
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise not_found("flag")
    reseller_id = reseller_in_name or query.reseller_id
    if api.deps.flags is not None:
        is_on = api.deps.flags.is_on(definition, reseller_id=reseller_id, merchant_id=query.merchant_id)
        return EvaluationOut(flag=name, is_on=is_on)
    async with api.store.reading() as connection:
        stored = await flags.get(connection, name)
    key = query.merchant_id or reseller_id
    is_on = (
        decide_flag(stored, reseller_id=reseller_id, merchant_id=query.merchant_id, key=key)[0]
        if stored
        else definition.default
    )
    return EvaluationOut(flag=name, is_on=is_on)


@router.post(
    "/{flag}/preview", response_model=PreviewOut, responses=WRITE_ERRORS, summary="Preview a change of a flag"
)
async def preview_flag(flag: AnyFlagName, body: PreviewIn, who: AdminKey, api: Deps) -> PreviewOut:
    """The effects of setting the flag. Changes nothing. Needs a key of the platform."""
    _require_platform(who)
    name = _own_name(flag)
    _require_own(api)
    async with api.store.reading() as connection:
        before = await flags.get(connection, name)
        foreseen = await _foreseen(connection, name, before, _ruled(name, body))
    return PreviewOut(
        version=before.version if before else 0,
        turned_on=len(foreseen.turned_on),
        turned_off=len(foreseen.turned_off),
        overdue=foreseen.overdue_count,
        merchants=[
            MerchantOverdueOut(merchant_id=merchant_id, leads=leads)
            for merchant_id, leads in list(foreseen.overdue.items())[:SHOWN_MAX]
        ],
    )


@router.put("/{flag}", response_model=FlagOut, responses=WRITE_ERRORS, summary="Set a flag")
async def set_flag(flag: AnyFlagName, body: FlagIn, who: AdminKey, api: Deps) -> FlagOut:
    """Replaces the flag: omitted fields get their defaults. In force within a second. Needs a key of the platform.

    Of two concurrent changes of one version the second is refused (`version_changed`). Turning `event_dispatch` on
    applies to leads that are due from then on; leads that were due before are not called, unless `take_overdue` is set.
    """
    _require_platform(who)
    name = _own_name(flag)
    _require_own(api)
    async with api.store.writing() as tx:
        before = await flags.lock(tx, name)
        _require_version(before, body.version)
        foreseen = await _foreseen(tx, name, before, _ruled(name, body))
        await _cut_over(tx, foreseen, body.take_overdue)
        stored = await flags.set_flag(
            tx,
            name,
            enabled=body.enabled,
            percentage=body.percentage,
            resellers=body.resellers,
            merchants=body.merchants,
            reason=body.reason,
            by=who.actor,
        )
        details = body.model_dump(mode="json", exclude={"reason", "version"}) | _audit_details(foreseen)
        await _record(tx, who, "flag.set", name, body.reason, details)
    return _shown(api, name, {name: stored})


@router.delete("/{flag}", response_model=FlagOut, responses=WRITE_ERRORS, summary="Unset a flag")
async def delete_flag(
    flag: FlagName, query: Annotated[UnsetQuery, Query()], who: AdminKey, api: Deps
) -> FlagOut:
    """Back to the default of the code. Needs a key of the platform with the scope `admin`. What this turns on is turned
    on as by setting it."""
    _require_platform(who)
    reason = query.reason
    if not reason or not reason.strip() or not reason.isprintable():
        raise invalid(FieldProblem("reason", "Give the reason in the query: ?reason=…"))
    _require_own(api)
    async with api.store.writing() as tx:
        before = await flags.lock(tx, flag)
        if before is None:
            raise not_found("object")
        _require_version(before, query.version)
        foreseen = await _foreseen(tx, flag, before, None)
        await _cut_over(tx, foreseen, query.take_overdue)
        await flags.delete_flag(tx, flag)
        details = {"take_overdue": query.take_overdue} | _audit_details(foreseen)
        await _record(tx, who, "flag.unset", flag, reason, details)
    return _shown(api, flag, {})


def _require_platform(who: Principal) -> None:
    """Flags do not exist for a tenant."""
    if not who.tenant.is_platform:
        raise not_found("object")


def _own_name(name: str) -> str:
    """A flag set under an old or a misspelt name would have no effect, and seem to."""
    own, reseller_id = translate(name)
    if reseller_id is not None:
        raise invalid(
            FieldProblem("flag", f'An old name: set {own} with resellers {{"{reseller_id}": true or false}}.')
        )
    if own != name:
        raise invalid(FieldProblem("flag", f"An old name: set {own}."))
    if name not in DEFINITIONS:
        raise invalid(FieldProblem("flag", f"No such flag. There are: {', '.join(sorted(DEFINITIONS))}."))
    return name


def _is_hosted(api: Api) -> bool:
    return api.deps.flags is not None and api.deps.flags.is_hosted


def _require_own(api: Api) -> None:
    if _is_hosted(api):
        raise conflict(
            "flags_hosted",
            "FEATURE_FLAG_PROVIDER names a flag service, and it alone decides: set the flag there.",
        )


def _require_version(before: Flag | None, version: int | None) -> None:
    now = before.version if before else 0
    if version != now:
        said = (
            f"{before.changed_by} changed it at {before.changed_at:%Y-%m-%d %H:%M:%S} UTC" if before else ""
        )
        raise conflict(
            "version_changed",
            f"The flag is at version {now}, not {version or 0}. {said or 'It is not set'}. Read it again.",
        )


def _ruled(name: str, rule: FlagRule) -> Flag:
    """The requested rule as a flag."""
    return Flag(
        name,
        rule.enabled,
        rule.percentage,
        rule.resellers,
        rule.merchants,
        reason="",
        changed_by="",
        changed_at=NEVER,
    )


async def _foreseen(conn: Connection, name: str, before: Flag | None, after: Flag | None) -> Cutover:
    if name != EVENT_DISPATCH.name:
        return NOTHING
    return await foresee(conn, before, after)


async def _cut_over(tx: Connection, foreseen: Cutover, take_overdue: int | None) -> None:
    if take_overdue is not None and foreseen.overdue_count > take_overdue:
        raise conflict(
            "more_overdue",
            f"By now {foreseen.overdue_count} leads were due before, not {take_overdue}. Look at the preview again.",
        )
    await carry_out(tx, foreseen, take_overdue=take_overdue is not None)


def _audit_details(foreseen: Cutover) -> dict[str, object]:
    """For the audit log."""
    return {
        "turned_on": len(foreseen.turned_on),
        "turned_off": len(foreseen.turned_off),
        "overdue": foreseen.overdue_count,
    }


async def _record(
    tx: Connection, who: Principal, action: str, name: str, reason: str, details: Mapping[str, object]
) -> None:
    await audit.record(
        tx, actor=who.actor, action=action, subject=name, tenant=PLATFORM, reason=reason, details=details
    )


def _shown(api: Api, name: str, stored: Mapping[str, Flag]) -> FlagOut:
    definition, flag = DEFINITIONS.get(name), stored.get(name)
    is_on = definition.default if definition else False
    return FlagOut(
        name=name,
        meaning=definition.meaning if definition else None,
        decided_by="flag_service" if _is_hosted(api) else "platform",
        is_set=flag is not None,
        enabled=flag.enabled if flag else is_on,
        percentage=flag.percentage if flag else (100 if is_on else 0),
        resellers=dict(flag.resellers) if flag else {},
        merchants=dict(flag.merchants) if flag else {},
        reason=flag.reason if flag else None,
        changed_by=flag.changed_by if flag else None,
        changed_at=flag.changed_at if flag else None,
        version=flag.version if flag else 0,
    )
