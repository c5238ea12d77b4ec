"""The subject of a control: which stops apply to it, and its owner."""

from collections.abc import Set
from dataclasses import dataclass
from uuid import UUID

from trunkline.api.errors import not_found
from trunkline.api.principal import Principal
from trunkline.control.controls import campaign_subject
from trunkline.schema.numbers import Number
from trunkline.schema.tenants import Merchant, Reseller
from trunkline.store import controls
from trunkline.store.controls import Scope
from trunkline.store.database import Connection
from trunkline.store.numbers import NUMBERS
from trunkline.store.tenants import MERCHANTS, PLATFORM, RESELLERS, Tenant, tenant_of


@dataclass(frozen=True, slots=True)
class ControlSubject:
    scope: Scope
    subject: str
    owner: Tenant


KILL_SWITCH = ControlSubject(Scope.KILL_SWITCH, "", PLATFORM)
PROMOTER = ControlSubject(Scope.PROMOTER, "", PLATFORM)


async def find_subject(
    conn: Connection, who: Principal, scope: Scope, subject: str, carriers: Set[str] | None
) -> ControlSubject:
    """Subjects of other tenants do not exist for this key; shared ones can be read."""
    owned: Reseller | Merchant | Number | None = None
    match scope:
        case Scope.RESELLER:
            owned = await RESELLERS.get(conn, who.tenant, subject)
        case Scope.MERCHANT:
            owned = await MERCHANTS.get(conn, who.tenant, subject)
        case Scope.NUMBER:
            owned = await NUMBERS.get(conn, who.tenant, _uuid(subject))
            subject = str(_uuid(subject))
        case Scope.CAMPAIGN:
            owner = await controls.campaign_owner(conn, who.tenant, _uuid(subject))
            if owner is not None and owner.merchant_id is not None:
                return ControlSubject(scope, campaign_subject(owner.merchant_id, _uuid(subject)), owner)
        case _ if carriers is None or subject in carriers:
            return ControlSubject(scope, subject, PLATFORM)
    if owned is None:
        raise not_found(scope.value)
    return ControlSubject(scope, subject, tenant_of(owned))


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise not_found("object") from None
