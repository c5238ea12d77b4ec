"""The platform behind a real transaction pooler: no session state may be relied on."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.store.pooler import PGBOUNCER, transaction_pooler
from tests.support.world import open_world

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


async def test_calls_go_through_behind_a_transaction_pooler(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the pooler runs as somebody else
        async with (
            transaction_pooler(database_url, Path(folder) / "pooler") as pooled_url,
            open_world(
                pooled_url,
                redis_url,
                key_prefix,
                DATABASE_DIRECT_URL=database_url,
                DATABASE_POOLER="transaction",
            ) as world,
        ):
            await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=3)
            leads = [
                await world.client.create_lead(merchant_id="m", phone=f"+150055510{n:02d}") for n in range(5)
            ]
            for lead in leads:
                assert (await world.finished(lead.id)).outcome == "ANSWERED"
            assert world.carrier.ledger.double_dials() == []
