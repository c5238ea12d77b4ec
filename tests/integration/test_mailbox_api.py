"""Mailboxes over HTTP, and on the command line."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.api.asgi import Answer
from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from trunkline.api import event_signature
from trunkline.cli.queues import mailbox as mailbox_app
from trunkline.store import mailboxes
from trunkline.store.mailboxes import ClaimedMailbox, NewEvent

# As a server hands it on: with the escapes of the URL undone.
ISSUE = "/api/v1/mailboxes/issue/acme/site#12"
OPENED = {"type": "opened", "payload": {"by": "ada"}, "dedupe_key": "d1"}
WHY = {"reason": "mended"}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


@pytest.fixture
async def secret(world: ApiWorld) -> str:
    """Of the kind `issue`, which is the merchant a1's."""
    made = await world.admin.post("/api/v1/mailbox-kinds", {"kind": "issue", "merchant_id": "a1"})
    return str(expect(made, 201)["secret"])


async def signed(world: ApiWorld, secret: str, path: str, key: str, body: Any = None) -> Answer:
    raw = json.dumps(OPENED if body is None else body).encode()
    now_s = int(world.clock.now().timestamp())
    headers = {
        "content-type": "application/json",
        event_signature.HEADER: event_signature.sign(secret, now_s, "issue", key, raw),
    }
    return await world.anybody.request("POST", path, body=raw, headers=headers)


async def append(world: ApiWorld, *names: str, kind: str = "issue", key: str = "acme/site#12") -> None:
    async with world.database.transaction() as tx:
        await mailboxes.append(tx, [NewEvent(kind, key, name, "commented", {"n": name}) for name in names])


async def claim(world: ApiWorld, kind: str = "issue") -> ClaimedMailbox:
    async with world.database.connection() as conn:
        [claimed] = await mailboxes.claim(conn, kind, None, limit=1, worker="w1", lease_s=60, events_max=100)
    return claimed


async def die(world: ApiWorld) -> None:
    claimed = await claim(world)
    async with world.database.connection() as conn:
        await mailboxes.fail(conn, claimed.claim, "ValueError: no", failures_max=1, delay_s=0)


async def test_an_event_is_appended_once_however_often_it_is_sent(world: ApiWorld, secret: str) -> None:
    client = world.tenant("a1", "leads")
    first = expect(await client.post(f"{ISSUE}/events", OPENED), 201)
    assert first == {"kind": "issue", "key": "acme/site#12", "seq": 1, "created": True}
    again = expect(await client.post(f"{ISSUE}/events", OPENED), 200)
    assert (again["seq"], again["created"]) == (1, False)
    box = expect(await client.get(ISSUE), 200)
    assert (box["processing_status"], box["pending"]) == ("queued", 1)
    assert [(each["type"], each["payload"]) for each in box["events"]] == [("opened", {"by": "ada"})]


async def test_without_a_dedupe_key_every_event_is_another(world: ApiWorld, secret: str) -> None:
    for seq in (1, 2):
        made = await world.admin.post(f"{ISSUE}/events", {"type": "opened"})
        assert expect(made, 201)["seq"] == seq


async def test_a_signed_append_needs_no_api_key(world: ApiWorld, secret: str) -> None:
    answer = await signed(world, secret, f"{ISSUE}/events", "acme/site#12")
    assert expect(answer, 201)["seq"] == 1
    repeated = await signed(world, secret, f"{ISSUE}/events", "acme/site#12")
    assert expect(repeated, 200)["created"] is False


async def test_a_signature_for_another_mailbox_is_refused(world: ApiWorld, secret: str) -> None:
    assert (await signed(world, secret, "/api/v1/mailboxes/issue/13/events", "12")).status == 401
    assert (await signed(world, "wrong", f"{ISSUE}/events", "acme/site#12")).status == 401


async def test_a_signature_opens_nothing_but_the_append(world: ApiWorld, secret: str) -> None:
    assert (await signed(world, secret, f"{ISSUE}/replay", "acme/site#12")).status == 401
    assert (await signed(world, secret, "/api/v1/leads", "acme/site#12")).status == 401
    header = {event_signature.HEADER: "t=1,v1=" + "0" * 64}
    assert (await world.anybody.request("GET", f"{ISSUE}/events", headers=header)).status == 401


