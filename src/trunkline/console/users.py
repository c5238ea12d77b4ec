"""Names of keys for people: the audit log has their ids."""

from collections.abc import Mapping

from trunkline.console.api_client import ApiRefused
from trunkline.console.page_request import PageRequest

KEYS_MAX = 200


async def names(visit: PageRequest) -> Mapping[str, str]:
    """Of the keys that this one may see; none without the scope `admin`."""
    if not visit.may():
        return {}
    try:
        keys = await visit.api.get("/keys", {"limit": KEYS_MAX})
    except ApiRefused:
        return {}
    return {f"key:{key['id']}": key["name"] for key in keys["items"]}
