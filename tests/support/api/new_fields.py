"""The round trip of two new fields through client, API and store: `python new_fields.py <database URL>`.

It runs on a copy of the tree in which `tests/acceptance/test_new_fields.py` has added them: `note` to a pool, and
`reference` to a lead.
"""

import asyncio
import sys
from typing import Any

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, open_api
from trunkline.client import TrunklineClient
from trunkline.store.migrate import migrate


async def pool_keeps_its_note(client: Any) -> None:
    await client.create_reseller("acme", "Acme Inc.")
    pool = await client.create_pool("main", "Main numbers", reseller_id="acme", note="ours")
    assert pool.note == "ours"
    assert (await client.update_pool("main", note=None)).note is None
    assert (await client.update_pool("main", note="again", name="Other")).note == "again"
    assert [each.note async for each in client.list_pools()] == ["again"]


async def lead_keeps_its_reference(client: Any) -> None:
    await client.create_merchant("shop", "Shop", reseller_id="acme", default_pool="main")
    lead = await client.create_lead(phone="+14155550123", merchant_id="shop", reference="order 1")
    assert lead.reference == "order 1"
    assert (await client.get_lead(lead.id)).reference == "order 1"
    row = {"request_id": "2", "phone": "+14155550124", "merchant_id": "shop", "reference": "order 2"}
    await client.create_leads([row])
    found = {each.reference async for each in client.list_leads(merchant_id="shop")}
    assert found == {"order 1", "order 2"}


async def main(database_url: str) -> None:
    await migrate(database_url)
    async with (
        open_api(database_url, populate=False) as world,
        serve(world.app) as url,
        TrunklineClient(url, ADMIN_KEY) as client,
    ):
        await pool_keeps_its_note(client)
        await lead_keeps_its_reference(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
