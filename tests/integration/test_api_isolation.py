"""Every route, found in the route table and not listed by hand: a new one is covered on the day it is added."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from tests.support.api.world import ApiWorld, open_api

OPEN = {"/health", "/ready", "/metrics"}
CAMPAIGN_ACTS = ("leads", "start", "pause", "resume", "stop")
REMINDER_ACTS = ("skip", "next", "pause", "resume")


class Operation(NamedTuple):
    method: str
    path: str
    body: Any

    def at(self, ids: dict[str, str]) -> str:
        """The path of one object. A parameter that `ids` lacks needs an object in `ApiWorld.objects_of`."""
        return self.path.format_map(ids)


def operations(app: FastAPI) -> Iterator[Operation]:
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield Operation(method.upper(), path, example_of(document, operation))


def example_of(document: dict[str, Any], operation: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    examples = document["components"]["schemas"].get(reference, {}).get("examples", [None])
    return content.get("example", examples[0])


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def test_every_route_under_the_api_is_documented(world: ApiWorld) -> None:
    documented = {(operation.method, operation.path) for operation in operations(world.app)}
    routes = {
        (method, str(route.path).replace(":path}", "}"))
        for route in iter_route_contexts(world.app.routes)
        for method in (route.methods or set()) - {"HEAD"}
        if str(route.path).startswith("/api")
    }
    assert routes <= documented
    assert len(routes) > 20


async def test_every_route_but_the_open_ones_refuses_a_request_without_a_key(world: ApiWorld) -> None:
    ids = await world.objects_of("a1")
    for operation in operations(world.app):
        answer = await world.anybody.request(operation.method, operation.at(ids), json=operation.body)
        if operation.path in OPEN:
            assert answer.status == 200, operation
        else:
            assert answer.status == 401, operation
            assert answer.headers["www-authenticate"].startswith("Bearer"), operation
            assert answer.json()["code"] == "unauthorized", operation


async def test_a_request_without_a_key_is_refused_before_its_body_is_read(world: ApiWorld) -> None:
    for path in ("/api/v1/leads", "/api/v1/no-such-thing", "/api/v1"):
        answer = await world.anybody.request(
            "POST", path, body=b"{", headers={"content-type": "application/json"}
        )
        assert answer.status == 401


@pytest.mark.parametrize(
    ("victim", "intruder"),
    [("b1", "a"), ("b1", "a1"), ("a1", "a2"), ("a1", "b")],
)
async def test_every_route_with_an_id_answers_404_to_another_tenant(
    world: ApiWorld, victim: str, intruder: str
) -> None:
    ids = await world.objects_of(victim)
    with_id = [operation for operation in operations(world.app) if "{" in operation.path]
    assert len(with_id) > 10
    for operation in with_id:
        path = operation.at(ids)
        answer = await world.tenant(intruder).request(operation.method, path, json=operation.body)
        assert (answer.status, answer.json()["code"]) == (404, "not_found"), operation
    for operation in with_id:
        if operation.method == "GET":
            answer = await world.admin.get(operation.at(ids))
            assert answer.status == 200, f"{operation} is still there, and was there to be found"


async def test_a_missing_object_and_another_tenants_get_the_same_answer(world: ApiWorld) -> None:
    theirs = await world.objects_of("b1")
    nobodys = {
        name: "no-such"
        if name in ("pool_id", "merchant_id", "reseller_id")
        else "01999999-0000-7000-8000-000000000000"
        for name in theirs
    } | {name: theirs[name] for name in ("scope", "queue_kind")}  # words, nobody's ids
    for operation in operations(world.app):
        if "{" in operation.path:
            answers = [
                (
                    await world.tenant("a1").request(operation.method, operation.at(ids), json=operation.body)
                ).json()
                for ids in (theirs, nobodys)
            ]
            for answer in answers:
                del answer["request_id"]
            assert answers[0] == answers[1], operation


@pytest.mark.parametrize("tenant", ["a", "a1"])
async def test_every_list_shows_a_tenant_only_what_it_may_use(world: ApiWorld, tenant: str) -> None:
    for merchant_id in ("a1", "a2", "b1"):
        await world.objects_of(merchant_id)
    merchants = {"a": {None, "a1", "a2"}, "a1": {None, "a1"}}[tenant]
    lists = [
        op
        for op in operations(world.app)
        if op.method == "GET" and "{" not in op.path and op.path not in OPEN
    ]
    seen = 0
    for operation in lists:
        items = (await world.tenant(tenant).get(operation.path)).json().get("items", [])
        everything = (await world.admin.get(operation.path)).json().get("items", [])
        assert len(items) < len(everything) or not everything, operation
        for item in items:
            assert item.get("reseller_id") in (None, "a"), operation
            assert item.get("merchant_id") in merchants, operation
        seen += len(items)
    assert seen > 5


async def test_filters_do_not_reach_beyond_the_tenant(world: ApiWorld) -> None:
    await world.make_lead("b1")
    for query in ({"merchant_id": "b1"}, {"phone": "+14155550123"}, {"status": "BACKLOG"}):
        assert (await world.tenant("a").get("/api/v1/leads", query)).json()["items"] == []
        assert (await world.tenant("a1").get("/api/v1/leads", query)).json()["items"] == []
        assert len((await world.tenant("b").get("/api/v1/leads", query)).json()["items"]) == 1


@pytest.mark.parametrize(
    ("scope", "may"),
    [
        ("router", {("GET", "/api/v1/me")}),
        ("read", None),
        (
            "leads",
            {
                ("POST", "/api/v1/leads"),
                ("POST", "/api/v1/leads/bulk"),
                ("POST", "/api/v1/leads/abort"),
                ("POST", "/api/v1/leads/reopen"),
                ("POST", "/api/v1/leads/{lead_id}/reopen"),
                ("POST", "/api/v1/leads/{lead_id}/dispatch-now"),
                ("PATCH", "/api/v1/leads/{lead_id}"),
                ("DELETE", "/api/v1/leads/{lead_id}"),
                ("DELETE", "/api/v1/leads"),
                ("POST", "/api/v1/jobs/exports"),
                ("POST", "/api/v1/do-not-call"),
                ("POST", "/api/v1/do-not-call/bulk"),
                ("POST", "/api/v1/mailboxes/{kind}/{key}/events"),
                ("POST", "/api/v1/reminders"),
                ("PATCH", "/api/v1/reminders/{reminder_id}"),
                ("DELETE", "/api/v1/reminders/{reminder_id}"),
                *(("POST", f"/api/v1/reminders/{{reminder_id}}/{what}") for what in REMINDER_ACTS),
                ("POST", "/api/v1/campaigns"),
                ("POST", "/api/v1/campaigns/plan"),
                ("PATCH", "/api/v1/campaigns/{campaign_id}"),
                *(("POST", f"/api/v1/campaigns/{{campaign_id}}/{what}") for what in CAMPAIGN_ACTS),
            },
        ),
    ],
)
async def test_a_key_without_the_scope_is_refused_on_every_route(
    world: ApiWorld, scope: str, may: set[tuple[str, str]] | None
) -> None:
    ids = await world.objects_of("a1")
    client = world.tenant("a1", scope)
    for operation in operations(world.app):
        if operation.path in OPEN or (operation.method, operation.path) in (may or ()):
            continue
        if scope != "router" and operation.method == "GET" and "/keys" not in operation.path:
            continue
        answer = await client.request(operation.method, operation.at(ids), json=operation.body)
        assert (answer.status, answer.json()["code"]) == (403, "scope_missing"), operation


async def test_a_read_key_reads_every_route_but_keys(world: ApiWorld) -> None:
    ids = await world.objects_of("a1")
    for scope in ("read", "leads"):
        for operation in operations(world.app):
            if (
                operation.method == "GET"
                and "/keys" not in operation.path
                and "reseller_id" not in operation.path
                # the platform's, so nobody else's
                and "account_id" not in operation.path
                and operation.path != "/api/v1/flags/{flag}/evaluation"
            ):
                answer = await world.tenant("a1", scope).get(operation.at(ids))
                assert answer.status == 200, operation
