"""Calling policies: windows, limits and pre-checks. One layer per platform, reseller, merchant and campaign;
restrictions add up, preferences are those of the nearest layer."""

from collections.abc import Callable, Container
from dataclasses import replace
from datetime import date
from typing import Annotated, get_args
from uuid import UUID

from fastapi import BackgroundTasks, Path
from pydantic import ConfigDict, Field

from trunkline.api.auth import AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import invalid, not_found
from trunkline.api.models import Body, require_found
from trunkline.api.ownership import record
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes, extended, get_one
from trunkline.dispatch.policy_cache import campaign_key
from trunkline.errors import StoreUnavailable
from trunkline.http.outgoing import check_url
from trunkline.leads.calling_policy import CallingPolicy, problems
from trunkline.leads.ingest import FieldProblem
from trunkline.leads.limits import PersonLimit
from trunkline.leads.rule_packs import AbandonedCalls, AreaPrefix, Pack, known_packs, named
from trunkline.leads.rule_packs import warnings as pack_warnings
from trunkline.leads.windows import Window
from trunkline.schema.fields import ObjectId
from trunkline.schema.policy import PolicyLayer, PolicyScope, RulePack, RulePacks
from trunkline.store import policy as store
from trunkline.store.database import Connection
from trunkline.store.policy import PolicyKey, StoredPolicy
from trunkline.store.tenants import MERCHANTS, PLATFORM, RESELLERS, Tenant, tenant_of
from trunkline.telemetry import get_logger

log = get_logger(__name__)
router = Routes("", "policy")

WAKE_BATCH = 5000
HIDDEN = "***"
PLATFORMS = PolicyKey("platform", "")
_SCOPES = get_args(PolicyScope)
_PLATFORMS_OWN = ("prechecks", "price")


PackPath = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", examples=["us-tcpa"])]


