"""Lists of leads keep their indexes, whatever the filter."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from trunkline.store.database import Connection, Database, connect
from trunkline.store.leads import LeadFilter, _list_query
from trunkline.store.tenants import PLATFORM, Tenant

CAMPAIGN = UUID(int=1)
# 50,000 leads of 500 merchants of 50 resellers, most of them finished.
FILL = """
INSERT INTO resellers SELECT 'r' || i, 'R' FROM generate_series(0, 49) i;
INSERT INTO merchants (id, reseller_id, name) SELECT 'm' || i, 'r' || i % 50, 'M' FROM generate_series(0, 499) i;
INSERT INTO pools (id, name) VALUES ('p', 'P');
INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, campaign_id, pool_id, status,
                   outcome, finished_at, scheduled_at, due_at)
SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'r' || i % 50, 'm' || i % 500, i::text,
       sha256(i::text::bytea), '+1415' || 5550000 + i % 10000,
       CASE WHEN i % 10 = 0 THEN ('00000000-0000-0000-0000-' || lpad(to_hex(i % 100), 12, '0'))::uuid END,
       'p', CASE WHEN i % 20 = 0 THEN 'BACKLOG' ELSE 'FINISHED' END, CASE WHEN i % 20 > 0 THEN 'ANSWERED' END,
       CASE WHEN i % 20 > 0 THEN now() END, now(), now()
FROM generate_series(1, 50000) i;
ANALYZE leads;
"""
TYPES = "text, text, text, uuid, text, text, uuid, int"

CASES = [
    (PLATFORM, LeadFilter(), "leads_pkey"),
    (PLATFORM, LeadFilter(status="BACKLOG"), "leads_pkey"),
    (Tenant("r1"), LeadFilter(), "leads_by_reseller"),
    (Tenant("r1", "m1"), LeadFilter(), "leads_by_merchant"),
    (Tenant("r1"), LeadFilter(merchant_id="m1", status="FINISHED"), "leads_by_merchant"),
    (Tenant("r1", "m1"), LeadFilter(campaign_id=CAMPAIGN), "leads_by_campaign"),
    (Tenant("r1"), LeadFilter(merchant_id="m1", phone="+14155550123"), "leads_by_phone"),
]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await connect(database_url)
    async with database.connection() as connection:
        await connection.execute(FILL)
    yield database
    await database.close()


async def generic_plan(tx: Connection, statement: str) -> str:
    """The plan that a prepared statement ends up with, once its values are no longer looked at."""
    await tx.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await tx.execute(f"PREPARE page ({TYPES}) AS {statement}")
    rows = await tx.fetch("EXPLAIN EXECUTE page (NULL, NULL, NULL, NULL, NULL, NULL, NULL, 51)")
    await tx.execute("DEALLOCATE page")
    return "\n".join(row[0] for row in rows)


async def test_every_list_is_read_by_the_index_of_its_narrowest_filter(
    database: Database, subtests: pytest.Subtests
) -> None:
    for tenant, wanted, index in CASES:
        with subtests.test(tenant=tenant, wanted=wanted):
            merchant_id = wanted.merchant_id or tenant.merchant_id
            async with database.transaction() as tx:
                plan = await generic_plan(tx, _list_query(tenant, wanted, merchant_id))
            assert index in plan, plan
            assert "Seq Scan" not in plan, plan
