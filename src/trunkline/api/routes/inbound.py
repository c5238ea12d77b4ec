"""The inbound policy of a number: which callers are admitted, and what the others get.

Without a policy every caller is admitted while a channel is free, and the others get a busy signal.
"""

from dataclasses import replace
from uuid import UUID

from trunkline.api.auth import AdminKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.errors import invalid
from trunkline.api.models import require_found
from trunkline.api.ownership import record, require_owner
from trunkline.api.resources import Routes
from trunkline.leads import phones
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.inbound import InboundPolicy, NewInboundPolicy
from trunkline.schema.numbers import Number
from trunkline.store import inbound
from trunkline.store.database import Connection
from trunkline.store.numbers import NUMBERS
from trunkline.store.tenants import MERCHANTS, PLATFORM, tenant_of

router = Routes("/numbers/{number_id}/inbound", "numbers")


@router.get("", summary="Get the inbound policy of a number")
async def get_inbound(number_id: UUID, who: ReadKey, api: Deps) -> InboundPolicy:
    async with api.store.reading() as connection:
        require_found(await NUMBERS.get(connection, who.tenant, number_id), "number")
        return await inbound.get_policy(connection, number_id) or _undecided(number_id)


@router.put("", summary="Set the inbound policy of a number")
async def put_inbound(number_id: UUID, body: NewInboundPolicy, who: AdminKey, api: Deps) -> InboundPolicy:
    """Replaces the policy: omitted fields get their defaults. In force from the next call on."""
    async with api.store.writing() as tx:
        number = require_found(await NUMBERS.get(tx, who.tenant, number_id), "number")
        require_owner(who, tenant_of(number), "number")
        await _check_merchant(tx, number, body.merchant_id)
        policy = await inbound.put_policy(tx, number_id, _checked(body))
        details = {name: getattr(body, name) for name in ("admits", "merchant_id", "otherwise", "message")}
        await record(tx, who, "number.inbound_changed", number.id, tenant_of(number), **details)
    return policy


@router.delete("", status_code=204, summary="Remove the inbound policy of a number")
async def delete_inbound(number_id: UUID, who: AdminKey, api: Deps) -> None:
    async with api.store.writing() as tx:
        number = require_found(await NUMBERS.get(tx, who.tenant, number_id), "number")
        require_owner(who, tenant_of(number), "number")
        await inbound.delete_policy(tx, number_id)
        await record(tx, who, "number.inbound_changed", number.id, tenant_of(number))


def _undecided(number_id: UUID) -> InboundPolicy:
    return InboundPolicy(number_id, "everybody", [], None, "reject", None, None, None)


def _checked(body: NewInboundPolicy) -> NewInboundPolicy:
    problems = [
        FieldProblem(
            name,
            "Needed, as `otherwise` says." if otherwise == body.otherwise else "Only as `otherwise` says.",
        )
        for name, otherwise, value in (
            ("message", "message", body.message),
            ("redirect_to", "redirect", body.redirect_to),
        )
        if (otherwise == body.otherwise) != (value is not None)
    ]
    whitelist, bad = _e164s(body.whitelist, "whitelist")
    redirect_to, worse = _e164s([body.redirect_to] if body.redirect_to else [], "redirect_to")
    problems += [*bad, *worse]
    if problems:
        raise invalid(*problems)
    return replace(body, whitelist=whitelist, redirect_to=redirect_to[0] if redirect_to else None)


def _e164s(texts: list[str], field: str) -> tuple[list[str], list[FieldProblem]]:
    good, bad = [], []
    for text in texts:
        match phones.to_e164(text, None):
            case phones.BadPhone(error=error):
                bad.append(FieldProblem(field, error))
            case str() as e164:
                good.append(e164)
    return list(dict.fromkeys(good)), bad


async def _check_merchant(tx: Connection, number: Number, merchant_id: str | None) -> None:
    """A merchant's number has that merchant; a shared number may name any merchant that shares it."""
    if merchant_id is None:
        return
    merchant = await MERCHANTS.get(tx, PLATFORM, merchant_id)
    is_theirs = merchant is not None and number.reseller_id in (None, merchant.reseller_id)
    if not is_theirs or number.merchant_id not in (None, merchant_id):
        raise invalid(FieldProblem("merchant_id", "This merchant does not use the number."))
