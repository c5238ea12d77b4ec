"""The console without a browser: who gets in, what they see, and what happens while engines are away."""

import html
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider

from tests.support.api.asgi import Answer
from tests.support.api.world import ADMIN_KEY, expect
from tests.support.console.world import (
    ConsoleWorld,
    Router,
    Visitor,
    addresses,
    open_console,
    open_router,
    park,
)
from trunkline.console.refill import Typed, refilled
from trunkline.console.resources import LISTS
from trunkline.console.session_auth import COOKIE
from trunkline.console.sitemap import ACTIONS, PAGES
from trunkline.control.flags import FlagBoard, Flags
from trunkline.model import CallReport
from trunkline.store import call_reports


@pytest.fixture
async def router(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Router]:
    async with open_router(redis_url, key_prefix, database_url) as router:
        yield router


@pytest.fixture
async def world(database_url: str, router: Router) -> AsyncIterator[ConsoleWorld]:
    async with open_console(database_url, router=router) as world:
        yield world


def text(answer: Answer) -> str:
    return answer.body.decode()


async def pages_with_ids(world: ConsoleWorld) -> list[str]:
    ids = await world.api.objects_of("a1") | {"name": await park(world.api, "agent-0")}
    return addresses(PAGES, ids)


async def test_every_page_needs_a_sign_in(world: ConsoleWorld) -> None:
    for address in await pages_with_ids(world):
        answer = await world.stranger().open(address)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/console/sign-in")
    for path in ACTIONS:
        answer = await world.stranger().send_raw(f"/console{path}", {"reason": "x"})
        assert (answer.status, answer.headers["location"]) == (303, "/console/sign-in")


async def test_signing_in_needs_a_key_that_is_good(world: ConsoleWorld) -> None:
    stranger = world.stranger()
    answer = await stranger.sign_in("not-a-key-of-anybody")
    assert answer.status == 403
    assert "unknown, revoked or expired" in text(answer)
    assert COOKIE not in stranger.cookies
    assert (await stranger.sign_in(ADMIN_KEY)).headers["location"] == "/console"
    assert (await stranger.open("/console")).status == 200


async def test_the_cookie_is_for_this_site_and_no_script(world: ConsoleWorld) -> None:
    answer = await world.stranger().sign_in(ADMIN_KEY)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/console" in cookie
    assert ADMIN_KEY not in cookie


async def test_sign_in_redirects_to_the_wanted_page_of_the_console_only(world: ConsoleWorld) -> None:
    for wanted, goes_to in (
        ("/console/leads?status=BACKLOG", "/console/leads?status=BACKLOG"),
        ("https://evil.example", "/console"),
        ("//evil.example", "/console"),
        ("/console//evil.example", "/console"),
        ("/console\\evil", "/console"),
    ):
        answer = await world.stranger().send_raw("/console/sign-in", {"key": ADMIN_KEY, "next": wanted})
        assert answer.headers["location"] == goes_to


