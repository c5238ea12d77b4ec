"""Jobs and mailboxes as queues, over HTTP and on the command line: the older addresses show the same."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.integration import test_jobs_api, test_mailbox_api
from tests.integration.test_jobs_api import enqueue
from tests.integration.test_mailbox_api import append
from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from trunkline.cli.queues import app as queues_app
from trunkline.client import TrunklineClient
from trunkline.schema.queues import JobDetail, MailboxDetail

ROOT = "/api/v1/queues"
WEBHOOKS = f"{ROOT}/jobs/deliver_webhook"
ISSUES = f"{ROOT}/mailboxes/issue"
WHY = {"reason": "mended"}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        expect(await world.admin.post("/api/v1/mailbox-kinds", {"kind": "issue", "merchant_id": "a1"}), 201)
        yield world


async def queue(world: ApiWorld, kind: str, name: str) -> dict[str, Any]:
    items = expect(await world.admin.get(ROOT), 200)["items"]
    [found] = [each for each in items if (each["kind"], each["name"]) == (kind, name)]
    return dict(found)


async def test_queues_count_jobs_and_mailboxes_by_status(world: ApiWorld) -> None:
    await enqueue(world)
    await test_jobs_api.die(world)
    await enqueue(world)
    await append(world, "a", key="one")
    await test_mailbox_api.die(world)
    await append(world, "a", key="two")
    await test_mailbox_api.claim(world)
    await append(world, "a", key="three")
    counted = {"waiting": 1, "dead": 1, "paused_reason": None}
    assert await queue(world, "jobs", "deliver_webhook") == counted | {
        "kind": "jobs", "name": "deliver_webhook", "running": None,
    }  # fmt: skip
    assert await queue(world, "mailboxes", "issue") == counted | {
        "kind": "mailboxes", "name": "issue", "running": 1,
    }  # fmt: skip


async def test_a_queue_lists_its_items_by_status_in_one_shape(world: ApiWorld) -> None:
    dead_job = await enqueue(world)
    await test_jobs_api.die(world)
    waiting_job = await enqueue(world)
    await append(world, "a", key="dead/box")
    await test_mailbox_api.die(world)
    await append(world, "a", key="waiting/box")
    client = world.tenant("a1", "read")
    for path, dead, waiting, error in (
        (WEBHOOKS, dead_job, waiting_job, "E: m"),
        (ISSUES, "dead/box", "waiting/box", "ValueError: no"),
    ):
        both = expect(await client.get(path), 200)["items"]
        assert {each["id"]: each["status"] for each in both} == {dead: "dead", waiting: "waiting"}
        [letter] = expect(await client.get(path, {"status": "dead"}), 200)["items"]
        assert (letter["id"], letter["attempts"], letter["last_error"]) == (dead, 1, error)
        assert set(letter) == set(both[0])
        assert expect(await client.get(path, {"status": "running"}), 200)["items"] == []


async def test_pages_of_a_queue_follow_their_cursor(world: ApiWorld) -> None:
    jobs = [await enqueue(world) for _ in range(3)]
    for key in ("a/1", "b/2", "c/3"):
        await append(world, "a", key=key)
    for path, ids in ((WEBHOOKS, jobs[::-1]), (ISSUES, ["a/1", "b/2", "c/3"])):
        first = expect(await world.admin.get(path, {"limit": 2}), 200)
        rest = expect(await world.admin.get(path, {"limit": 2, "cursor": first["next_cursor"]}), 200)
        assert [each["id"] for each in first["items"] + rest["items"]] == ids
        assert rest["next_cursor"] is None


async def test_one_item_of_a_queue_is_as_at_its_older_address(world: ApiWorld) -> None:
    job = await enqueue(world)
    await append(world, "a")
    shown = expect(await world.admin.get(f"{WEBHOOKS}/{job}"), 200)
    assert shown == expect(await world.admin.get(f"/api/v1/jobs/{job}"), 200)
    box = expect(await world.admin.get(f"{ISSUES}/acme/site#12"), 200)
    assert box == expect(await world.admin.get(test_mailbox_api.ISSUE), 200)
    assert (await world.admin.get(f"{ROOT}/jobs/export/{job}")).status == 404
    assert (await world.admin.get(f"{WEBHOOKS}/no-id")).status == 404
    assert (await world.admin.get(f"{ROOT}/letters/issue")).status == 404


async def test_the_dead_letters_of_a_queue_are_replayed_with_a_reason(world: ApiWorld) -> None:
    job = await enqueue(world)
    await test_jobs_api.die(world)
    await append(world, "a")
    await test_mailbox_api.die(world)
    for path, item in ((WEBHOOKS, job), (ISSUES, "acme/site#12")):
        done = expect(await world.admin.post(f"{path}/replay", WHY), 200)
        assert done == {"replayed": 1, "superseded": 0}
        assert expect(await world.admin.post(f"{path}/replay", WHY), 200)["replayed"] == 0
        [back] = expect(await world.admin.get(path), 200)["items"]
        assert (back["id"], back["status"]) == (item, "waiting")
    for action in ("jobs.replayed", "mailboxes.replayed"):
        entry = expect(await world.admin.get("/api/v1/audit", {"action": action}), 200)["items"][0]
        assert entry["reason"] == "mended"


async def test_one_dead_letter_is_replayed_alone(world: ApiWorld) -> None:
    job, other = await enqueue(world), await enqueue(world)
    await test_jobs_api.die(world)
    await append(world, "a")
    await test_mailbox_api.die(world)
    back = expect(await world.admin.post(f"{WEBHOOKS}/{job}/replay", WHY), 200)
    assert (back["id"], back["status"], back["attempts"]) == (job, "waiting", 0)
    [letter] = expect(await world.admin.get(WEBHOOKS, {"status": "dead"}), 200)["items"]
    assert letter["id"] == other
    box = expect(await world.admin.post(f"{ISSUES}/acme/site#12/replay", WHY), 200)
    assert (box["id"], box["status"]) == ("acme/site#12", "waiting")
    again = await world.admin.post(f"{ISSUES}/acme/site#12/replay", WHY)
    assert expect(again, 409)["code"] == "mailbox_not_dead"


async def test_a_queue_of_jobs_is_paused_and_its_jobs_cancelled(world: ApiWorld) -> None:
    job = await enqueue(world)
    assert expect(await world.admin.post(f"{WEBHOOKS}/pause", WHY), 200)["paused_reason"] == "mended"
    assert (await queue(world, "jobs", "deliver_webhook"))["paused_reason"] == "mended"
    assert expect(await world.admin.post(f"{WEBHOOKS}/resume", {}), 200)["paused_reason"] is None
    assert expect(await world.admin.post(f"{WEBHOOKS}/{job}/cancel", WHY), 200)["status"] == "done"
    assert expect(await world.admin.get(f"/api/v1/jobs/{job}"), 200)["outcome"] == "cancelled"
    assert (await world.admin.post(f"{ISSUES}/pause", WHY)).status == 405
    assert (await world.tenant("a1", "admin").post(f"{WEBHOOKS}/pause", WHY)).status == 404


async def test_a_queue_shows_nothing_of_other_tenants(world: ApiWorld) -> None:
    job = await enqueue(world)
    await append(world, "a")
    stranger = world.tenant("b1", "admin")
    assert expect(await stranger.get(ROOT), 200)["items"] == []
    assert expect(await stranger.get(WEBHOOKS), 200)["items"] == []
    for path in (f"{WEBHOOKS}/{job}", ISSUES, f"{ISSUES}/acme/site#12"):
        assert (await stranger.get(path)).status == 404
    for path in (f"{WEBHOOKS}/{job}/replay", f"{WEBHOOKS}/{job}/cancel", f"{ISSUES}/replay"):
        assert (await stranger.post(path, WHY)).status == 404
    for path in (f"{WEBHOOKS}/replay", f"{ISSUES}/acme/site#12/replay"):
        assert (await world.tenant("a1", "read").post(path, WHY)).status == 403


async def test_the_command_line_shows_and_replays_queues(world: ApiWorld) -> None:
    job = await enqueue(world)
    await test_jobs_api.die(world)
    await append(world, "a")
    await test_mailbox_api.die(world)
    async with serve(world.app) as url:

        async def run(*words: str) -> Any:
            said = await asyncio.to_thread(
                CliRunner().invoke, queues_app, ["--url", url, "--key", ADMIN_KEY, "--json", *words]
            )
            assert said.exit_code == 0, said.output
            return json.loads(said.output)

        names = {(each["kind"], each["name"]): each["dead"] for each in (await run("list"))["items"]}
        assert (names["jobs", "deliver_webhook"], names["mailboxes", "issue"]) == (1, 1)
        [letter] = (await run("items", "mailboxes", "issue", "--status", "dead"))["items"]
        assert letter["id"] == "acme/site#12"
        assert (await run("show", "mailboxes", "issue", "acme/site#12"))["key"] == "acme/site#12"
        back = await run("replay", "mailboxes", "issue", "acme/site#12", "--reason", "mended")
        assert back["status"] == "waiting"
        done = await run("replay", "jobs", "deliver_webhook", "--reason", "mended")
        assert done == {"replayed": 1, "superseded": 0}
        assert (await run("pause", "deliver_webhook", "--reason", "mended"))["paused_reason"] == "mended"
        assert (await run("resume", "deliver_webhook"))["paused_reason"] is None
        assert (await run("cancel", "deliver_webhook", job, "--reason", "mended"))["status"] == "done"


async def test_the_client_has_queues_jobs_and_mailboxes_as_values(world: ApiWorld) -> None:
    job = await enqueue(world)
    await append(world, "a", "b")
    async with serve(world.app) as url, TrunklineClient(url, ADMIN_KEY) as client:
        counts = {(each.kind, each.name): each.waiting for each in await client.list_queues()}
        assert (counts["jobs", "deliver_webhook"], counts["mailboxes", "issue"]) == (1, 1)
        [item] = [each async for each in client.list_queue_items("jobs", "deliver_webhook")]
        found = await client.get_queue_item("jobs", "deliver_webhook", item.id)
        assert isinstance(found, JobDetail)
        assert (str(found.id), found.payload) == (job, {"n": 1})
        assert await client.get_job(item.id) == found
        assert [str(each.id) async for each in client.list_jobs(status="PENDING")] == [job]
        assert (await client.get_progress(item.id)).progress is None
        assert (await client.pause_queue("deliver_webhook", reason="mended")).paused_reason == "mended"
        assert [each.paused_by for each in await client.list_types() if each.paused_reason] != []
        assert (await client.cancel_job(item.id, reason="mended")).outcome == "cancelled"
        box = await client.get_queue_item("mailboxes", "issue", "acme/site#12")
        assert isinstance(box, MailboxDetail)
        assert (box.pending, [event.seq for event in box.events]) == (2, [1, 2])
        assert await client.get_mailbox("issue", "acme/site#12") == box
        assert [each.events for each in await client.summarize()] == [2]
        receipt = await client.append_event("issue", "acme/site#12", type="commented", dedupe_key="a")
        assert (receipt.seq, receipt.created) == (1, False)
        assert (await client.set_aside("issue", "acme/site#12", seq=2, reason="odd")).appended == 2
        assert [e.error async for e in client.list_events("issue", "acme/site#12", which="parked")] == ["odd"]
        assert (await client.replay_kind("issue", reason="mended")).replayed == 0
