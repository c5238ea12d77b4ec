"""For a first call nobody has to think of tenants: a reseller, a merchant and a pool, all named `default`."""

from trunkline.cli.control import ROOT
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport

DEFAULT = "default"


async def ensure_first_tenant(api: Transport) -> None:
    """Make what is not there yet. What is there stays as it is."""
    reseller = {"id": DEFAULT, "name": "Default"}
    pool = {"id": DEFAULT, "name": "Default", "reseller_id": DEFAULT}
    merchant = {"id": DEFAULT, "name": "Default", "reseller_id": DEFAULT, "default_pool": DEFAULT}
    for what, body in (("resellers", reseller), ("pools", pool), ("merchants", merchant)):
        try:
            await api.post(f"{ROOT}/{what}", body)
        except ApiError as error:
            if error.code != "already_exists":
                raise