async def test_a_session_ends_by_expiry_key_revocation_or_sign_out(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    copied = Visitor(visitor.client, dict(visitor.cookies))
    page = await visitor.open("/console")
    answer = await visitor.send(page, "/console/sign-out")
    assert "You are signed out." in text(answer)
    assert COOKIE not in visitor.cookies
    assert (await copied.open("/console")).status == 303, "a copy of the cookie is of no use either"

    key = await world.api.make_key("read")
    reader = await world.visitor(key)
    [made] = [
        each
        for each in (await world.api.admin.get("/api/v1/keys")).json()["items"]
        if each["name"] == "test" and each["scopes"] == ["read"] and each["reseller_id"] is None
    ]
    expect(await world.api.admin.delete(f"/api/v1/keys/{made['id']}"), 200)
    assert (await reader.open("/console")).status == 303

    late = await world.visitor(ADMIN_KEY)
    world.api.clock.advance(timedelta(hours=13).total_seconds())
    assert (await late.open("/console")).status == 303


async def test_a_link_signs_in_once(world: ConsoleWorld) -> None:
    path = world.console.link_for(ADMIN_KEY)
    stranger = world.stranger()
    assert (await stranger.open(path.partition("?")[0])).status == 200
    sealed = path.partition("link=")[2].replace("%3D", "=")
    assert (await stranger.send_raw("/console/enter", {"link": sealed})).headers["location"] == "/console"
    assert (await stranger.open("/console")).status == 200
    again = await world.stranger().send_raw("/console/enter", {"link": sealed})
    assert again.status == 403
    assert "used before" in text(again)


async def test_a_program_gets_a_link_for_its_key(world: ConsoleWorld) -> None:
    made = await world.api.admin.post("/console/links", None)
    assert made.status == 201
    assert made.json()["path"].startswith("/console/enter?link=")
    refused = await world.api.anybody.with_key("not-a-key-of-anybody").post("/console/links", None)
    assert refused.status == 401


async def test_a_form_without_its_token_or_from_another_site_does_nothing(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    page = await visitor.open("/console/control")
    form = {"scope": "merchant", "subject": "a1", "reason": "forged"}
    assert (await visitor.send_raw("/console/control/stop", form)).status == 403
    assert (await visitor.send_raw("/console/control/stop", form | {"token": "0" * 64})).status == 403
    token = text(page).partition('name="token" value="')[2].partition('"')[0]
    elsewhere = await visitor.send_raw(
        "/console/control/stop", form | {"token": token}, **{"sec-fetch-site": "cross-site"}
    )
    assert elsewhere.status == 403
    assert (await world.api.admin.get("/api/v1/controls")).json()["items"] == []
    assert (await visitor.send_raw("/console/control/stop", form | {"token": token})).status == 303
    assert len((await world.api.admin.get("/api/v1/controls")).json()["items"]) == 1


async def test_a_file_without_the_token_of_the_session_is_not_read(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    page = text(await visitor.open("/console/leads"))
    token = page.partition('data-token="')[2].partition('"')[0]
    body = b"request_id,merchant_id,phone\nr,a1,+14155550123\n"

    async def send(token: str) -> Answer:
        headers = visitor.headers() | {"x-form-token": token}
        query = {"file": "people.csv"}
        return await visitor.client.request(
            "POST", "/console/upload/leads", body=body, query=query, headers=headers
        )

    for wrong in ("", "0" * 64):
        assert (await send(wrong)).status == 403
    assert "1 new leads" in text(await send(token))


async def test_pages_load_nothing_from_other_hosts(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    for address in await pages_with_ids(world):
        answer = await visitor.open(address)
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["cache-control"] == "no-store"
        page = text(answer)
        assert " style=" not in page
        assert " onclick" not in page
        assert "<script>" not in page


async def test_a_list_of_a_plain_resource_shows_every_field_of_its_shape(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    for name, shape in LISTS.items():
        page = text(await visitor.open(f"/console/resources/{name}"))
        listed = (await world.api.admin.get(f"/api/v1/{name}")).json()["items"]
        assert page.count("<tr>") == (1 + len(listed) if listed else 0), name
        if listed:
            heads = re.findall(r'<th scope="col" title="([^"]+)">', page)
            assert [html.unescape(each) for each in heads] == [
                each.metadata["description"] for each in fields(shape)
            ]
    assert ">a1<" in text(await visitor.open("/console/resources/merchants"))


async def test_a_tenant_sees_no_more_in_the_console_than_through_the_api(world: ConsoleWorld) -> None:
    theirs = await world.api.objects_of("b1")
    ids = [each for name, each in theirs.items() if name.endswith("_id") and name != "reseller_id"]
    for tenant in ("a", "a1"):
        visitor = await world.visitor(world.api.keys[tenant, "admin"])
        for path in PAGES:
            [address] = addresses([path], theirs | {"name": "agent-0"})
            answer = await visitor.open(address)
            hidden = 403 if path.startswith("/pods") else 404 if "{" in path else 200
            assert answer.status == hidden, path
            if "{" not in path:
                seen = [each for each in ("b1", *ids) if f">{each}<" in text(answer)]
                assert seen == [], path
                assert theirs["lead_id"] not in text(answer), path


async def test_a_key_that_may_only_read_changes_nothing(world: ConsoleWorld) -> None:
    lead = await world.api.make_lead("a1", scheduled_at="2031-01-01T00:00:00Z")
    visitor = await world.visitor(world.api.keys["a1", "read"])
    page = await visitor.open(f"/console/leads/{lead['id']}")
    assert "Abort" not in text(page)
    await visitor.send(page, f"/console/leads/{lead['id']}/abort", reason="may I?")
    said = text(await visitor.open("/console/leads"))
    assert "lacks the scope" in said
    assert (await world.api.admin.get(f"/api/v1/leads/{lead['id']}")).json()["status"] == "BACKLOG"


async def test_a_router_key_cannot_open_the_console(world: ConsoleWorld) -> None:
    visitor = await world.visitor(world.api.keys["a1", "router"])
    answer = await visitor.open("/console/leads")
    assert answer.status == 403
    assert "lacks the scope" in text(answer)


async def test_a_missing_page_or_object_is_404(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    for address in (
        "/console/no-such-page",
        "/console/leads/no-such-lead",
        f"/console/numbers/{UUID(int=1)}",
    ):
        answer = await visitor.open(address)
        assert answer.status == 404
        assert "Not there" in text(answer)


async def test_a_leads_page_shows_reports_recordings_and_costs_escaped(world: ConsoleWorld) -> None:
    ids = await world.api.objects_of("a1")
    said = "<b>sold</b>"
    async with world.api.database.transaction() as tx:
        report = CallReport(said, data={"words": said})
        await call_reports.insert(tx, UUID(ids["attempt_id"]), report)
        await call_reports.add_recordings(tx, [(UUID(ids["attempt_id"]), "https://carrier.example/<i>1.wav")])
        await tx.execute(
            "UPDATE attempts SET cost_micros = 12000, carrier_cost_micros = 14000, carrier_cost_currency = 'USD'"
            " WHERE id = $1",
            UUID(ids["attempt_id"]),
        )
    visitor = await world.visitor(world.api.keys["a1", "read"])
    page = text(await visitor.open(f"/console/leads/{ids['lead_id']}"))
    assert "Results of call 1" in page
    assert "Hello. Goodbye." in page
    assert '<td data-label="Cost">0.012</td>' in page
    assert "0.014 USD" in page
    assert f"/enrichments/{ids['item_id']}/recording" in page
    assert "&lt;b&gt;sold&lt;/b&gt;" in page
    assert said not in page
    assert "<i>1.wav" not in page


async def test_a_pods_page_shows_its_hanging_handlers(world: ConsoleWorld) -> None:
    said = {"hanging": ["CA-over"], "handing_over": ["CA-1"], "calls": ["CA-1"], "sequence": 9}
    expect(await world.api.admin.post("/api/v1/pods/agent-0/heartbeat", said), 200)
    visitor = await world.visitor(ADMIN_KEY)

    assert ", 1 hanging" in text(await visitor.open("/console/pods"))
    page = text(await visitor.open("/console/pods/agent-0"))
    assert "1 handler did not end with the call" in page
    assert "<code>CA-over</code>" in page
    assert "gives 1 call to other pods" in page


async def test_values_of_users_are_escaped(world: ConsoleWorld) -> None:
    lead = await world.api.make_lead(
        "a1",
        "<script>alert(1)</script>",
        payload={"name": "<img src=x>"},
        scheduled_at="2031-01-01T00:00:00Z",
    )
    visitor = await world.visitor(ADMIN_KEY)
    for address in ("/console/leads", f"/console/leads/{lead['id']}"):
        page = text(await visitor.open(address))
        assert "alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=x>" not in page


MANY = 12_000
# A queue is counted up to a thousand, and a page of a list is fifty.
READ_MAX = 3_000
# Of everything that grows with the leads. Half of the leads are in one campaign, which runs; the oldest and the newest
# have finished, and those between them wait: whoever looks for one or the other from an end has far to go.
_FILL = f"""
INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, campaign_id, status, outcome,
                   scheduled_at, due_at, finished_at)
SELECT ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'a', 'a1', 'many-' || n,
       decode(repeat('00', 32), 'hex'), '+1415' || (5000000 + n), 'a1-pool', CASE WHEN n % 2 = 0 THEN $1::uuid END,
       CASE WHEN n / 4000 = 1 THEN 'BACKLOG' ELSE 'FINISHED' END, CASE WHEN n / 4000 <> 1 THEN 'ANSWERED' END,
       now(), now() + n % 2 * interval '1 day', CASE WHEN n / 4000 <> 1 THEN now() END
FROM generate_series(1, {MANY}) AS n;
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, holds_channel, next_check_at, dialer, lead_due_at)
SELECT ('01900000-0000-7000-9000-' || lpad(n::text, 12, '0'))::uuid,
       ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 1, 'a', 'a1', (SELECT id FROM numbers LIMIT 1),
       1, 'twilio', 'default', '+1415' || (5000000 + n), '+14155550100', 'ended', false, NULL, 'test', now()
FROM generate_series(1, {MANY}) AS n;
INSERT INTO mailboxes (kind, key) SELECT 'call', 'many-' || n FROM generate_series(1, {MANY}) AS n;
INSERT INTO mailboxes (kind, key, processing_status, claimable_at, appended)
SELECT 'issue', 'many-' || n, 'queued', now(), 1 FROM generate_series(1, {MANY}) AS n;
INSERT INTO audit_log (at, actor, action, subject, reseller_id)
SELECT now() - interval '1 day' * (n % 30), 'key:' || n % 100, 'key.made', 'many', 'a'
FROM generate_series(1, {MANY}) AS n;
INSERT INTO job_outbox (id, job_type) SELECT gen_random_uuid(), 'report_lead' FROM generate_series(1, {MANY});
UPDATE campaigns SET status = 'RUNNING', started_at = now();
"""
Statement = tuple[str, tuple[Any, ...]]


# Finished jobs of one type are the exception: see `jobs/list_of_type`.
LARGE = ("leads", "attempts", "mailboxes", "audit_log", "job_outbox")


def rows_read(plan: dict[str, Any]) -> int:
    """Of the large tables, by every scan in a plan that was run."""
    own = 0
    if plan.get("Relation Name") in LARGE:
        looked_at = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        own = round(looked_at * plan["Actual Loops"])
    return own + sum(rows_read(child) for child in plan.get("Plans", []))


def read_in_full(plan: dict[str, Any]) -> set[str]:
    """Large tables that a plan reads from their beginning."""
    is_whole = plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in LARGE and plan["Actual Loops"]
    own = {plan["Relation Name"]} if is_whole else set()
    return own.union(*(read_in_full(child) for child in plan.get("Plans", [])))


def recording(seen: dict[str, Statement], method: str) -> Callable[..., Any]:
    """Every statement that this method of a connection runs from now on, with its values."""
    run = getattr(asyncpg.Connection, method)

    async def recorded(self: Any, statement: str, *args: Any, **named: Any) -> Any:
        if args or method != "execute":  # that is how asyncpg itself begins and ends transactions
            seen[f"{statement} {args}"] = (statement, args)
        return await run(self, statement, *args, **named)

    return recorded


async def test_no_page_reads_more_when_there_are_more_leads(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await world.api.objects_of("a1") | {"name": await park(world.api, "agent-0")}
    campaign = ids["campaign_id"]
    async with world.api.database.connection() as conn:
        await conn.execute(_FILL.replace("$1", f"'{campaign}'"))
        await conn.execute("VACUUM ANALYZE")
    visitor = await world.visitor(ADMIN_KEY)
    seen: dict[str, Statement] = {}
    searches = [
        *("/leads?status=BACKLOG", "/leads?status=PROCESSING", "/leads?status=FINISHED"),
        *("/leads?merchant_id=a1", "/leads?merchant_id=a2", f"/leads?campaign_id={campaign}"),
        *("/leads?find=%2B14155000017", "/leads?find=many-17", "/leads?find=nobody"),
        *(
            "/mailboxes/call?status=queued",
            "/mailboxes/call?status=processing",
            "/mailboxes/issue?status=dead",
        ),
        *("/jobs?status=IN_PROGRESS", "/jobs?status=FAILED"),
        *("/audit?actor=nobody", "/audit?action=flag", "/audit?subject=nothing", "/audit?day=2026-01-01"),
    ]
    with monkeypatch.context() as patched:
        for method in ("fetch", "fetchrow", "fetchval", "execute"):
            patched.setattr(asyncpg.Connection, method, recording(seen, method))
        for address in [*addresses(PAGES, ids), *(f"/console{each}" for each in searches)]:
            assert (await visitor.open(address)).status == 200, address
    assert len(seen) > len(PAGES)
    async with world.api.database.connection() as conn:
        for statement, args in seen.values():
            [plan] = await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *args)
            assert read_in_full(plan["Plan"]) == set(), statement
            assert rows_read(plan["Plan"]) <= READ_MAX, statement


async def test_turning_event_dispatch_on_says_how_many_leads_were_due_before(world: ConsoleWorld) -> None:
    visitor, action = await world.visitor(ADMIN_KEY), "/console/control/flags/event_dispatch"
    page = await visitor.open("/console/control")
    off = {"enabled": "1", "percentage": "0", "reason": "dual write", "do": "set", "version": "0"}
    await visitor.send(page, action, **off)
    page = await visitor.open("/console/control")
    version = re.search(r'name="version" value="(\d+)"', text(page))
    assert version is not None
    for n in range(2):
        await world.api.make_lead("a1", f"due-{n}", phone=f"+1415555200{n}")
    on = off | {"resellers_on": "a", "version": version[1]}
    for more, says in (
        ({"do": "preview"}, "2 leads were due before."),
        ({}, "Say that another system has called them, or how many to call."),
        ({"take_overdue": "1"}, "By now 2 leads were due before, not 1."),
        ({"leave_overdue": "1", "version": "0"}, "The flag is at version"),
        ({"leave_overdue": "1"}, "The flag event_dispatch is set."),
    ):
        await visitor.send(page, action, **(on | more))
        assert says in html.unescape(text(await visitor.open("/console/control"))), more


def everything_off() -> InMemoryProvider:
    return InMemoryProvider({"event_dispatch": InMemoryFlag("off", {"on": True, "off": False})})


async def test_a_flag_decided_by_a_flag_service_has_no_form(database_url: str) -> None:
    hosted = Flags(FlagBoard(), f"{__name__}:everything_off")
    async with open_console(database_url, flags=hosted) as world:
        page = text(await (await world.visitor(ADMIN_KEY)).open("/console/control"))
    assert "The flag service (FEATURE_FLAG_PROVIDER) alone decides." in page
    assert "Change event_dispatch" not in page


async def test_the_root_path_redirects_to_the_console(world: ConsoleWorld) -> None:
    answer = await world.stranger().open("/")
    assert (answer.status, answer.headers["location"]) == (307, "/console")


_FORM = re.compile(r'<form[^>]*action="(?P<action>[^"]+)"[^>]*>(?P<body>.*?)</form>', re.DOTALL)
_FIELD = re.compile(r"<input(?P<attributes>[^>]*)>")


async def test_every_form_can_be_redisplayed_with_what_was_typed(world: ConsoleWorld) -> None:
    """Whatever a template does: what was typed is in its field, and nothing else of the page is changed."""
    visitor = await world.visitor(ADMIN_KEY)
    seen = 0
    for address in await pages_with_ids(world):
        page = text(await visitor.open(address))
        for form in _FORM.finditer(page):
            names = [
                re.search(r'name="([^"]+)"', field["attributes"])
                for field in _FIELD.finditer(form["body"])
                if not re.search(r'type="(hidden|checkbox|radio|file|submit)"', field["attributes"])
            ]
            typed = {found[1]: f'"{found[1]}" <typed> & kept' for found in names if found}
            again = refilled(page, Typed(form["action"], typed))
            for value in typed.values():
                assert f'value="{html.escape(value)}"' in again, (address, form["action"])
            assert len(again.split("<form")) == len(page.split("<form"))
            seen += len(typed)
    assert seen > 20


async def test_a_refused_form_is_redisplayed_once_with_what_was_typed(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    page = await visitor.open("/console/campaigns")
    fields = {"name": 'Renewals "May"', "merchant_id": "Demo Shop", "back": "/console/campaigns"}
    assert (await visitor.send(page, "/console/campaigns/make", **fields)).status == 303
    again = text(await visitor.open("/console/campaigns"))
    assert "small letters" in again
    assert "pattern" not in again
    assert 'value="Renewals &quot;May&quot;"' in again
    assert 'value="Demo Shop"' in again
    assert "Demo Shop" not in text(await visitor.open("/console/campaigns")), "the next visit begins anew"


async def test_a_refused_stop_of_an_unknown_merchant_keeps_the_typed_reason(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    page = await visitor.open("/console/control")
    fields = {"scope": "merchant", "subject": "nobody", "reason": "wrong prompt", "back": "/console/control"}
    await visitor.send(page, "/console/control/stop", **fields)
    again = text(await visitor.open("/console/control"))
    assert "There is no such merchant." in again
    assert 'value="wrong prompt"' in again


async def test_a_form_is_empty_after_its_action_succeeded(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    page = await visitor.open("/console/control")
    fields = {"scope": "merchant", "subject": "a1", "reason": "wrong prompt", "back": "/console/control"}
    await visitor.send(page, "/console/control/stop", **fields)
    assert 'value="wrong prompt"' not in text(await visitor.open("/console/control"))
