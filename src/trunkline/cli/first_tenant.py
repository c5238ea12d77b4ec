"""Default tenants, so that a first call needs none: a reseller, a merchant and a pool, all named `default`."""

from trunkline.cli.control import ROOT
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport

DEFAULT = "default"


async def ensure_first_tenant(api: Transport) -> None:
    """Create those that are missing, and do not change existing ones."""
    reseller = {"id": DEFAULT, "name": "Default"}
    pool = {"id": DEFAULT, "name": "Default", "reseller_id": DEFAULT}
    merchant = {"id": DEFAULT, "name": "Default", "reseller_id": DEFAULT, "default_pool": DEFAULT}
    for what, body in (("resellers", reseller), ("pools", pool), ("merchants", merchant)):
        try:
            await api.post(f"{ROOT}/{what}", body)
        except ApiError as error:
            if error.code != "already_exists":
                raise
