"""Feature flags: on or off for all, for a percentage, for named tenants. Only the platform sees them."""

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import AdminKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid, not_found
from trunkline.api.ownership import record
from trunkline.api.paging import Cursors, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes
from trunkline.api.routes.controls import LiftReason, given_reason
from trunkline.control.flags import DEFINITIONS, EVENT_DISPATCH, translate
from trunkline.control.flags import decide as decide_flag
from trunkline.dispatch.rollout import NOTHING, Cutover, carry_out, foresee
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.fields import ObjectId
from trunkline.schema.flags import (
    TAKE_OVERDUE,
    Flag,
    FlagEvaluation,
    FlagPreview,
    FlagRule,
    FlagSetting,
    MerchantOverdue,
)
from trunkline.store import flags
from trunkline.store.database import Connection
from trunkline.store.tenants import PLATFORM

router = Routes("/flags", "control")

# How many merchants a preview lists: those with the most overdue leads.
SHOWN_MAX = 100
NAME = r"^[a-z][a-z0-9_]{0,62}$"
FlagName = Annotated[str, Path(pattern=NAME, description="The name of the flag.")]
# With the names of the system before this one, which carry the id of a reseller.
AnyFlagName = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9_-]{0,150}$", description="The name of the flag, or an old name of it.")
]


class UnsetQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: LiftReason = None
    version: int | None = Field(None, ge=0, description="The version that you have read.")
    take_overdue: int | None = Field(None, ge=0, description=TAKE_OVERDUE)


class EvaluationQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reseller_id: ObjectId | None = Field(None, description="The reseller to evaluate for.")
    merchant_id: ObjectId | None = Field(None, description="The merchant to evaluate for, of that reseller.")


@router.get("", summary="List flags")
async def list_flags(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[Flag]:
    """By name: those that are set, and those that the code defines. A tenant's key sees none."""
    cursors = Cursors("flags", who, query)
    after = cursors.start_key("")
    if not who.tenant.is_platform:
        return cursors.page([], lambda flag: flag.name)
    async with api.store.reading() as connection:
        stored = {flag.name: flag for flag in await flags.list_flags(connection)}
    names = [name for name in sorted({*stored, *DEFINITIONS}) if name > after]
    shown = [_shown(api, name, stored.get(name)) for name in names[: cursors.fetch_limit]]
    return cursors.page(shown, lambda flag: flag.name)


@router.get("/{flag}/evaluation", summary="Evaluate a flag")
async def evaluate_flag(
    flag: AnyFlagName, query: Annotated[EvaluationQuery, Query()], who: ReadKey, api: Deps
) -> FlagEvaluation:
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
        return FlagEvaluation(name, is_on)
    async with api.store.reading() as connection:
        stored = await flags.get(connection, name)
    if stored is None:
        return FlagEvaluation(name, definition.default)
    key = query.merchant_id or reseller_id
    is_on, _ = decide_flag(stored, reseller_id=reseller_id, merchant_id=query.merchant_id, key=key)
    return FlagEvaluation(name, is_on)


@router.post("/{flag}/preview", summary="Preview a change of a flag")
async def preview_flag(flag: AnyFlagName, body: FlagRule, who: AdminKey, api: Deps) -> FlagPreview:
    """The effects of setting the flag. Changes nothing. Needs a key of the platform."""
    name = _settable(api, who, flag)
    async with api.store.reading() as connection:
        before = await flags.get(connection, name)
        foreseen = await _foreseen(connection, name, before, _ruled(name, body))
    merchants = [MerchantOverdue(*each) for each in list(foreseen.overdue.items())[:SHOWN_MAX]]
    return FlagPreview(before.version if before else 0, **_counts(foreseen), merchants=merchants)


@router.put("/{flag}", summary="Set a flag")
async def set_flag(flag: AnyFlagName, body: FlagSetting, who: AdminKey, api: Deps) -> Flag:
    """Replaces the flag: omitted fields get their defaults. In force within a second. Needs a key of the platform.

    Of two concurrent changes of one version the second is refused (`version_changed`). Turning `event_dispatch` on
    applies to leads that are due from then on; leads that were due before are not called, unless `take_overdue` is set.
    """
    name = _settable(api, who, flag)
    wanted = replace(_ruled(name, body), reason=body.reason, changed_by=who.actor)
    async with api.store.writing() as tx:
        before = await flags.lock(tx, name)
        _require_version(before, body.version)
        foreseen = await _foreseen(tx, name, before, wanted)
        await _cut_over(tx, foreseen, body.take_overdue)
        stored = await flags.set_flag(tx, wanted)
        details = asdict(body) | _counts(foreseen)
        del details["version"]
        await record(tx, who, "flag.set", name, PLATFORM, **details)
    return _shown(api, name, stored)


@router.delete("/{flag}", summary="Unset a flag")
async def delete_flag(
    flag: FlagName, query: Annotated[UnsetQuery, Query()], who: AdminKey, api: Deps
) -> Flag:
    """Back to the default of the code. Needs a key of the platform with the scope `admin`. What this turns on is turned
    on as by setting it."""
    _require_platform(who)
    reason = given_reason(query.reason)
    _require_own(api)
    async with api.store.writing() as tx:
        before = await flags.lock(tx, flag)
        if before is None:
            raise not_found("object")
        _require_version(before, query.version)
        foreseen = await _foreseen(tx, flag, before, None)
        await _cut_over(tx, foreseen, query.take_overdue)
        await flags.delete_flag(tx, flag)
        details = {"take_overdue": query.take_overdue} | _counts(foreseen)
        await record(tx, who, "flag.unset", flag, PLATFORM, reason=reason, **details)
    return _shown(api, flag, None)


def _require_platform(who: Principal) -> None:
    """Flags do not exist for a tenant."""
    if not who.tenant.is_platform:
        raise not_found("object")


def _settable(api: Api, who: Principal, name: str) -> str:
    """A flag set under an old or a misspelt name would have no effect, and seem to."""
    _require_platform(who)
    own, reseller_id = translate(name)
    if reseller_id is not None:
        raise invalid(
            FieldProblem("flag", f'An old name: set {own} with resellers {{"{reseller_id}": true or false}}.')
        )
    if own != name:
        raise invalid(FieldProblem("flag", f"An old name: set {own}."))
    if name not in DEFINITIONS:
        raise invalid(FieldProblem("flag", f"No such flag. There are: {', '.join(sorted(DEFINITIONS))}."))
    _require_own(api)
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
    return Flag(name, rule.enabled, rule.percentage, rule.resellers, rule.merchants, None, None, None)


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


def _counts(foreseen: Cutover) -> dict[str, int]:
    return {
        "turned_on": len(foreseen.turned_on),
        "turned_off": len(foreseen.turned_off),
        "overdue": foreseen.overdue_count,
    }


def _shown(api: Api, name: str, stored: Flag | None) -> Flag:
    definition = DEFINITIONS.get(name)
    is_on = definition is not None and definition.default
    default = Flag(name, is_on, 100 if is_on else 0, {}, {}, None, None, None, is_set=False)
    return replace(
        stored or default,
        meaning=definition.meaning if definition else None,
        decided_by="flag_service" if _is_hosted(api) else "platform",
    )