async def test_a_bad_signature_is_answered_alike_whether_the_kind_exists_or_not(
    world: ApiWorld, secret: str
) -> None:
    known = await signed(world, "wrong", f"{ISSUE}/events", "acme/site#12")
    unknown = await signed(world, "wrong", "/api/v1/mailboxes/nothing/1/events", "1")
    bad_body = await signed(world, "wrong", f"{ISSUE}/events", "acme/site#12", {"no": "event"})
    assert known.status == unknown.status == bad_body.status == 401
    assert known.json()["error"] == unknown.json()["error"] == bad_body.json()["error"]


async def test_a_signature_with_the_secret_before_is_good_for_a_day(world: ApiWorld, secret: str) -> None:
    rotated = await world.tenant("a1").post("/api/v1/mailbox-kinds/issue/rotate-secret", {})
    new = expect(rotated, 200)["secret"]
    assert (await signed(world, secret, f"{ISSUE}/events", "acme/site#12")).status == 201
    assert (await signed(world, new, f"{ISSUE}/events", "acme/site#12")).status == 200
    async with world.database.connection() as conn:
        await conn.execute("UPDATE mailbox_kinds SET old_secret_until = now() - interval '1 second'")
    assert (await signed(world, secret, f"{ISSUE}/events", "acme/site#12")).status == 401


async def test_another_tenants_kind_does_not_exist(world: ApiWorld, secret: str) -> None:
    for intruder in ("a2", "b", "b1"):
        refused = await world.tenant(intruder).post(f"{ISSUE}/events", OPENED)
        assert (refused.status, refused.json()["code"]) == (404, "not_found")
    assert expect(await world.tenant("a").post(f"{ISSUE}/events", OPENED), 201)["seq"] == 1


async def test_the_platforms_own_kinds_are_not_appended_to_from_outside(world: ApiWorld) -> None:
    assert (await world.admin.post("/api/v1/mailbox-kinds", {"kind": "call"})).status == 422
    assert (await world.admin.post("/api/v1/mailboxes/call/1/events", OPENED)).status == 404
    await append(world, "one", kind="call", key="1")
    assert expect(await world.admin.get("/api/v1/mailboxes/call/1"), 200)["pending"] == 1
    assert (await world.tenant("a1").get("/api/v1/mailboxes/call/1")).status == 404


async def test_only_the_platform_opens_and_closes_kinds(world: ApiWorld, secret: str) -> None:
    refused = await world.tenant("a1").post("/api/v1/mailbox-kinds", {"kind": "mine"})
    assert (refused.status, refused.json()["code"]) == (403, "platform_only")
    assert (await world.tenant("a1").delete("/api/v1/mailbox-kinds/issue")).status == 403
    taken = await world.admin.post("/api/v1/mailbox-kinds", {"kind": "issue"})
    assert (taken.status, taken.json()["code"]) == (409, "already_exists")
    await append(world, "one")
    assert (await world.admin.delete("/api/v1/mailbox-kinds/issue")).status == 409
    async with world.database.connection() as conn:
        await conn.execute("DELETE FROM mailboxes")
    assert (await world.admin.delete("/api/v1/mailbox-kinds/issue")).status == 204


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"type": ""},
        {"type": "x" * 501},
        {"type": "x", "payload": []},
        {"type": "x", "payload": {"a": "\x00"}},
        {"type": "ü" * 300},
        {"type": "x", "dedupe_key": ""},
        {"type": "x", "other": 1},
    ],
)
async def test_an_invalid_event_is_422_with_its_fields(world: ApiWorld, secret: str, body: Any) -> None:
    refused = await world.admin.post(f"{ISSUE}/events", body)
    assert (refused.status, refused.json()["code"]) == (422, "invalid_request")
    assert refused.json()["fields"]


