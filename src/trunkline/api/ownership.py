"""The owner of a new object: the tenant of the key, or one below it."""

from trunkline.api.auth import require_platform
from trunkline.api.errors import forbidden, invalid, unknown
from trunkline.api.principal import Principal
from trunkline.leads.ingest import FieldProblem
from trunkline.store import audit
from trunkline.store.database import Connection
from trunkline.store.tenants import MERCHANTS, RESELLERS, Tenant, tenant_of


async def owner_of(
    tx: Connection, who: Principal, reseller_id: str | None, merchant_id: str | None
) -> Tenant:
    """The tenant that a body names. None: the key's own. A tenant that the key cannot see does not exist for it."""
    merchant_id = merchant_id or who.tenant.merchant_id
    reseller_id = reseller_id or who.tenant.reseller_id
    if merchant_id is not None:
        return await _merchant(tx, who, reseller_id, merchant_id)
    if reseller_id is None:
        return who.tenant
    reseller = await RESELLERS.get(tx, who.tenant, reseller_id)
    if reseller is None:
        raise unknown("reseller_id", "reseller")
    return tenant_of(reseller)


async def _merchant(tx: Connection, who: Principal, reseller_id: str | None, merchant_id: str) -> Tenant:
    merchant = await MERCHANTS.get(tx, who.tenant, merchant_id)
    if merchant is None:
        raise unknown("merchant_id", "merchant")
    if reseller_id not in (None, merchant.reseller_id):
        raise invalid(FieldProblem("reseller_id", "The merchant belongs to another reseller."))
    return tenant_of(merchant)


def require_owner(who: Principal, owner: Tenant, thing: str) -> None:
    """Tenants below may read shared objects; only the owner may change them."""
    if owner.is_platform:
        require_platform(who, f"change this {thing}")
    elif not who.tenant.owns(owner):
        raise forbidden("not_owner", f"This {thing} is shared with you. Only its owner may change it.")


async def record(
    tx: Connection,
    who: Principal,
    action: str,
    subject: object,
    owner: Tenant,
    *,
    reason: object = None,
    **details: object,
) -> None:
    """A line in the audit log, in the transaction of the change."""
    text = None if reason is None else str(reason)
    await audit.record(
        tx, actor=who.actor, action=action, subject=str(subject), tenant=owner, details=details, reason=text
    )
