"""The principal of the request's key."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field

from trunkline.api.auth import API_ROOT, AnyKey
from trunkline.api.models import Out, documented

router = APIRouter(prefix=f"{API_ROOT}/me", tags=["keys"])


class MeOut(Out):
    key_id: UUID
    name: str
    scopes: list[str]
    reseller_id: str | None = Field(description="null: a key of the platform.")
    merchant_id: str | None = Field(description="null: a key of a whole reseller, or of the platform.")
    expires_at: datetime | None


@router.get(
    "", response_model=MeOut, responses=documented(401, 503), summary="Get the owner and scopes of the key"
)
async def get_me(who: AnyKey) -> MeOut:
    """Scopes and tenant of the key of this request."""
    return MeOut(
        key_id=who.key_id,
        name=who.name,
        scopes=sorted(who.scopes),
        reseller_id=who.tenant.reseller_id,
        merchant_id=who.tenant.merchant_id,
        expires_at=who.expires_at,
    )
