"""Jobs and webhook endpoints over HTTP, and on the command line."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from aiohttp import ClientSession
from standardwebhooks.webhooks import Webhook as Judge
from typer.testing import CliRunner

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from trunkline.cli.queues import jobs as jobs_app
from trunkline.jobs import JobType, Policy
from trunkline.jobs.platform import signing
from trunkline.store import jobs
from trunkline.store.jobs import BEGINNING, Claimant, Death, End, JobClaim, Lane, LanePosition
from trunkline.store.tenants import PLATFORM, Tenant

A1 = Tenant("a", "a1")
THING: JobType[dict[str, Any]] = JobType("deliver_webhook", dict, Policy())


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def enqueue(world: ApiWorld, tenant: Tenant = A1, **options: Any) -> str:
    async with world.database.transaction() as tx:
        job = await world.jobs.outbox.enqueue(tx, THING, {"n": 1}, tenant=tenant, **options)
    return str(job.id)


async def claim(world: ApiWorld) -> list[JobClaim]:
    async with world.database.connection() as conn:
        look = await jobs.claim(
            conn, {Lane("deliver_webhook", 50): LanePosition(BEGINNING)}, 10, Claimant("w1")
        )
    return look.claimed


async def die(world: ApiWorld) -> None:
    async with world.database.transaction() as tx:
        await jobs.bury(tx, [Death(job.id, job.fence, "E", "m") for job in await claim(world)], "w1")


async def test_jobs_of_every_status_are_listed_newest_first(world: ApiWorld) -> None:
    done = await enqueue(world)
    async with world.database.transaction() as tx:
        await jobs.finish(tx, [End(job.id, job.fence, result='{"x":1}') for job in await claim(world)], "w1")
    dead = await enqueue(world)
    await die(world)
    running = await enqueue(world)
    await claim(world)
    waiting = await enqueue(world)
    client = world.tenant("a1", "read")
    items = expect(await client.get("/api/v1/jobs"), 200)["items"]
    assert [(item["id"], item["status"]) for item in items] == [
        (waiting, "PENDING"), (running, "IN_PROGRESS"), (dead, "FAILED"), (done, "DONE"),
    ]  # fmt: skip
    assert expect(await client.get(f"/api/v1/jobs/{done}"), 200)["result"] == {"x": 1}
    assert expect(await client.get(f"/api/v1/jobs/{waiting}"), 200)["payload"] == {"n": 1}
    [letter] = expect(await client.get("/api/v1/jobs/dead"), 200)["items"]
    assert letter["id"] == dead


class Report(msgspec.Struct):
    merchant: str
    day: str = "yesterday"


REPORT = JobType("send_report", Report, Policy(priority=30), over_http=True)


async def test_a_key_enqueues_jobs_of_a_type_that_allows_it(world: ApiWorld) -> None:
    world.jobs.registry.add(REPORT)
    client = world.tenant("a1", "jobs")
    body = {"job_type": "send_report", "payload": {"merchant": "acme"}, "unique_key": "acme"}
    made = expect(await client.post("/api/v1/jobs", body), 201)
    assert (made["status"], made["priority"], made["reseller_id"], made["merchant_id"]) == (
        "PENDING",
        30,
        "a",
        "a1",
    )
    again = expect(await client.post("/api/v1/jobs", body), 200)
    assert again["id"] == made["id"]
    shown = expect(await world.admin.get(f"/api/v1/jobs/{made['id']}"), 200)
    assert shown["payload"] == {"merchant": "acme"}
    [entry] = expect(await world.admin.get("/api/v1/audit", {"action": "job.enqueued"}), 200)["items"]
    assert entry["subject"] == made["id"]


async def test_a_key_enqueues_for_its_tenant_alone(world: ApiWorld) -> None:
    world.jobs.registry.add(REPORT)
    body = {"job_type": "send_report", "payload": {"merchant": "acme"}}
    reseller = world.tenant("a", "jobs")
    assert (
        expect(await reseller.post("/api/v1/jobs", body | {"merchant_id": "a1"}), 201)["merchant_id"] == "a1"
    )
    assert (
        expect(await reseller.post("/api/v1/jobs", body | {"merchant_id": "b1"}), 404)["code"]
        == "unknown_merchant"
    )


async def test_types_that_are_not_open_and_keys_without_the_scope_enqueue_nothing(world: ApiWorld) -> None:
    world.jobs.registry.add(REPORT)
    world.jobs.registry.add(JobType("secret_report", Report, Policy()))
    fine = {"job_type": "send_report", "payload": {"merchant": "acme"}}
    client = world.tenant("a1", "jobs")
    for job_type in ("secret_report", "deliver_webhook", "export", "nobody_knows_it"):
        answer = await client.post("/api/v1/jobs", fine | {"job_type": job_type})
        assert expect(answer, 404)["code"] == "not_found"
    for scope in ("leads", "read", "router"):
        answer = await world.tenant("a1", scope).post("/api/v1/jobs", fine)
        assert expect(answer, 403)["code"] == "scope_missing"
    assert expect(await client.post("/api/v1/leads", {}), 403)["code"] == "scope_missing"
    refused = expect(await client.post("/api/v1/jobs", fine | {"payload": {"merchant": 7}}), 422)
    assert refused["fields"][0]["field"] == "payload"
    assert expect(await world.admin.get("/api/v1/jobs"), 200)["items"] == []


async def test_the_command_line_enqueues(world: ApiWorld) -> None:
    world.jobs.registry.add(REPORT)
    async with serve(world.app) as url:
        words = (
            "enqueue",
            "send_report",
            "--payload",
            '{"merchant": "acme"}',
            "--run-at",
            "2030-05-01T09:30:00Z",
        )
        assert '"PENDING"' in await run(
            url, *words, "--merchant", "a1", "--unique-key", "acme", "--priority", "3"
        )
    [job] = expect(await world.admin.get("/api/v1/jobs"), 200)["items"]
    assert (job["unique_key"], job["priority"], job["merchant_id"]) == ("acme", 3, "a1")
    assert job["run_at"].startswith("2030-05-01T09:30:00")


async def test_a_list_can_be_walked_by_its_cursor(world: ApiWorld) -> None:
    ids = [await enqueue(world, tenant) for tenant in (A1, PLATFORM, A1)]
    seen: list[str] = []
    query: dict[str, object] = {"limit": 1}
    while True:
        page = expect(await world.admin.get("/api/v1/jobs", query), 200)
        seen += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query = {"limit": 1, "cursor": page["next_cursor"]}
    assert seen == ids[::-1]


async def test_filters_narrow_the_list(world: ApiWorld) -> None:
    await enqueue(world)
    for query, count in (({"status": "PENDING"}, 1), ({"status": "DONE"}, 0), ({"job_type": "export"}, 0)):
        assert len(expect(await world.admin.get("/api/v1/jobs", query), 200)["items"]) == count


async def test_a_waiting_job_can_be_made_to_run_now(world: ApiWorld) -> None:
    job = await enqueue(world, run_at=datetime.now(UTC) + timedelta(days=1))
    assert await claim(world) == []
    expect(await world.tenant("a1").post(f"/api/v1/jobs/{job}/retry", {}), 200)
    assert len(await claim(world)) == 1
    refused = expect(await world.tenant("a1").post(f"/api/v1/jobs/{job}/retry", {}), 409)
    assert refused["code"] == "job_not_waiting"


async def test_a_dead_job_can_be_replayed_alone_or_with_all_others(world: ApiWorld) -> None:
    first = await enqueue(world)
    await enqueue(world)
    await enqueue(world, Tenant("b", "b1"))
    await die(world)
    again = expect(await world.tenant("a").post(f"/api/v1/jobs/{first}/retry", {}), 200)
    assert (again["status"], again["attempt_count"]) == ("PENDING", 0)
    replayed = expect(await world.tenant("a").post("/api/v1/jobs/dead/replay", {}), 200)
    assert replayed == {"replayed": 1, "superseded": 0}
    assert len(expect(await world.admin.get("/api/v1/jobs/dead"), 200)["items"]) == 1


async def test_a_job_can_be_cancelled_until_it_has_ended(world: ApiWorld) -> None:
    waiting = await enqueue(world)
    body = {"reason": "not needed"}
    ended = expect(await world.tenant("a1").post(f"/api/v1/jobs/{waiting}/cancel", body), 200)
    assert (ended["status"], ended["outcome"], ended["last_error_message"]) == (
        "DONE",
        "cancelled",
        "not needed",
    )
    assert expect(await world.admin.post(f"/api/v1/jobs/{waiting}/cancel", body), 409)["code"] == "job_ended"
    running = await enqueue(world)
    await claim(world)
    asked = expect(await world.tenant("a1").post(f"/api/v1/jobs/{running}/cancel", body), 200)
    assert (asked["status"], asked["cancel_requested"]) == ("IN_PROGRESS", True)


async def test_a_type_can_be_paused_and_resumed(world: ApiWorld) -> None:
    await enqueue(world)
    path = "/api/v1/jobs/types/deliver_webhook"
    paused = expect(await world.admin.post(f"{path}/pause", {"reason": "repairs"}), 200)
    assert (paused["pending"], paused["paused_reason"]) == (1, "repairs")
    assert await claim(world) == []
    types = expect(await world.admin.get("/api/v1/jobs/types"), 200)["items"]
    assert {each["job_type"]: each["paused_reason"] for each in types}["deliver_webhook"] == "repairs"
    assert expect(await world.admin.post(f"{path}/resume", {}), 200)["paused_reason"] is None
    assert len(await claim(world)) == 1
    expect(await world.admin.post("/api/v1/jobs/types/no_such/pause", {"reason": "x"}), 404)


async def test_changes_are_audited(world: ApiWorld) -> None:
    job = await enqueue(world)
    expect(await world.admin.post(f"/api/v1/jobs/{job}/retry", {}), 200)
    expect(await world.admin.post(f"/api/v1/jobs/{job}/cancel", {"reason": "no"}), 200)
    async with world.database.connection() as conn:
        rows = await conn.fetch("SELECT action FROM audit_log WHERE subject = $1 ORDER BY id", job)
    assert [row["action"] for row in rows] == ["job.retried", "job.cancelled"]


async def test_an_export_is_asked_for_by_its_tenant(world: ApiWorld) -> None:
    job = expect(await world.tenant("a", "leads").post("/api/v1/jobs/exports", {"merchant_id": "a1"}), 202)
    assert (job["job_type"], job["merchant_id"], job["status"]) == ("export", "a1", "PENDING")
    unknown = expect(
        await world.tenant("a", "leads").post("/api/v1/jobs/exports", {"merchant_id": "b1"}), 404
    )
    assert unknown["code"] == "unknown_merchant"
    expect(await world.tenant("a1").get(f"/api/v1/jobs/{job['id']}/file"), 404)


async def test_the_file_of_an_export_is_its_tenants_alone(world: ApiWorld) -> None:
    path = f"/api/v1/jobs/{(await world.objects_of('a1'))['job_id']}/file"
    async with serve(world.app) as url, ClientSession() as session:
        headers = {"Authorization": f"Bearer {world.keys['a1', 'read']}"}
        async with session.get(url + path, headers=headers) as answer:
            assert (answer.status, answer.content_type, await answer.read()) == (200, "text/csv", b"id\r\n")
    expect(await world.tenant("a2").get(path), 404)


async def test_the_api_of_a_process_without_jobs_answers_503(database_url: str) -> None:
    async with open_api(database_url) as world:
        object.__setattr__(world.app.state.api.deps, "jobs", None)
        refused = expect(await world.admin.post("/api/v1/jobs/dead/replay", {}), 503)
    assert refused["code"] == "jobs_unavailable"


# Webhook endpoints


async def test_a_webhook_endpoint_is_created_changed_and_removed(world: ApiWorld) -> None:
    client = world.tenant("a1")
    body = {"url": "https://example.com/hooks", "event_types": ["lead.finished"]}
    made = expect(await client.post("/api/v1/webhook-endpoints", body), 201)
    assert made["secret"].startswith("whsec_")
    assert (made["reseller_id"], made["merchant_id"], made["status"]) == ("a", "a1", "active")
    path = f"/api/v1/webhook-endpoints/{made['id']}"
    seen = expect(await client.get(path), 200)
    assert "secret" not in seen
    disabled = expect(await client.patch(path, {"status": "disabled"}), 200)
    assert (disabled["status"], disabled["disabled_reason"]) == ("disabled", "By hand")
    enabled = expect(await client.patch(path, {"status": "active", "event_types": ["*"]}), 200)
    assert (enabled["status"], enabled["disabled_reason"], enabled["event_types"]) == ("active", None, ["*"])
    expect(await client.delete(path), 204)
    expect(await client.get(path), 404)


async def test_the_sealed_endpoint_secrets_open_as_those_that_were_shown(world: ApiWorld) -> None:
    client = world.tenant("a1")
    made = expect(await client.post("/api/v1/webhook-endpoints", {"url": "https://example.com/"}), 201)
    rotated = expect(await client.post(f"/api/v1/webhook-endpoints/{made['id']}/rotate-secret", {}), 200)
    async with world.database.connection() as conn:
        row = await conn.fetchrow("SELECT * FROM webhook_endpoints WHERE id = $1", UUID(made["id"]))
    assert row is not None
    stored = [world.jobs.sealer.open(row[name]) for name in ("secret_sealed", "old_secret_sealed")]
    assert stored == [rotated["secret"], made["secret"]]
    headers = signing.signed_headers("msg", int(datetime.now(UTC).timestamp()), b"{}", stored)
    for secret in stored:
        Judge(secret).verify(b"{}", headers)


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "https://127.0.0.1/", "https://u:p@example.com/", "https://[::1]/", "no url"],
)
async def test_a_url_that_we_may_not_send_to_is_refused(world: ApiWorld, url: str) -> None:
    refused = expect(await world.tenant("a1").post("/api/v1/webhook-endpoints", {"url": url}), 422)
    assert [problem["field"] for problem in refused["fields"]] == ["url"]


async def test_one_url_is_one_endpoint_of_a_tenant(world: ApiWorld) -> None:
    body = {"url": "https://example.com/hooks"}
    first = expect(await world.tenant("a1").post("/api/v1/webhook-endpoints", body), 201)
    expect(await world.tenant("a2").post("/api/v1/webhook-endpoints", body), 201)
    assert (
        expect(await world.tenant("a1").post("/api/v1/webhook-endpoints", body), 409)["code"]
        == "already_exists"
    )
    other = expect(
        await world.tenant("a1").post("/api/v1/webhook-endpoints", {"url": "https://example.org/"}), 201
    )
    change = await world.tenant("a1").patch(f"/api/v1/webhook-endpoints/{other['id']}", body)
    assert expect(change, 409)["code"] == "already_exists"
    expect(await world.tenant("a1").patch(f"/api/v1/webhook-endpoints/{first['id']}", body), 200)


async def test_a_webhook_endpoint_belongs_to_a_tenant(world: ApiWorld) -> None:
    refused = expect(
        await world.admin.post("/api/v1/webhook-endpoints", {"url": "https://example.com/"}), 422
    )
    assert refused["fields"][0]["field"] == "reseller_id"


# The command line


async def run(url: str, *words: str, as_json: bool = True) -> str:
    command = ["--url", url, "--key", ADMIN_KEY, *(["--json"] if as_json else []), *words]
    result = await asyncio.to_thread(CliRunner().invoke, jobs_app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


async def test_the_command_line_lists_shows_retries_cancels_and_pauses(world: ApiWorld) -> None:
    job = await enqueue(world)
    async with serve(world.app) as url:
        assert job in await run(url, "list", "--status", "PENDING", "--type", "deliver_webhook")
        assert '"payload"' in await run(url, "show", job)
        assert '"PENDING"' in await run(url, "retry", job)
        await die(world)
        assert job in await run(url, "dead")
        assert '"replayed": 1' in await run(url, "dead", "--replay", "--type", "deliver_webhook")
        assert '"repairs"' in await run(url, "pause", "deliver_webhook", "--reason", "repairs")
        assert '"repairs"' in await run(url, "types")
        assert '"paused_reason": null' in await run(url, "resume", "deliver_webhook")
        assert '"cancelled"' in await run(url, "cancel", job, "--reason", "no")


async def test_the_command_line_shows_tables_to_people(world: ApiWorld) -> None:
    job = await enqueue(world)
    async with serve(world.app) as url:
        for words in (["list"], ["show", job]):
            assert job in await run(url, *words, as_json=False)
        assert "None." in await run(url, "dead", as_json=False)