async def test_the_summary_says_what_waits_and_for_how_long(world: ApiWorld, secret: str) -> None:
    await append(world, "one", "two")
    [item] = expect(await world.tenant("a1", "read").get("/api/v1/mailboxes"), 200)["items"]
    assert item["oldest_s"] >= 0
    del item["oldest_s"]
    assert item == {"kind": "issue", "status": "queued", "mailboxes": 1, "events": 2}
    assert expect(await world.tenant("b1").get("/api/v1/mailboxes"), 200)["items"] == []


async def test_mailboxes_are_listed_in_pages_whatever_their_keys(world: ApiWorld, secret: str) -> None:
    keys = ["a b", "acme/site#12", "ß" * 250, "中文"]
    for key in keys:
        await append(world, "one", key=key)
    seen: list[str] = []
    query: dict[str, object] = {"limit": 1, "status": "queued"}
    while True:
        page = expect(await world.tenant("a1").get("/api/v1/mailboxes/issue", query), 200)
        seen += [item["key"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert sorted(seen) == sorted(keys)


async def test_mailboxes_in_processing_for_long_are_listed_as_stuck(world: ApiWorld, secret: str) -> None:
    await append(world, "one")
    await claim(world)
    stuck = "/api/v1/mailboxes/stuck"
    assert expect(await world.tenant("a1").get(stuck), 200)["items"] == []
    [item] = expect(await world.tenant("a1").get(stuck, {"in_hand_for_s": 0}), 200)["items"]
    assert (item["key"], item["locked_by"]) == ("acme/site#12", "w1")
    assert expect(await world.tenant("b1").get(stuck, {"in_hand_for_s": 0}), 200)["items"] == []


async def test_a_dead_mailbox_shows_its_error_and_is_replayed(world: ApiWorld, secret: str) -> None:
    await append(world, "one")
    await die(world)
    client = world.tenant("a1")
    box = expect(await client.get(ISSUE), 200)
    assert (box["processing_status"], box["last_error"]) == ("dead", "ValueError: no")
    back = expect(await client.post(f"{ISSUE}/replay", WHY), 200)
    assert (back["processing_status"], back["failures"], back["pending"]) == ("queued", 0, 1)
    again = await client.post(f"{ISSUE}/replay", WHY)
    assert (again.status, again.json()["code"]) == (409, "mailbox_not_dead")
    actions = expect(await client.get("/api/v1/audit"), 200)["items"]
    assert ("mailbox.replayed", "issue/acme/site#12", "mended") in [
        (line["action"], line["subject"], line["reason"]) for line in actions
    ]


async def test_all_dead_mailboxes_of_a_kind_are_replayed(world: ApiWorld, secret: str) -> None:
    for key in ("a", "b"):
        await append(world, "one", key=key)
        await die(world)
    client = world.tenant("a1")
    assert expect(await client.post("/api/v1/mailboxes/issue/replay", WHY), 200) == {"replayed": 2}
    assert expect(await client.post("/api/v1/mailboxes/issue/replay", WHY), 200) == {"replayed": 0}


async def test_a_kind_is_renamed_with_its_events_but_for_mailboxes_in_processing(world: ApiWorld) -> None:
    await append(world, "5", kind="old", key="in_hand")
    claimed = await claim(world, "old")
    await append(world, "1", "2", kind="old", key="a")
    await append(world, "3", kind="old", key="twice")
    await append(world, "4", kind="new", key="twice")
    renamed = await world.admin.post("/api/v1/mailboxes/old/rename", {**WHY, "to": "new"})
    assert expect(renamed, 200) == {"renamed": 1, "left": True}
    moved = expect(await world.admin.get("/api/v1/mailboxes/new/a"), 200)
    assert ([each["seq"] for each in moved["events"]], moved["processing_status"]) == ([1, 2], "queued")
    assert expect(await world.admin.get("/api/v1/mailboxes/old/twice"), 200)["pending"] == 1
    # Its worker ends it under the name by which it was claimed.
    async with world.database.transaction() as tx:
        assert set(await mailboxes.complete(tx, [claimed])) == {"in_hand"}


async def test_a_kind_is_not_renamed_into_another_tenants(world: ApiWorld, secret: str) -> None:
    await append(world, "1", kind="old", key="a")
    refused = await world.admin.post("/api/v1/mailboxes/old/rename", {**WHY, "to": "issue"})
    assert (refused.status, refused.json()["code"]) == (409, "kind_of_another")


async def test_an_event_is_set_aside_and_replayed(world: ApiWorld, secret: str) -> None:
    await append(world, "one", "two")
    client = world.tenant("a1")
    aside = {"seq": 1, "reason": "unreadable"}
    expect(await client.post(f"{ISSUE}/set-aside", aside), 200)
    again = await client.post(f"{ISSUE}/set-aside", aside)
    assert (again.status, again.json()["code"]) == (409, "event_not_waiting")
    parked = expect(await client.get(f"{ISSUE}/events", {"which": "parked"}), 200)["items"]
    assert [(each["seq"], each["error"]) for each in parked] == [(1, "unreadable")]
    waiting = expect(await client.get(f"{ISSUE}/events", {"which": "unprocessed"}), 200)["items"]
    assert [each["seq"] for each in waiting] == [2]
    expect(await client.post(f"{ISSUE}/replay", {**WHY, "seq": 1}), 200)
    none = await client.post(f"{ISSUE}/replay", {**WHY, "seq": 1})
    assert (none.status, none.json()["code"]) == (409, "event_not_set_aside")
    page = expect(await client.get(f"{ISSUE}/events", {"limit": 1}), 200)
    rest = expect(await client.get(f"{ISSUE}/events", {"limit": 1, "cursor": page["next_cursor"]}), 200)
    assert [each["payload"]["n"] for each in page["items"] + rest["items"]] == ["two", "one"]


async def test_every_mailbox_command_works_with_json(world: ApiWorld) -> None:
    async with serve(world.app) as url:

        async def run(*arguments: str) -> Any:
            command = ["--url", url, "--key", ADMIN_KEY, "--json", *arguments]
            done = await asyncio.to_thread(CliRunner().invoke, mailbox_app, command)
            assert done.exit_code == 0, (arguments, done.output, done.exception)
            return json.loads(done.output) if done.output.strip() else None

        assert len((await run("open", "issue", "--merchant", "a1"))["secret"]) > 40
        assert [each["kind"] for each in (await run("kinds"))["items"]] == ["issue"]
        event = (
            "append",
            "issue",
            "acme/site#12",
            "opened",
            "--payload",
            '{"n": "one"}',
            "--dedupe-key",
            "d",
        )
        assert (await run(*event))["created"] is True
        assert (await run(*event))["created"] is False
        assert (await run("summary"))["items"][0]["events"] == 1
        assert (await run("list", "issue", "--status", "queued"))["items"][0]["key"] == "acme/site#12"
        await die(world)
        assert (await run("show", "issue", "acme/site#12"))["last_error"] == "ValueError: no"
        assert (await run("replay", "issue", "--reason", "mended")) == {"replayed": 1}
        await claim(world)
        assert (await run("stuck", "--minutes", "0"))["items"][0]["locked_by"] == "w1"
        await run("set-aside", "issue", "acme/site#12", "1", "--reason", "bad")
        assert (await run("events", "issue", "acme/site#12", "--which", "parked"))["items"][0][
            "error"
        ] == "bad"
        await run("replay", "issue", "acme/site#12", "--seq", "1", "--reason", "good")
        assert len((await run("rotate-secret", "issue"))["secret"]) > 40
        async with world.database.connection() as conn:
            await conn.execute("DELETE FROM mailboxes")
        await run("close", "issue")
        assert (await run("kinds"))["items"] == []


async def test_mailbox_show_prints_a_table_without_json(world: ApiWorld, secret: str) -> None:
    await append(world, "one")
    async with serve(world.app) as url:
        command = ["--url", url, "--key", ADMIN_KEY, "show", "issue", "acme/site#12"]
        done = await asyncio.to_thread(CliRunner().invoke, mailbox_app, command)
    assert done.exit_code == 0
    assert "queued" in done.output
