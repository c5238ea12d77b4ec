"""Feature flags: on or off for everybody, for a percentage, for those they name. They are the platform's."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.errors import invalid, not_found
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, Out
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.controls import LiftReason, Reason
from trunkline.control.flags import DEFINITIONS, FlagDefinition
from trunkline.leads.ingest import FieldProblem, ObjectId
from trunkline.store import audit, flags
from trunkline.store.flags import Flag
from trunkline.store.tenants import PLATFORM

router = APIRouter(prefix=f"{API_ROOT}/flags", tags=["control"])

NAMED_MAX = 10_000
FlagName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="The name of the flag.")]
_NAMED = "Ids that are on (true) or off (false) whatever the percentage says. A merchant counts before its reseller."


class FlagIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"enabled": True, "percentage": 10, "resellers": {"acme": True}, "reason": "First tenth"}
            ]
        }
    )

    enabled: bool = Field(strict=True, description="false: off for everybody, whatever else is said.")
    percentage: int = Field(
        100, ge=0, le=100, strict=True, description="Of those who are not named, how many have it on."
    )
    resellers: dict[ObjectId, bool] = Field(default_factory=dict, max_length=NAMED_MAX, description=_NAMED)
    merchants: dict[ObjectId, bool] = Field(default_factory=dict, max_length=NAMED_MAX, description=_NAMED)
    reason: Reason = Field(description="Why. It is in the audit log.")


class FlagOut(Out):
    name: str
    meaning: str | None = Field(description="null: no part of this version asks for it.")
    is_set: bool = Field(description="false: nobody has set it, and the default of the code holds.")
    enabled: bool
    percentage: int
    resellers: dict[str, bool]
    merchants: dict[str, bool]
    reason: str | None
    changed_by: str | None
    changed_at: datetime | None


@router.get("", response_model=PageOut[FlagOut], responses=READ_ERRORS, summary="List flags")
async def list_flags(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[FlagOut]:
    """By name: those that somebody has set, and those that the code asks for. A tenant's key sees none."""
    cursors = Cursors("flags", who, query)
    after = cursors.start_key("")
    if not who.tenant.is_platform:
        return cursors.page([], lambda flag: flag.name)
    async with api.store.reading() as connection:
        stored = {flag.name: flag for flag in await flags.list_flags(connection)}
    names = [name for name in sorted({*stored, *DEFINITIONS}) if name > after]
    shown = [_shown(name, stored) for name in names[: cursors.fetch_limit]]
    return cursors.page(shown, lambda flag: flag.name)


@router.put("/{flag}", response_model=FlagOut, responses=WRITE_ERRORS, summary="Set a flag")
async def set_flag(flag: FlagName, body: FlagIn, who: AdminKey, api: Deps) -> FlagOut:
    """As a whole: what is left out is back at its default. In force within a second. Needs a key of the platform."""
    _require_platform(who)
    async with api.store.writing() as tx:
        stored = await flags.set_flag(
            tx,
            flag,
            enabled=body.enabled,
            percentage=body.percentage,
            resellers=body.resellers,
            merchants=body.merchants,
            reason=body.reason,
            by=who.actor,
        )
        await audit.record(
            tx,
            actor=who.actor,
            action="flag.set",
            subject=flag,
            tenant=PLATFORM,
            reason=body.reason,
            details=body.model_dump(mode="json", exclude={"reason"}),
        )
    return _shown(flag, {flag: stored})


@router.delete("/{flag}", response_model=FlagOut, responses=WRITE_ERRORS, summary="Unset a flag")
async def delete_flag(flag: FlagName, who: AdminKey, api: Deps, reason: LiftReason = None) -> FlagOut:
    """Back to the default of the code. Needs a key of the platform with the scope `admin`."""
    _require_platform(who)
    if not reason or not reason.strip() or not reason.isprintable():
        raise invalid(FieldProblem("reason", "Say why, in the query: ?reason=…"))
    async with api.store.writing() as tx:
        if await flags.delete_flag(tx, flag) is None:
            raise not_found("object")
        await audit.record(
            tx, actor=who.actor, action="flag.unset", subject=flag, tenant=PLATFORM, reason=reason
        )
    return _shown(flag, {})


def _require_platform(who: Principal) -> None:
    """To a tenant there are no flags."""
    if not who.tenant.is_platform:
        raise not_found("object")


def _shown(name: str, stored: Mapping[str, Flag]) -> FlagOut:
    definition, flag = DEFINITIONS.get(name), stored.get(name)
    meaning = definition.meaning if definition else None
    if flag is None:
        return _default(name, definition, meaning)
    return FlagOut(
        name=name,
        meaning=meaning,
        is_set=True,
        enabled=flag.enabled,
        percentage=flag.percentage,
        resellers=dict(flag.resellers),
        merchants=dict(flag.merchants),
        reason=flag.reason,
        changed_by=flag.changed_by,
        changed_at=flag.changed_at,
    )


def _default(name: str, definition: FlagDefinition | None, meaning: str | None) -> FlagOut:
    is_on = definition.default if definition else False
    return FlagOut(
        name=name,
        meaning=meaning,
        is_set=False,
        enabled=is_on,
        percentage=100 if is_on else 0,
        resellers={},
        merchants={},
        reason=None,
        changed_by=None,
        changed_at=None,
    )
