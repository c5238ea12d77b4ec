"""The principal of a request, and its permissions."""

from dataclasses import dataclass
from datetime import datetime
from typing import get_args
from uuid import UUID

from trunkline.schema.keys import ApiKey
from trunkline.schema.keys import Scope as Scope
from trunkline.store.tenants import Tenant, tenant_of

SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True, slots=True)
class Principal:
    key_id: UUID
    name: str
    scopes: frozenset[str]
    tenant: Tenant
    expires_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> "Principal":
        return cls(key.id, key.name, frozenset(key.scopes), tenant_of(key), key.expires_at)

    @property
    def actor(self) -> str:
        """The name of this key in the audit log."""
        return f"key:{self.key_id}"

    def may(self, scopes: tuple[Scope, ...]) -> bool:
        """Any of these is sufficient, and `admin` is sufficient for everything."""
        return not self.scopes.isdisjoint(scopes) or "admin" in self.scopes
