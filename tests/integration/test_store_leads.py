"""Lists of leads keep their indexes, whatever the filter."""

from collections.abc import AsyncIterator
from itertools import product
from uuid import UUID

import pytest

from trunkline.states import LeadStatus
from trunkline.store.database import Connection, Database, connect
from trunkline.store.leads import LeadFilter, _list_query, list_leads
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
TYPES = "text, text, text, uuid, text, text[], uuid, int"

LAST = UUID(int=2**128 - 1)
TENANTS = (Tenant("r7", "m7"), Tenant("r7"), PLATFORM)
CASES = [
    (PLATFORM, LeadFilter(), "leads_pkey"),
    (PLATFORM, LeadFilter(status=LeadStatus.BACKLOG), "leads_unfinished"),
    (PLATFORM, LeadFilter(status=LeadStatus.FINISHED), "leads_by_reseller"),
    (Tenant("r1"), LeadFilter(), "leads_by_reseller"),
    (Tenant("r1", "m1"), LeadFilter(), "leads_by_merchant"),
    (Tenant("r1"), LeadFilter(merchant_id="m1", status=LeadStatus.FINISHED), "leads_by_merchant"),
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
            assert "Seq Scan on leads" not in plan, plan


# One merchant with a thousand leads that wait, under 20,000 newer ones that are finished.
BURY = """
INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, campaign_id, pool_id, status,
                   outcome, finished_at, scheduled_at, due_at)
SELECT ('01900000-0000-7000-9000-' || lpad(to_hex(i), 12, '0'))::uuid, 'r7', 'm7', 'buried' || i,
       sha256(i::text::bytea), '+14155550123', '00000000-0000-0000-0000-0000000000ff',
       'p', CASE WHEN i <= 1000 THEN 'BACKLOG' ELSE 'FINISHED' END, CASE WHEN i > 1000 THEN 'ANSWERED' END,
       CASE WHEN i > 1000 THEN now() END, now(), now()
FROM generate_series(1, 21000) i;
ANALYZE leads;
"""


async def test_a_list_of_waiting_leads_reads_no_finished_ones(
    database: Database, subtests: pytest.Subtests
) -> None:
    async with database.connection() as connection:
        await connection.execute(BURY)
    for tenant, campaign_id in product(TENANTS, (None, UUID(int=255))):
        wanted = LeadFilter(status=LeadStatus.BACKLOG, campaign_id=campaign_id)
        with subtests.test(tenant=tenant, campaign_id=campaign_id):
            async with database.transaction() as tx:
                plan = await analyzed(tx, tenant, wanted)
                found = await list_leads(tx, tenant, wanted, before=LAST, limit=51)
            assert "Rows Removed" not in plan, plan
            assert len(found) == 51
            assert {lead.status for lead in found} == {"BACKLOG"}


async def analyzed(tx: Connection, tenant: Tenant, wanted: LeadFilter) -> str:
    """What a page of the list has read."""
    statement = _list_query(tenant, wanted, tenant.merchant_id)
    owner = (tenant.reseller_id, tenant.merchant_id, tenant.merchant_id)
    values = (*owner, wanted.campaign_id, None, wanted.statuses, LAST, 51)
    rows = await tx.fetch(f"EXPLAIN (ANALYZE, BUFFERS OFF) {statement}", *values)
    return "\n".join(row[0] for row in rows)


async def test_a_list_of_all_leads_is_newest_first_whatever_their_status(
    database: Database, subtests: pytest.Subtests
) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE leads SET status = 'PROCESSING' WHERE status = 'BACKLOG' AND mod(request_id::int, 40) = 0"
        )
        for tenant in TENANTS:
            with subtests.test(tenant=tenant):
                page = await list_leads(connection, tenant, LeadFilter(), before=LAST, limit=40)
                after = await list_leads(connection, tenant, LeadFilter(), before=page[19].id, limit=20)
                assert [lead.id for lead in page] == sorted((lead.id for lead in page), reverse=True)
                assert after == page[20:]
