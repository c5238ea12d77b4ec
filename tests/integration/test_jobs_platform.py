"""The platform's own jobs, against a receiver that answers as the test says."""

import asyncio
import csv
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from standardwebhooks.webhooks import Webhook as Judge

from tests.support.jobs.world import JobWorld, job_world
from tests.support.waiting import eventually
from trunkline.clock import SystemClock
from trunkline.http.outgoing import Outgoing, PublicResolver
from trunkline.jobs import Failed, Outbox
from trunkline.jobs.platform import signing, webhooks
from trunkline.jobs.platform.catalogue import PlatformParts, job_files, known_types, platform_registry
from trunkline.jobs.platform.enrichment import Authorize, CallSource, Enricher, EnrichmentService, Wanted
from trunkline.jobs.platform.exports import EXPORT, Export
from trunkline.jobs.platform.retention import FileRetention
from trunkline.model import new_id
from trunkline.schema.tenants import NewMerchant, NewReseller
from trunkline.schema.webhook_endpoints import NewWebhookEndpoint, WebhookEndpoint
from trunkline.sealing import Sealer
from trunkline.states import LeadStatus
from trunkline.store import enrichments, tenants, webhook_endpoints
from trunkline.store.enrichments import Enriched, Item
from trunkline.store.job_admin import StoredJob as Job
from trunkline.store.jobs import Inserted
from trunkline.store.tenants import Tenant, tenant_of

SHOP = Tenant("acme", "shop")
AT = datetime(2025, 1, 1, 12, tzinfo=UTC)


@dataclass
class Receiver:
    """Answers with the next of its answers, and then with the last one for ever."""

    url: str
    answers: list[web.Response] = field(default_factory=lambda: [web.Response()])
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        told = self.answers[min(len(self.requests), len(self.answers)) - 1]
        return web.Response(status=told.status, headers=told.headers, body=told.body)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver("")
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield found
    await runner.cleanup()


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        async with world.database.transaction() as tx:
            await tenants.RESELLERS.insert(tx, NewReseller("acme", "Acme"))
            for name in ("shop", "other"):
                await tenants.MERCHANTS.insert(tx, NewMerchant(name, name, reseller_id="acme"))
        yield world


SEALER = Sealer.from_secrets(["s" * 32])


@asynccontextmanager
async def working(
    world: JobWorld,
    folder: Path,
    *,
    outgoing: Outgoing | None = None,
    enricher: Enricher | None = None,
    authorize: Authorize | None = None,
) -> AsyncIterator[None]:
    outgoing = outgoing or Outgoing(allow_insecure=True)
    parts = PlatformParts(
        world.database, SEALER, outgoing, SystemClock(), job_files(folder), outbox(world), enricher, authorize
    )
    async with world.service(registry=platform_registry(parts)):
        yield
    await outgoing.close()


def outbox(world: JobWorld) -> Outbox:
    return Outbox(known_types(), world.notifier)


async def make_endpoint(
    world: JobWorld, url: str, *event_types: str, tenant: Tenant = SHOP
) -> tuple[WebhookEndpoint, str]:
    secret = signing.new_secret()
    async with world.database.transaction() as tx:
        new = NewWebhookEndpoint(
            url,
            event_types=list(event_types or ["*"]),
            reseller_id=tenant.reseller_id,
            merchant_id=tenant.merchant_id,
        )
        made = await webhook_endpoints.ENDPOINTS.insert(
            tx, new, id=new_id(), secret_sealed=SEALER.seal(secret)
        )
    assert made is not None
    return made, secret


async def publish(
    world: JobWorld, event_type: str = "lead.finished", tenant: Tenant = SHOP
) -> list[Inserted]:
    async with world.database.transaction() as tx:
        endpoints = await webhook_endpoints.subscribed(tx, tenant, event_type)
        return await webhooks.deliver(
            tx, outbox(world), endpoints, tenant, event_type, {"lead_id": "1"}, at=AT
        )