class PackIn(Body):
    """Edits a rule pack, or adds one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "as_of": "2030-01-01",
                    "note": "Germany, as our lawyers read it",
                    "region": "DE",
                    "windows": [{"spans": [{"days": ["mon", "tue"], "start": "09:00", "end": "20:00"}]}],
                }
            ]
        }
    )

    as_of: date = Field(description="When it was last compared with the law.")
    note: str = Field(max_length=500, description="What it is based on.")
    windows: tuple[Window, ...] = Field((), max_length=20, description="When calls are allowed.")
    person_limits: tuple[PersonLimit, ...] = Field(
        (), max_length=10, description="How often one person is called at most."
    )
    abandoned_calls: AbandonedCalls | None = Field(
        None, description="Overdialling: the share, the message, the ring time, and the next call."
    )
    region: str | None = Field(None, pattern=r"^[A-Z]{2}$", description="The country of the callee's number.")
    prefixes: tuple[AreaPrefix, ...] = Field((), max_length=500, description="Instead of the country.")


@router.get("/policy/packs", summary="List the packs of legal hours")
async def list_packs(who: ReadKey, api: Deps) -> RulePacks:
    """Those that come with the platform, unless the operator edited them, and those that the operator added."""
    async with api.store.reading() as connection:
        edited = await _edited_packs(connection)
    known = known_packs(edited.values())
    today = api.deps.clock.now().date()
    return RulePacks([_pack(pack, edited, today) for _, pack in sorted(known.items())])


@router.put(
    "/policy/packs/{pack_name}",
    summary="Edit a pack of legal hours, or add one",
)
async def put_pack(
    pack_name: PackPath, body: PackIn, who: AdminKey, api: Deps, afterwards: BackgroundTasks
) -> RulePack:
    """In force for all policies that name it within a second. Needs a key of the platform."""
    _require_operator(who)
    pack = Pack.model_validate(body.model_dump() | {"name": pack_name})
    async with api.store.writing() as tx:
        edited = await _change_packs(tx, api, who, lambda packs: packs | {pack_name: pack})
    afterwards.add_task(wake_leads, api, PLATFORM)
    return _pack(pack, edited, api.deps.clock.now().date())


@router.delete(
    "/policy/packs/{pack_name}",
    status_code=204,
    summary="Remove an edited pack",
)
async def delete_pack(pack_name: PackPath, who: AdminKey, api: Deps, afterwards: BackgroundTasks) -> None:
    """Restores the platform's own pack of this name. An added pack is removed; policies that still name it are held to
    all packs together. Needs a key of the platform."""
    _require_operator(who)
    async with api.store.writing() as tx:
        if pack_name not in await _edited_packs(tx):
            raise not_found("edited pack")
        await _change_packs(
            tx, api, who, lambda packs: {each: pack for each, pack in packs.items() if each != pack_name}
        )
    afterwards.add_task(wake_leads, api, PLATFORM)


@router.get("/policy", summary="Get the platform's policy")
async def get_platform_policy(who: ReadKey, api: Deps) -> PolicyLayer:
    """A tenant sees its restrictions, and neither prices nor pre-checks."""
    layer = await _get(api, who, PLATFORMS)
    if who.tenant.is_platform:
        return layer
    seen = {name: value for name, value in layer.policy.items() if name not in _PLATFORMS_OWN}
    return replace(layer, policy=seen)


@router.put("/policy", summary="Set the platform's policy")
async def put_platform_policy(
    body: CallingPolicy, who: AdminKey, api: Deps, afterwards: BackgroundTasks
) -> PolicyLayer:
    """For all tenants: no reseller, merchant or campaign can loosen it. Edited packs stay, unless it names some."""
    require_platform(who, "set the platform's policy")
    async with api.store.writing() as tx:
        if body.edited_packs is None:
            await store.lock(tx)
            kept = tuple((await _edited_packs(tx)).values())
            body = CallingPolicy.model_validate(
                body.model_dump(exclude_unset=True) | ({"edited_packs": kept} if kept else {})
            )
        row = await put_layer(tx, api, who, PLATFORMS, body, PLATFORM)
    afterwards.add_task(wake_leads, api, PLATFORM)
    return await _shown(api, who, row)


@router.get("/resellers/{reseller_id}/policy", summary="Get a reseller's policy")
async def get_reseller_policy(reseller_id: ObjectId, who: ReadKey, api: Deps) -> PolicyLayer:
    await get_one(api, who, RESELLERS, reseller_id, "reseller")
    return await _get(api, who, PolicyKey("reseller", reseller_id))


@router.put("/resellers/{reseller_id}/policy", summary="Set a reseller's policy")
async def put_reseller_policy(
    reseller_id: ObjectId, body: CallingPolicy, who: AdminKey, api: Deps, afterwards: BackgroundTasks
) -> PolicyLayer:
    """For all its merchants."""
    async with api.store.writing() as tx:
        owner = tenant_of(require_found(await RESELLERS.get(tx, who.tenant, reseller_id), "reseller"))
        row = await put_layer(tx, api, who, PolicyKey("reseller", reseller_id), body, owner)
    afterwards.add_task(wake_leads, api, owner)
    return await _shown(api, who, row)


@router.get("/merchants/{merchant_id}/policy", summary="Get a merchant's policy")
async def get_merchant_policy(merchant_id: ObjectId, who: ReadKey, api: Deps) -> PolicyLayer:
    await get_one(api, who, MERCHANTS, merchant_id, "merchant")
    return await _get(api, who, PolicyKey("merchant", merchant_id))


@router.put("/merchants/{merchant_id}/policy", summary="Set a merchant's policy")
async def put_merchant_policy(
    merchant_id: ObjectId, body: CallingPolicy, who: AdminKey, api: Deps, afterwards: BackgroundTasks
) -> PolicyLayer:
    """Takes effect within a second, also for leads that wait for a window to open. Replaces the whole layer."""
    return await _put_of_merchant(api, who, merchant_id, PolicyKey("merchant", merchant_id), body, afterwards)


@router.delete(
    "/merchants/{merchant_id}/policy",
    status_code=204,
    summary="Remove a merchant's policy",
)
async def delete_merchant_policy(
    merchant_id: ObjectId, who: AdminKey, api: Deps, afterwards: BackgroundTasks
) -> None:
    async with api.store.writing() as tx:
        owner = tenant_of(require_found(await MERCHANTS.get(tx, who.tenant, merchant_id), "merchant"))
        await store.remove(tx, PolicyKey("merchant", merchant_id))
        await record(tx, who, "policy.removed", f"merchant {merchant_id}", owner)
    afterwards.add_task(wake_leads, api, owner)


@router.get(
    "/merchants/{merchant_id}/campaigns/{campaign_id}/policy",
    summary="Get a campaign's policy",
)
async def get_campaign_policy(
    merchant_id: ObjectId, campaign_id: UUID, who: ReadKey, api: Deps
) -> PolicyLayer:
    await get_one(api, who, MERCHANTS, merchant_id, "merchant")
    return await _get(api, who, campaign_key(merchant_id, campaign_id))


@router.put(
    "/merchants/{merchant_id}/campaigns/{campaign_id}/policy",
    summary="Set a campaign's policy",
)
async def put_campaign_policy(
    merchant_id: ObjectId,
    campaign_id: UUID,
    body: CallingPolicy,
    who: AdminKey,
    api: Deps,
    afterwards: BackgroundTasks,
) -> PolicyLayer:
    """With its pace and its concurrent calls."""
    return await _put_of_merchant(
        api, who, merchant_id, campaign_key(merchant_id, campaign_id), body, afterwards
    )


async def _put_of_merchant(
    api: Api,
    who: Principal,
    merchant_id: str,
    key: PolicyKey,
    body: CallingPolicy,
    afterwards: BackgroundTasks,
) -> PolicyLayer:
    async with api.store.writing() as tx:
        owner = tenant_of(require_found(await MERCHANTS.get(tx, who.tenant, merchant_id), "merchant"))
        row = await put_layer(tx, api, who, key, body, owner)
    afterwards.add_task(wake_leads, api, owner)
    return await _shown(api, who, row)


async def _get(api: Api, who: Principal, key: PolicyKey) -> PolicyLayer:
    async with api.store.reading() as connection:
        rows = await store.read(connection, [key])
    return await _shown(api, who, rows[0]) if rows else PolicyLayer(*key, {}, 0, None)


async def put_layer(
    tx: Connection, api: Api, who: Principal, key: PolicyKey, body: CallingPolicy, owner: Tenant
) -> StoredPolicy:
    """Refused if it is not valid under the layers above."""
    platform, reseller, merchant = PLATFORMS, owner.reseller_id or "", owner.merchant_id or ""
    layers = (platform, PolicyKey("reseller", reseller), PolicyKey("merchant", merchant))
    above = await store.read(tx, layers[: _SCOPES.index(key.scope)])
    stated = [CallingPolicy.model_validate(row.policy) for row in above]
    allow_insecure = api.deps.jobs is not None and api.deps.jobs.allow_insecure_webhooks
    wrong = [
        FieldProblem(problem.field, problem.error)
        for problem in problems(body, key.scope, stated, api.deps.clock.now())
    ]
    wrong += [
        FieldProblem(f"prechecks.{index}.url", error)
        for index, check in enumerate(body.prechecks or ())
        if (error := check_url(check.url, allow_insecure=allow_insecure))
    ]
    if wrong:
        raise invalid(*wrong)
    document = body.model_dump(mode="json", exclude_unset=True)
    row = await store.put(tx, key, document, owner=owner, actor=who.actor)
    await record(tx, who, "policy.set", f"{key.scope} {key.subject}".strip(), owner, version=row.version)
    return row


async def _shown(api: Api, who: Principal, row: StoredPolicy) -> PolicyLayer:
    """With a warning about outdated packs. Headers of pre-checks may hold a secret: only a key that may change them
    sees them."""
    document, warnings = dict(row.policy), []
    if "admin" not in who.scopes and document.get("prechecks"):
        document["prechecks"] = [
            check | {"headers": dict.fromkeys(check.get("headers", {}), HIDDEN)}
            for check in document["prechecks"]
        ]
    if names := row.policy.get("packs"):
        async with api.store.reading() as connection:
            known = known_packs((await _edited_packs(connection)).values())
        warnings = pack_warnings([named(name, known) for name in names], api.deps.clock.now().date())
    return extended(PolicyLayer, row, policy=document, warnings=warnings)


def _require_operator(who: Principal) -> None:
    """A tenant cannot edit these: it can only read them."""
    if not who.tenant.is_platform:
        raise not_found("edited pack")


async def _edited_packs(conn: Connection) -> dict[str, Pack]:
    rows = await store.read(conn, [PLATFORMS])
    edited = CallingPolicy.model_validate(rows[0].policy).edited_packs if rows else ()
    return {pack.name: pack for pack in edited or ()}


async def _change_packs(
    tx: Connection, api: Api, who: Principal, change: Callable[[dict[str, Pack]], dict[str, Pack]]
) -> dict[str, Pack]:
    """Under a lock, so that concurrent edits do not undo each other."""
    await store.lock(tx)
    rows = await store.read(tx, [PLATFORMS])
    document = dict(rows[0].policy) if rows else {}
    packs = change(await _edited_packs(tx))
    document["edited_packs"] = [pack.model_dump(mode="json", exclude_unset=True) for pack in packs.values()]
    await put_layer(tx, api, who, PLATFORMS, CallingPolicy.model_validate(document), PLATFORM)
    return packs


def _pack(pack: Pack, edited: Container[str], today: date) -> RulePack:
    return RulePack(
        name=pack.name,
        is_edited=pack.name in edited,
        as_of=pack.as_of,
        is_old=pack.is_old(today),
        note=pack.note,
        region=pack.region,
        prefixes=list(pack.prefixes),
        windows=[window.model_dump(mode="json", exclude_unset=True) for window in pack.windows],
        person_limits=[limit.model_dump(mode="json") for limit in pack.person_limits],
        abandoned_calls=pack.abandoned_calls.model_dump(mode="json", exclude_none=True)
        if pack.abandoned_calls
        else None,
    )


async def wake_leads(api: Api, tenant: Tenant) -> None:
    """After the response: reschedule leads that wait for a window, in batches. The others keep their due times."""
    try:
        while True:
            async with api.store.autocommit() as connection:
                if await store.wake(connection, tenant, limit=WAKE_BATCH) < WAKE_BATCH:
                    return
    except StoreUnavailable as error:
        log.warning("policy.not_woken", reason=str(error))
