"""The subject of a control: which stops apply to it, and its owner."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from trunkline.api.errors import not_found
from trunkline.api.principal import Principal
from trunkline.control.controls import campaign_subject
from trunkline.store import controls, numbers, tenants
from trunkline.store.controls import Scope
from trunkline.store.database import Connection
from trunkline.store.tenants import PLATFORM, Tenant


class HasOwner(Protocol):
    @property
    def tenant(self) -> Tenant: ...


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
    owned: HasOwner | None = None
    match scope:
        case Scope.RESELLER:
            owned = await tenants.get_reseller(conn, who.tenant, subject)
        case Scope.MERCHANT:
            owned = await tenants.get_merchant(conn, who.tenant, subject)
        case Scope.NUMBER:
            owned = await numbers.get(conn, who.tenant, _uuid(subject))
            subject = str(_uuid(subject))
        case Scope.CAMPAIGN:
            owner = await controls.campaign_owner(conn, who.tenant, _uuid(subject))
            if owner is not None and owner.merchant_id is not None:
                return ControlSubject(scope, campaign_subject(owner.merchant_id, _uuid(subject)), owner)
        case _ if carriers is None or subject in carriers:
            return ControlSubject(scope, subject, PLATFORM)
    if owned is None:
        raise not_found(scope.value)
    return ControlSubject(scope, subject, owned.tenant)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise not_found("object") from None