async def failed_once(world: JobWorld, job_id: UUID) -> Job:
    async def failed() -> Job | None:
        job = await world.job(job_id)
        return job if job.status == "PENDING" and job.last_error_code else None

    return await eventually(failed)


# Webhooks


async def test_a_webhook_is_delivered_with_a_signature_that_standardwebhooks_verifies(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    _, secret = await make_endpoint(world, receiver.url)
    [delivery] = await publish(world)
    async with working(world, tmp_path):
        [job] = await world.ended(delivery.id)
    assert (job.outcome, job.result, tenant_of(job)) == ("succeeded", '{"status":200}', SHOP)
    [(headers, body)] = receiver.requests
    assert Judge(secret).verify(body, headers) == {
        "type": "lead.finished",
        "timestamp": "2025-01-01T12:00:00Z",
        "data": {"lead_id": "1"},
    }
    assert headers["content-type"] == "application/json"


async def test_a_published_event_goes_to_subscribed_endpoints_of_the_tenant_only(
    world: JobWorld, receiver: Receiver
) -> None:
    for tail, wanted in (("a", "*"), ("b", "lead.finished"), ("c", "lead.created")):
        await make_endpoint(world, f"{receiver.url}/{tail}", wanted)
    await make_endpoint(world, receiver.url, tenant=Tenant("acme"))
    await make_endpoint(world, receiver.url, tenant=Tenant("acme", "other"))
    assert len(await publish(world)) == 3


async def test_a_failed_delivery_is_tried_again_after_seconds(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [web.Response(status=500, text="boom")]
    await make_endpoint(world, receiver.url)
    [delivery] = await publish(world)
    before = datetime.now(UTC)
    async with working(world, tmp_path):
        job = await failed_once(world, delivery.id)
    assert (job.last_error_code, job.last_error_message, job.max_attempts) == ("http_500", "boom", 10)
    assert job.run_at is not None
    assert before + timedelta(seconds=5) <= job.run_at <= datetime.now(UTC) + timedelta(seconds=5.5)


async def test_a_retry_has_the_same_id_and_a_new_timestamp(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [web.Response(status=503), web.Response()]
    _, secret = await make_endpoint(world, receiver.url)
    [delivery] = await publish(world)
    async with working(world, tmp_path):
        await failed_once(world, delivery.id)
        await world.sql("UPDATE job_outbox SET run_at = now()")
        await world.ended(delivery.id)
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1
    for headers, body in receiver.requests:
        Judge(secret).verify(body, headers)


async def test_a_failed_delivery_obeys_the_receivers_retry_after(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [web.Response(status=429, headers={"Retry-After": "1800"})]
    await make_endpoint(world, receiver.url)
    [delivery] = await publish(world)
    async with working(world, tmp_path):
        job = await failed_once(world, delivery.id)
    assert job.run_at is not None
    assert job.run_at - datetime.now(UTC) > timedelta(minutes=29)


async def test_410_disables_the_endpoint(world: JobWorld, receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [web.Response(status=410)]
    endpoint, _ = await make_endpoint(world, receiver.url)
    first, second = [*await publish(world), *await publish(world)]
    async with working(world, tmp_path):
        jobs = await world.ended(first.id, second.id)
    assert [job.outcome for job in jobs] == ["cancelled", "cancelled"]
    async with world.database.connection() as conn:
        now = await webhook_endpoints.ENDPOINTS.get(conn, SHOP, endpoint.id)
    assert now is not None
    assert (now.status, now.disabled_reason) == ("disabled", "It answered 410 Gone")
    assert await publish(world) == []


async def test_redirects_are_not_followed(world: JobWorld, receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [web.Response(status=302, headers={"Location": receiver.url + "/elsewhere"})]
    await make_endpoint(world, receiver.url)
    [delivery] = await publish(world)
    async with working(world, tmp_path):
        job = await failed_once(world, delivery.id)
    assert job.last_error_code == "http_302"
    assert len(receiver.requests) == 1


async def test_a_removed_endpoint_ends_its_deliveries(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    endpoint, _ = await make_endpoint(world, receiver.url)
    [delivery] = await publish(world)
    async with world.database.transaction() as tx:
        await webhook_endpoints.delete(tx, endpoint.id)
    async with working(world, tmp_path):
        [job] = await world.ended(delivery.id)
    assert (job.outcome, receiver.requests) == ("cancelled", [])


async def test_a_changed_secret_signs_beside_the_old_one(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    endpoint, old = await make_endpoint(world, receiver.url)
    new = signing.new_secret()
    async with world.database.transaction() as tx:
        await webhook_endpoints.rotate(tx, endpoint.id, SEALER.seal(new), overlap_s=3600)
    [delivery] = await publish(world)
    async with working(world, tmp_path):
        await world.ended(delivery.id)
    [(headers, body)] = receiver.requests
    for secret in (new, old):
        Judge(secret).verify(body, headers)


async def test_a_receiver_that_cannot_be_reached_is_tried_again(world: JobWorld, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        await make_endpoint(world, f"http://127.0.0.1:{nobody.getsockname()[1]}/")
        [delivery] = await publish(world)
        async with working(world, tmp_path):
            job = await failed_once(world, delivery.id)
    assert job.last_error_code == "not_reached"


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:{port}/", "https://[::ffff:127.0.0.1]:{port}/", "http://example.com/"]
)
async def test_a_private_address_fails_the_delivery_for_good_without_a_connection(
    world: JobWorld, receiver: Receiver, tmp_path: Path, url: str
) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    await make_endpoint(world, url.format(port=port))
    [delivery] = await publish(world)
    async with working(world, tmp_path, outgoing=Outgoing()):
        [job] = await world.ended(delivery.id)
    assert (job.status, job.last_error_code, job.attempt_count) == ("FAILED", "address_refused", 1)
    assert receiver.requests == []


class Names(AbstractResolver):
    """A name server that says something else each time it is asked."""

    def __init__(self, *addresses: str):
        self.addresses = list(addresses)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.addresses[min(self.asked, len(self.addresses) - 1)]
        self.asked += 1
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
        ]

    async def close(self) -> None: ...


async def test_a_host_name_that_resolves_to_a_private_address_is_refused(
    world: JobWorld, tmp_path: Path
) -> None:
    names = Names("10.0.0.1")
    await make_endpoint(world, "https://hooks.example.com/x")
    [delivery] = await publish(world)
    async with working(world, tmp_path, outgoing=Outgoing(resolver=PublicResolver(names))):
        [job] = await world.ended(delivery.id)
    assert (job.status, job.last_error_code) == ("FAILED", "address_refused")


async def test_a_host_name_is_resolved_once_per_delivery(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    """Resolved again at the moment of connecting, the name could have another address."""
    names = Names("127.0.0.1", "192.0.2.1")
    resolver = PublicResolver(names, allow_insecure=True)
    await make_endpoint(world, receiver.url.replace("127.0.0.1", "hooks.example.com"))
    [delivery] = await publish(world)
    async with working(world, tmp_path, outgoing=Outgoing(allow_insecure=True, resolver=resolver)):
        [job] = await world.ended(delivery.id)
    assert (job.outcome, names.asked, len(receiver.requests)) == ("succeeded", 1, 1)


async def test_concurrent_requests_make_one_endpoint_of_a_url(world: JobWorld, receiver: Receiver) -> None:
    async def send() -> None:
        async with world.database.transaction() as tx:
            endpoint = await webhooks.ensure_endpoint(tx, SEALER, SHOP, receiver.url)
            await webhooks.deliver(tx, outbox(world), [endpoint.id], SHOP, "lead.finished", {}, at=AT)

    await asyncio.gather(*(send() for _ in range(5)))
    assert await world.sql("SELECT count(*) FROM webhook_endpoints") == 1
    assert await world.sql("SELECT count(*) FROM job_outbox") == 5
    assert await publish(world) == []


# Enrichment


class CountingEnricher:
    def __init__(self) -> None:
        self.items: list[str] = []

    async def enrich(self, item: Item) -> Enriched | Failed:
        self.items.append(item.item_id)
        return Enriched(transcript=f"heard {len(self.items)}")


async def ask_enrichment(world: JobWorld, item_id: str, source: CallSource | None = None) -> list[Inserted]:
    async with world.database.transaction() as tx:
        service = EnrichmentService(outbox(world))
        return await service.enqueue(tx, [Wanted(item_id, source or CallSource(), SHOP)])


async def test_process_twice_item_unchanged_after_first(world: JobWorld, tmp_path: Path) -> None:
    """The source's fifth test."""
    enricher = CountingEnricher()
    [first] = await ask_enrichment(world, "call-1")
    async with working(world, tmp_path, enricher=enricher):
        await world.ended(first.id)
        async with world.database.transaction() as tx:
            again = await outbox(world).enqueue(tx, "enrich_call", {"item_id": "call-1"})
        [job] = await world.ended(again.id)
    assert job.result == '{"skipped":"READY"}'
    assert enricher.items == ["call-1"]
    async with world.database.connection() as conn:
        item = await enrichments.get(conn, "call-1")
    assert item is not None
    assert (item.status, item.transcript) == ("READY", "heard 1")


async def test_an_enrichment_is_enqueued_once_per_item(world: JobWorld) -> None:
    assert len(await ask_enrichment(world, "call-1")) == 1
    assert await ask_enrichment(world, "call-1") == []


async def test_recording_and_transcript_are_fetched(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [web.Response(body=b"RIFF" * 1000), web.Response(text="hello")]
    source = CallSource(receiver.url + "/recording", receiver.url + "/transcript", {"score": 3})
    [job] = await ask_enrichment(world, "call-1", source)
    async with working(world, tmp_path):
        await world.ended(job.id)
    async with world.database.connection() as conn:
        item = await enrichments.get(conn, "call-1")
    assert item is not None
    assert (item.recording_ref, item.transcript, item.data) == ("recording-call-1", "hello", '{"score":3}')
    assert job_files(tmp_path).path("recording-call-1").read_bytes() == b"RIFF" * 1000


async def test_a_recording_that_is_not_available_yet_is_fetched_again(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [web.Response(status=404), web.Response(body=b"RIFF")]
    [job] = await ask_enrichment(world, "call-1", CallSource(receiver.url))
    async with working(world, tmp_path):
        [done] = await world.ended(job.id)
    assert (done.outcome, done.attempt_count) == ("succeeded", 2)


async def test_a_redirected_recording_is_fetched_and_only_the_carriers_host_gets_credentials(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [
        web.Response(status=302, headers={"Location": f"{receiver.url}/elsewhere"}),
        web.Response(body=b"RIFF"),
    ]
    source = CallSource(f"{receiver.url}/recording", carrier="twilio", account="default")
    [job] = await ask_enrichment(world, "call-1", source)

    def authorize(given: CallSource, url: str) -> str | None:
        assert given == source
        return "Basic secret" if url.endswith("/recording") else None

    async with working(world, tmp_path, authorize=authorize):
        [done] = await world.ended(job.id)
    assert done.outcome == "succeeded"
    assert job_files(tmp_path).path("recording-call-1").read_bytes() == b"RIFF"
    assert [headers.get("authorization") for headers, _ in receiver.requests] == ["Basic secret", None]


async def test_a_recording_redirected_without_end_fails(
    world: JobWorld, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [web.Response(status=302, headers={"Location": receiver.url}) for _ in range(4)]
    [job] = await ask_enrichment(world, "call-1", CallSource(receiver.url))
    async with working(world, tmp_path):
        failed = await failed_once(world, job.id)
    assert failed.last_error_code == "http_302"


# Exports


async def add_lead(world: JobWorld, merchant_id: str, request_id: str) -> None:
    await world.sql("INSERT INTO pools (id, name) VALUES ('p', 'p') ON CONFLICT DO NOTHING")
    await world.sql(
        """INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, payload, pool_id,
                              scheduled_at, due_at)
           VALUES ($1, 'acme', $2, $3, sha256(''), '+14155550123', $4, 'p', now(), now())""",
        new_id(), merchant_id, request_id, {"name": 'Zoë, "Z"'},
    )  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


async def test_an_export_holds_the_tenants_leads_and_no_others(world: JobWorld, tmp_path: Path) -> None:
    for n in range(3):
        await add_lead(world, "shop", f"r{n}")
    await add_lead(world, "shop", "=cmd()")
    await add_lead(world, "other", "not ours")
    async with world.database.transaction() as tx:
        job = await outbox(world).enqueue(tx, EXPORT, Export(status=LeadStatus.BACKLOG), tenant=SHOP)
    async with working(world, tmp_path):
        [done] = await world.ended(job.id)
    name = f"export-{job.id}.csv"
    rows = read(job_files(tmp_path).path(name))
    assert [row["request_id"] for row in rows] == ["'=cmd()", "r2", "r1", "r0"]
    assert rows[0]["phone"] == "+14155550123"
    assert rows[0]["payload"] == '{"name":"Zoë, \\"Z\\""}'
    assert (done.note, done.fraction) == ("4 leads written", 1.0)
    assert done.result is not None
    assert name in done.result


async def test_a_failed_export_leaves_no_file(
    world: JobWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_page: object) -> bytes:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr("trunkline.jobs.platform.exports.as_csv", broken)
    await add_lead(world, "shop", "r")
    async with world.database.transaction() as tx:
        job = await outbox(world).enqueue(tx, EXPORT, Export(), tenant=SHOP, max_attempts=1)
    async with working(world, tmp_path):
        [dead] = await world.ended(job.id)
    assert dead.last_error_message == "disk on fire"
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 200])
def test_a_file_name_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a file"):
        job_files(tmp_path).path(name)


# Retention


def aged(path: Path, age_s: float) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))
    return path


async def test_export_files_are_deleted_after_their_retention(world: JobWorld, tmp_path: Path) -> None:
    files = job_files(tmp_path)
    old, young = aged(files.path("export-1.csv"), 100), aged(files.path("export-2.csv"), 10)
    recording = aged(files.path("recording-1"), 1e6)
    stray = aged(files.path("export-1.csv").with_name(".export-3.csv.abcd"), 1e6)
    retention = FileRetention(world.database, files, exports_s=50, enrichments_s=None)
    assert await retention.run_once() == 2
    assert [place.exists() for place in (old, young, recording, stray)] == [False, True, True, False]


async def test_enrichments_and_their_files_are_deleted_after_their_retention(
    world: JobWorld, tmp_path: Path
) -> None:
    files = job_files(tmp_path)
    for item_id in ("old", "young"):
        await ask_enrichment(world, item_id)
        aged(files.path(f"recording-{item_id}"), 0)
        async with world.database.transaction() as tx:
            await enrichments.complete(tx, item_id, Enriched(f"recording-{item_id}", "hello"))
    await ask_enrichment(world, "elsewhere")
    async with world.database.transaction() as tx:
        await enrichments.complete(tx, "elsewhere", Enriched("s3://bucket/../x"))
        await tx.execute(
            "UPDATE call_enrichments SET updated_at = now() - interval '1 hour' WHERE item_id <> 'young'"
        )
    retention = FileRetention(world.database, files, exports_s=50, enrichments_s=600)
    assert await retention.run_once() == 2
    assert [files.path(f"recording-{name}").exists() for name in ("old", "young")] == [False, True]
    async with world.database.connection() as conn:
        assert [await enrichments.get(conn, name) is None for name in ("old", "young", "elsewhere")] == [
            True,
            False,
            True,
        ]
