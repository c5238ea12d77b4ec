"""Creates a pool and reads it again, with the client that openapi-python-client has generated: round_trip.py URL KEY."""

import sys

from trunkline_client import AuthenticatedClient
from trunkline_client.api.numbers import create_pool, get_pool, list_pools
from trunkline_client.models import ErrorOut, NewPool, Pool


def main(url: str, key: str) -> None:
    with AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True) as client:
        created = create_pool.sync(client=client, body=NewPool(id="generated", name="Main numbers"))
        assert isinstance(created, Pool), created
        read = get_pool.sync("generated", client=client)
        assert read == created, read
        page = list_pools.sync(client=client)
        assert created in page.items, page
        missing = get_pool.sync("nothing-here", client=client)
        assert isinstance(missing, ErrorOut) and missing.code == "not_found", missing


if __name__ == "__main__":
    main(*sys.argv[1:])
