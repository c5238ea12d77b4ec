"""The client against the real API, over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.api.world import ADMIN_KEY, open_api
from trunkline import __version__
from trunkline.api.server import HttpServer, bind
from trunkline.client import ApiError, Health, Pool, SyncTrunklineClient, TrunklineClient

PHONE = "+14155550123"


@pytest.fixture
async def api_url(database_url: str) -> AsyncIterator[str]:
    async with open_api(database_url, populate=False) as world:
        server = HttpServer(world.app, bind("127.0.0.1", 0, "HTTP_PORT"), shutdown_timeout_s=1)
        server.start()
        yield f"http://127.0.0.1:{server.port}"
        await server.stop()


@pytest.fixture
async def client(api_url: str) -> AsyncIterator[TrunklineClient]:
    async with TrunklineClient(api_url, ADMIN_KEY) as client:
        yield client


@pytest.fixture
async def shop(client: TrunklineClient) -> TrunklineClient:
    """A client whose platform has one merchant with one number."""
    await client.create_reseller("acme", "Acme Inc.")
    await client.create_pool("main", "Main numbers", reseller_id="acme")
    await client.create_merchant(
        "acme-store", "Acme Store", reseller_id="acme", default_region="US", default_pool="main"
    )
    await client.create_number("+14155550100", pool="main", carrier="twilio", max_channels=2)
    return client


def use_without_await(url: str) -> list[Pool]:
    with SyncTrunklineClient(url, ADMIN_KEY) as client:
        client.create_reseller("acme", "Acme Inc.")
        for name in ("one", "two", "three"):
            client.create_pool(name, name, reseller_id="acme")
        client.update_pool("one", overflow_pool="two", overflow_after_s=2)
        client.delete_pool("three")
        with pytest.raises(ApiError, match="no such pool"):
            client.get_pool("three")
        client.set_control("reseller", "acme", reason="a test")
        assert client.get_control("reseller", "acme")["state"] == "stopped"
        assert [each["subject"] for each in client.list_controls()] == ["acme"]
        assert client.me().scopes == ["admin"]
        return list(client.list_pools())


async def test_the_synchronous_client_does_the_same_without_await(api_url: str) -> None:
    one, two = await asyncio.to_thread(use_without_await, api_url)
    assert (one.id, one.overflow_pool, two.id) == ("one", "two", "two")


async def test_an_id_may_be_named_as_in_earlier_versions(client: TrunklineClient) -> None:
    # These names were parameters before the shapes had `id`: a type checker does not know them any more.
    untyped: Any = client
    await untyped.create_reseller(reseller_id="acme", name="Acme Inc.")
    await untyped.create_pool(pool_id="main", name="Main", reseller_id="acme")
    assert (await untyped.get_pool(pool_id="main")).name == "Main"
    assert (await untyped.update_pool(pool_id="main", name="Other")).name == "Other"
    await untyped.delete_pool(pool_id="main")
    with pytest.raises(TypeError, match="pool_id"):
        await untyped.get_pool()


async def test_the_client_creates_reseller_pool_merchant_and_number(client: TrunklineClient) -> None:
    reseller = await client.create_reseller("acme", "Acme Inc.")
    pool = await client.create_pool("main", "Main numbers", reseller_id="acme")
    merchant = await client.create_merchant(
        "acme-store",
        "Acme Store",
        reseller_id="acme",
        default_region="US",
        default_pool="main",
        weight=3,
    )
    number = await client.create_number(
        "+1 415 555 0100", pool="main", carrier="twilio", max_channels=2, account="second", status="draining"
    )

    assert (reseller.id, reseller.name) == ("acme", "Acme Inc.")
    assert (pool.reseller_id, pool.merchant_id) == ("acme", None)
    assert (merchant.default_pool, merchant.default_region, merchant.weight) == ("main", "US", 3)
    assert (number.e164, number.reseller_id, number.account) == ("+14155550100", "acme", "second")
    assert (number.max_channels, number.status) == (2, "draining")


async def test_the_client_creates_a_lead_and_reads_it_back(shop: TrunklineClient) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)

    lead = await shop.create_lead(
        phone="(415) 555-0123",
        merchant_id="acme-store",
        request_id="order-1",
        payload={"name": "Ada"},
        scheduled_at=due,
        priority=7,
        max_attempts=3,
        reporting_webhook_url="https://acme.example/hook",
    )

    assert (lead.phone, lead.status, lead.pool, lead.due_at) == (PHONE, "BACKLOG", "main", due)
    assert (lead.priority, lead.max_attempts, lead.payload) == (7, 3, {"name": "Ada"})
    read = await shop.get_lead(lead.id)
    assert (read.id, read.request_id, read.attempts) == (lead.id, "order-1", [])


async def test_the_same_request_id_returns_the_same_lead(shop: TrunklineClient) -> None:
    first = await shop.create_lead(phone=PHONE, merchant_id="acme-store", request_id="order-1")
    again = await shop.create_lead(phone=PHONE, merchant_id="acme-store", request_id="order-1")
    assert first == again

    with pytest.raises(ApiError) as caught:
        await shop.create_lead(phone="+14155550199", merchant_id="acme-store", request_id="order-1")
    assert (caught.value.status, caught.value.code) == (409, "request_id_reused")


async def test_leads_are_listed_over_pages_with_filters(shop: TrunklineClient) -> None:
    for number in range(5):
        await shop.create_lead(phone=PHONE, merchant_id="acme-store", request_id=f"order-{number}")
    await shop.create_lead(phone="+14155550199", merchant_id="acme-store", request_id="another")

    found = [lead.request_id async for lead in shop.list_leads(phone=PHONE, status="BACKLOG", page_size=2)]

    assert found == [f"order-{number}" for number in reversed(range(5))]
    assert [lead async for lead in shop.list_leads(campaign_id=uuid4())] == []
    assert len([lead async for lead in shop.list_leads(merchant_id="acme-store")]) == 6


async def test_an_api_error_names_its_fields_and_request_id(shop: TrunklineClient) -> None:
    with pytest.raises(ApiError) as caught:
        await shop.create_lead(phone="not a phone", merchant_id="acme-store", priority=0)
    error = caught.value
    assert (error.status, error.code) == (422, "invalid_request")
    assert [each.field for each in error.fields] == ["priority"]
    assert error.request_id

    with pytest.raises(ApiError) as caught:
        await shop.get_lead(uuid4())
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    with pytest.raises(ApiError) as caught:
        await shop.create_reseller("acme", "Again")
    assert (caught.value.status, caught.value.code) == (409, "already_exists")


async def test_me_shows_the_keys_scopes_and_a_wrong_key_is_401(client: TrunklineClient, api_url: str) -> None:
    me = await client.me()
    assert (me.scopes, me.reseller_id, me.merchant_id) == (["admin"], None, None)
    async with TrunklineClient(api_url, "tl_wrong") as stranger:
        assert await stranger.health() == Health("ok", __version__)
        with pytest.raises(ApiError) as caught:
            await stranger.me()
    assert (caught.value.status, caught.value.code) == (401, "unauthorized")


def people(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"request_id": f"order-{number}", "merchant_id": "acme-store", "phone": f"+1415555{number:04}"}


async def test_create_leads_reports_each_bad_row_and_creates_the_others(shop: TrunklineClient) -> None:
    due = datetime.now(UTC) + timedelta(days=1)
    rows = [*people(50), {"request_id": "bad", "phone": "12"}, {"request_id": "late", "scheduled_at": due}]
    rows[-1] |= {"merchant_id": "acme-store", "phone": PHONE, "campaign_id": uuid4()}

    report = await shop.create_leads(rows)

    assert (report.rows, report.created, report.refused) == (52, 51, 1)
    [problem] = report.problems
    assert (problem.row, problem.request_id, problem.code) == (51, "bad", "invalid_request")
    assert [each.field for each in problem.fields] == ["merchant_id"]
    assert (await shop.create_leads(people(50))).existing == 50
    with pytest.raises(ApiError) as caught:
        await shop.create_leads([*people(2), {"request_id": "bad"}], atomic=True)
    assert caught.value.code == "rows_refused"


async def test_upload_leads_streams_an_iterator(shop: TrunklineClient) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"request_id,merchant_id,phone,payload.name\n"
        for number in range(100):
            yield f"row-{number},acme-store,+1415555{number:04},Ada\n".encode()

    report = await shop.upload_leads(lines(), "text/csv")
    assert (report.rows, report.created, report.problems) == (100, 100, ())


async def test_the_client_updates_dispatches_and_aborts_a_lead(shop: TrunklineClient) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    lead = await shop.create_lead(phone=PHONE, merchant_id="acme-store", timezone="America/New_York")
    changed = await shop.update_lead(lead.id, scheduled_at=due, priority=7, payload={"a": 1})
    assert (changed.due_at, changed.priority, changed.payload, changed.version) == (due, 7, {"a": 1}, 2)
    assert (await shop.dispatch_now(lead.id)).due_at < due
    ended = await shop.abort_lead(lead.id, "sold out")
    assert (ended.status, ended.outcome, ended.outcome_reason) == ("FINISHED", "ABORTED", "sold out")
    story = await shop.get_lead(lead.id)
    assert [each.what for each in story.timeline if each.source == "lead"] == ["created", "finished"]
    with pytest.raises(ApiError) as caught:
        await shop.update_lead(lead.id, priority=9)
    assert (caught.value.status, caught.value.code) == (409, "finished")


async def test_the_client_aborts_leads_in_bulk(shop: TrunklineClient) -> None:
    await shop.create_leads(people(20))
    some = [lead.id async for lead in shop.list_leads()][:5]
    assert (await shop.abort_leads("sold out", lead_ids=some)).aborted == 5
    assert (await shop.abort_leads("sold out", merchant_id="acme-store")).aborted == 15
    assert [lead async for lead in shop.list_leads(status="BACKLOG")] == []


async def test_the_client_updates_and_deletes_numbers_pools_and_merchants(shop: TrunklineClient) -> None:
    await shop.create_pool("spare", "Spare", reseller_id="acme")
    pool = await shop.update_pool("main", overflow_pool="spare", overflow_after_s=2)
    assert (pool.overflow_pool, pool.overflow_after_s) == ("spare", 2.0)
    assert [each.id async for each in shop.list_pools()] == ["main", "spare"]
    with pytest.raises(ApiError, match="pools name it"):
        await shop.delete_pool("spare")
    assert (await shop.update_pool("main", overflow_pool=None, overflow_after_s=None)).overflow_pool is None
    await shop.delete_pool("spare")

    [number] = [each async for each in shop.list_numbers(pool="main")]
    number = await shop.update_number(number.id, max_channels=7, starts_per_s=2)
    assert (number.max_channels, number.starts_per_s, number.channels_held) == (7, 2.0, 0)
    assert await shop.get_number(number.id) == number
    assert await shop.delete_number(number.id, drain=True) is None

    merchant = await shop.update_merchant("acme-store", max_concurrent=5, default_region=None)
    assert (merchant.max_concurrent, merchant.default_region) == (5, None)
    assert [each.id async for each in shop.list_merchants(reseller_id="acme")] == ["acme-store"]
    await shop.delete_merchant("acme-store")
    with pytest.raises(ApiError):
        await shop.get_merchant("acme-store")
