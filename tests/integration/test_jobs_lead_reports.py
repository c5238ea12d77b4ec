"""The end of a lead is sent to the subscribed endpoints: by any way of ending, exactly if it is committed, once."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.jobs.world import JobWorld, job_world
from trunkline.jobs.platform import signing
from trunkline.jobs.platform.catalogue import known_types
from trunkline.jobs.platform.lead_reports import REPORT_LEAD, LeadReport
from trunkline.jobs.platform.webhooks import Webhook
from trunkline.jobs.registry import Registry
from trunkline.model import new_id
from trunkline.schema.tenants import NewMerchant, NewReseller
from trunkline.schema.webhook_endpoints import NewWebhookEndpoint
from trunkline.sealing import Sealer
from trunkline.store import lead_edits, leads, tenants, webhook_endpoints
from trunkline.store.lead_edits import Reopened, ReopenOrder
from trunkline.store.sql import query
from trunkline.store.tenants import Tenant, tenant_of

SHOP, OTHER = Tenant("acme", "shop"), Tenant("acme", "other")
SEALER = Sealer.from_secrets(["s" * 32])
URL = "https://example.com/of-this-lead"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        async with world.database.transaction() as tx:
            await tenants.RESELLERS.insert(tx, NewReseller("acme", "Acme"))
            await tx.execute("INSERT INTO pools (id, name) VALUES ('p', 'p')")
            for name in ("shop", "other"):
                await tenants.MERCHANTS.insert(tx, NewMerchant(name, name, reseller_id="acme"))
        yield world


async def add_lead(world: JobWorld, *, url: str | None = None, status: str = "PROCESSING") -> UUID:
    lead_id: UUID = await world.sql(
        """INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, payload, pool_id,
                              scheduled_at, due_at, status, reporting_webhook_url)
           VALUES ($1, 'acme', 'shop', $2, sha256('x'), '+14155550123', $3, 'p', now(), now(), $4, $5)
           RETURNING id""",
        new_id(), str(new_id()), {"order": 7}, status, url,
    )  # fmt: skip
    return lead_id


async def end(
    world: JobWorld, lead_id: UUID, outcome: str = "ANSWERED", reason: str | None = "COMPLETED"
) -> None:
    await world.sql(query("attempts/finish_leads"), [lead_id], [outcome], [reason])


async def subscribe(
    world: JobWorld, tenant: Tenant, *event_types: str, url: str = "https://example.com/hook"
) -> UUID:
    async with world.database.transaction() as tx:
        new = NewWebhookEndpoint(
            url,
            event_types=list(event_types or ["*"]),
            reseller_id=tenant.reseller_id,
            merchant_id=tenant.merchant_id,
        )
        made = await webhook_endpoints.ENDPOINTS.insert(
            tx, new, id=new_id(), secret_sealed=SEALER.seal(signing.new_secret())
        )
    assert made is not None
    return made.id


async def reports(world: JobWorld) -> list[UUID]:
    rows = await world.database.pool.fetch("SELECT id FROM job_outbox WHERE job_type = 'report_lead'")
    return [row["id"] for row in rows]


async def told(world: JobWorld) -> list[Webhook]:
    """Let what was reported run, but for the deliveries."""
    registry = Registry()
    registry.add(REPORT_LEAD, LeadReport(world.database, world.outbox, SEALER).run)
    async with world.service(registry=registry):
        await world.ended(*await reports(world))
    rows = await world.database.pool.fetch(
        "SELECT payload FROM job_outbox WHERE job_type = 'deliver_webhook'"
    )
    return [msgspec.json.decode(row["payload"], type=Webhook) for row in rows]


async def test_a_finished_lead_sends_lead_finished_to_its_reporting_url(world: JobWorld) -> None:
    lead_id = await add_lead(world, url=URL)
    await end(world, lead_id)
    [webhook] = await told(world)
    assert webhook.type == "lead.finished"
    assert await world.sql("SELECT url FROM webhook_endpoints WHERE id = $1", webhook.endpoint_id) == URL
    said: dict[str, Any] = webhook.data
    assert (said["id"], said["outcome"], said["outcome_reason"]) == (str(lead_id), "ANSWERED", "COMPLETED")
    assert (said["phone"], said["payload"], said["attempts"]) == ("+14155550123", {"order": 7}, [])


@pytest.mark.parametrize(
    ("outcome", "reason", "legacy"),
    [
        ("NO_AGENT", None, ("BUSY", "NO_AGENT")),
        ("BUSY", None, ("NO_ANSWER", "BUSY")),
        ("NO_ANSWER", "FAILED", ("NO_ANSWER", "FAILED")),
    ],
)
async def test_lead_finished_carries_the_legacy_outcome(
    world: JobWorld, outcome: str, reason: str | None, legacy: tuple[str, str]
) -> None:
    await end(world, await add_lead(world, url=URL), outcome, reason)
    [webhook] = await told(world)
    said: dict[str, Any] = webhook.data
    assert (said["outcome"], said["outcome_reason"]) == (outcome, reason)
    assert (said["legacy_outcome"], said["legacy_outcome_reason"]) == legacy


async def test_an_aborted_lead_sends_lead_finished(world: JobWorld) -> None:
    lead_id = await add_lead(world, url=URL, status="BACKLOG")
    await world.sql(query("leads/abort"), [lead_id], "not wanted")
    [webhook] = await told(world)
    assert (webhook.data["outcome"], webhook.data["outcome_reason"]) == ("ABORTED", "not wanted")


async def test_lead_finished_goes_to_subscribed_endpoints_of_the_tenant_only(world: JobWorld) -> None:
    wanted = {
        await subscribe(world, SHOP, "lead.finished"),
        await subscribe(world, Tenant("acme", None), url="https://example.com/reseller"),
    }
    await subscribe(world, SHOP, "lead.started", url="https://example.com/another-event")
    await subscribe(world, OTHER, url="https://example.com/another-merchant")
    await end(world, await add_lead(world))
    webhooks = await told(world)
    assert {webhook.endpoint_id for webhook in webhooks} == wanted
    assert len({webhook.message_id for webhook in webhooks}) == 1


async def test_an_endpoint_that_is_also_the_reporting_url_gets_one_webhook(world: JobWorld) -> None:
    subscribed = await subscribe(world, SHOP, url=URL)
    await end(world, await add_lead(world, url=URL))
    assert [webhook.endpoint_id for webhook in await told(world)] == [subscribed]


async def test_the_timeline_of_a_lead_shows_its_report_jobs_and_webhooks(world: JobWorld) -> None:
    await subscribe(world, SHOP)
    lead_id = await add_lead(world)
    await end(world, lead_id)

    async def jobs() -> list[tuple[str, str, str | None]]:
        async with world.database.connection() as conn:
            story = await leads.timeline(conn, lead_id, limit=100)
        return [(each.source, each.what, each.reason) for each in story if each.source in ("job", "webhook")]

    assert await jobs() == [("job", "report_lead", "waits")]
    await told(world)
    assert await jobs() == [("job", "report_lead", "succeeded"), ("webhook", "deliver_webhook", "waits")]


async def reopen(world: JobWorld, lead_id: UUID, request_id: str = "order-1") -> None:
    order = ReopenOrder(request_id, "agents were away", "somebody")
    async with world.database.transaction() as tx:
        await lead_edits.reopen(tx, [Reopened(lead_id, datetime.now(UTC), None, None, 3)], order)


async def test_a_reopening_and_the_end_after_it_are_separate_messages(world: JobWorld) -> None:
    await subscribe(world, SHOP, "lead.finished", "lead.reopened")
    lead_id = await add_lead(world)
    await end(world, lead_id, "NO_AGENT", None)
    await reopen(world, lead_id)
    await world.sql("UPDATE leads SET status = 'PROCESSING' WHERE id = $1", lead_id)
    await end(world, lead_id)
    by_order = {(each.type, each.data["reopen_count"]): each for each in await told(world)}
    assert set(by_order) == {("lead.finished", 0), ("lead.reopened", 1), ("lead.finished", 1)}
    assert len({each.message_id for each in by_order.values()}) == 3, "a receiver takes none for a repeat"
    assert by_order["lead.finished", 0].data["outcome"] == "NO_AGENT", "told late, and as it was"
    assert by_order["lead.finished", 1].data["outcome"] == "ANSWERED"
    said = by_order["lead.reopened", 1].data
    assert (said["reason"], said["previous_outcome"]) == ("agents were away", "NO_AGENT")


async def test_lead_reopened_goes_only_to_endpoints_subscribed_to_it(world: JobWorld) -> None:
    await subscribe(world, SHOP, "lead.finished")
    lead_id = await add_lead(world, status="PROCESSING")
    await end(world, lead_id)
    await reopen(world, lead_id)
    assert [each.type for each in await told(world)] == ["lead.finished"]


async def test_a_lead_without_a_subscriber_enqueues_no_report(world: JobWorld) -> None:
    await subscribe(world, OTHER)
    await end(world, await add_lead(world))
    assert await world.sql("SELECT count(*) FROM job_outbox") == 0


async def test_a_rolled_back_end_enqueues_no_report(world: JobWorld) -> None:
    lead_id = await add_lead(world, url=URL)
    async with world.database.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await conn.fetch(query("attempts/finish_leads"), [lead_id], ["ANSWERED"], [None])
        await transaction.rollback()
    assert await reports(world) == []


async def test_a_lead_finished_twice_enqueues_one_report(world: JobWorld) -> None:
    lead_id = await add_lead(world, url=URL)
    await end(world, lead_id)
    await end(world, lead_id)
    await world.sql("UPDATE leads SET status = 'FINISHED', outcome = 'ANSWERED' WHERE id = $1", lead_id)
    assert len(await reports(world)) == 1


async def test_the_trigger_enqueues_the_same_report_job_as_the_platform(world: JobWorld) -> None:
    lead_id = await add_lead(world, url=URL)
    await end(world, lead_id)
    [job_id] = await reports(world)
    job = await world.job(job_id)
    assert job_id.version == 7
    assert (tenant_of(job), job.max_attempts, job.priority) == (SHOP, REPORT_LEAD.policy.attempts, 50)
    assert job.payload is not None
    assert known_types()["report_lead"].decode(job.payload).lead_id == lead_id
