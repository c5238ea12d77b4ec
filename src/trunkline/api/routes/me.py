"""The principal of the request's key."""

from fastapi import APIRouter

from trunkline.api.auth import API_ROOT, AnyKey
from trunkline.api.models import documented
from trunkline.schema.keys import Me

router = APIRouter(prefix=f"{API_ROOT}/me", tags=["keys"])


@router.get("", responses=documented(401, 503), summary="Get the owner and scopes of the key")
async def me(who: AnyKey) -> Me:
    """Scopes and tenant of the key of this request."""
    return Me(
        who.key_id,
        who.name,
        sorted(who.scopes),
        who.tenant.reseller_id,
        who.tenant.merchant_id,
        who.expires_at,
    )
