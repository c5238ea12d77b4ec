"""Policies, do-not-call lists and the question why, through the API."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.support.api.world import ApiWorld, expect, open_api

NIGHT = {"windows": [{"spans": [{"start": "00:00", "end": "00:01"}], "timezone": "UTC"}]}
OFFICE = {"windows": [{"spans": [{"start": "09:00", "end": "18:00"}]}]}
ALWAYS = {"windows": [{"spans": [{"start": "00:00", "end": "24:00"}], "timezone": "UTC"}]}
CHECK = {"url": "https://example.com/ask", "headers": {"X-Token": "secret"}}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


def merchant(name: str = "a1") -> str:
    return f"/api/v1/merchants/{name}/policy"


async def put(world: ApiWorld, path: str, body: object, status: int = 200, who: str = "a") -> dict[str, Any]:
    return expect(await world.tenant(who).request("PUT", path, json=body), status)


async def test_an_unset_policy_layer_is_empty_with_version_0(world: ApiWorld) -> None:
    found = expect(await world.tenant("a1").get(merchant()), 200)
    assert (found["policy"], found["version"], found["updated_at"]) == ({}, 0, None)


async def test_a_policy_comes_back_as_it_was_put_and_its_version_grows(world: ApiWorld) -> None:
    first = await put(world, merchant(), OFFICE, who="a1")
    second = await put(world, merchant(), {**OFFICE, "attempts_per_day": 5})
    found = expect(await world.tenant("a1").get(merchant()), 200)
    assert found["policy"] == {**OFFICE, "attempts_per_day": 5}
    assert found["version"] == second["version"] > first["version"]


async def test_a_version_is_never_used_twice_also_past_a_removal(world: ApiWorld) -> None:
    """Processes remember policies by their version."""
    first = await put(world, merchant(), OFFICE)
    expect(await world.tenant("a").delete(merchant()), 204)
    again = await put(world, merchant(), ALWAYS)
    assert again["version"] >= first["version"]
    async with world.database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM policies") == 1


async def test_a_window_that_never_opens_is_refused_when_it_is_set(world: ApiWorld) -> None:
    await put(
        world, "/api/v1/resellers/a/policy", {"windows": [{"spans": [{"start": "09:00", "end": "12:00"}]}]}
    )
    late = {"windows": [{"spans": [{"start": "13:00", "end": "18:00"}]}]}
    answer = await put(world, merchant(), late, 422)
    assert [problem["field"] for problem in answer["fields"]] == ["windows"]
    assert "never opens" in answer["fields"][0]["error"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"window": []}, "window"),
        ({"windows": [{"spans": [{"start": "09:00", "end": "9"}]}]}, "windows.0.spans.0.end"),
        ({"calls_per_person": {"max_calls": 100}}, "calls_per_person"),
        ({"max_concurrent": 5}, "max_concurrent"),
        ({"prechecks": [{"url": "https://127.0.0.1/x"}]}, "prechecks.0.url"),
        ({"prechecks": [{"url": "http://example.com/x"}]}, "prechecks.0.url"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
    ],
)
async def test_a_wrong_policy_says_which_field_is_wrong(
    world: ApiWorld, body: dict[str, object], field: str
) -> None:
    answer = await put(world, merchant(), body, 422)
    assert field in [problem["field"] for problem in answer["fields"]]


async def test_a_campaign_has_a_layer_with_its_pace(world: ApiWorld) -> None:
    path = "/api/v1/merchants/a1/campaigns/01999999-0000-7000-8000-000000000000/policy"
    await put(world, path, {"starts_per_s": 2.5, "max_concurrent": 10})
    found = expect(await world.tenant("a1").get(path), 200)
    assert found["policy"] == {"starts_per_s": 2.5, "max_concurrent": 10}
    assert found["subject"] == "a1/01999999-0000-7000-8000-000000000000"


async def test_the_platforms_policy_layer_is_written_by_the_platform_only(world: ApiWorld) -> None:
    body = {"calls_per_person": {"max_calls": 3, "window_s": 600}}
    assert (await put(world, "/api/v1/policy", body, 403))["code"] == "platform_only"
    whole = {**body, "prechecks": [CHECK], "price": {"per_call_micros": 5}}
    expect(await world.admin.request("PUT", "/api/v1/policy", json=whole), 200)
    assert expect(await world.admin.get("/api/v1/policy"), 200)["policy"] == whole
    seen_by_tenant = expect(await world.tenant("a").get("/api/v1/policy"), 200)
    assert seen_by_tenant["policy"] == body, "what restricts it, and nothing else"


async def test_secrets_of_pre_checks_are_shown_to_admin_keys_only(world: ApiWorld) -> None:
    await put(world, merchant(), {"prechecks": [CHECK]})
    read = expect(await world.tenant("a1", "read").get(merchant()), 200)
    admin = expect(await world.tenant("a1").get(merchant()), 200)
    assert read["policy"]["prechecks"][0]["headers"] == {"X-Token": "***"}
    assert admin["policy"]["prechecks"][0]["headers"] == {"X-Token": "secret"}


async def test_packs_can_be_read_by_everybody(world: ApiWorld) -> None:
    packs = expect(await world.tenant("a1", "read").get("/api/v1/policy/packs"), 200)["packs"]
    assert {"us-tcpa", "in-trai"} <= {pack["name"] for pack in packs}


async def test_a_changed_window_makes_waiting_leads_due_anew(world: ApiWorld) -> None:
    await put(world, merchant(), NIGHT)
    lead = await world.make_lead("a1")
    due = datetime.now(UTC) + timedelta(hours=9)
    async with world.database.connection() as conn:
        await conn.execute("UPDATE leads SET due_at = $1", due)
        await conn.execute(
            "INSERT INTO decisions (lead_id, reason, merchant_id, until) SELECT id, 'window', 'a1', $1 FROM leads"
            " ON CONFLICT (lead_id, reason) DO UPDATE SET until = EXCLUDED.until",
            due,
        )
        later = await world.make_lead("a1", "r2", scheduled_at=(due + timedelta(days=1)).isoformat())
    await put(world, merchant(), ALWAYS)
    found = expect(await world.admin.get(f"/api/v1/leads/{lead['id']}"), 200)
    assert datetime.fromisoformat(found["due_at"]) < due - timedelta(hours=8)
    assert found["version"] == 2
    untouched = expect(await world.admin.get(f"/api/v1/leads/{later['id']}"), 200)
    assert untouched["version"] == 1, "nobody had made it wait"


# Do-not-call


async def test_a_phone_is_put_on_a_do_not_call_list_once(world: ApiWorld) -> None:
    body = {"phone": "+1 415 555 0123", "reason": "asked us"}
    first = expect(await world.tenant("a1").post("/api/v1/do-not-call", body), 201)
    again = expect(await world.tenant("a1").post("/api/v1/do-not-call", body | {"reason": "again"}), 200)
    assert (first["phone"], first["merchant_id"]) == ("+14155550123", "a1")
    assert (again["id"], again["reason"]) == (first["id"], "again")


async def test_the_same_phone_can_be_on_the_do_not_call_lists_of_several_tenants(world: ApiWorld) -> None:
    body = {"phone": "+14155550123"}
    ids = {
        expect(await client.post("/api/v1/do-not-call", body), 201)["id"]
        for client in (world.tenant("a1"), world.tenant("a"), world.tenant("b1"), world.admin)
    }
    assert len(ids) == 4
    seen = [
        len(expect(await client.get("/api/v1/do-not-call", {"phone": "14155550123"}), 200)["items"])
        for client in (world.tenant("a1"), world.tenant("a"), world.admin)
    ]
    assert seen == [1, 2, 4]


async def test_one_bad_row_does_not_keep_the_others_off_the_list(world: ApiWorld) -> None:
    rows = ["+14155550101", "nonsense", "+14155550102", "+1 (415) 555-0101"]
    first = expect(await world.tenant("a1").post("/api/v1/do-not-call/bulk", {"phones": rows}), 200)
    assert (first["added"], first["known"]) == (2, 0)
    assert [row["index"] for row in first["refused"]] == [1]
    again = expect(await world.tenant("a1").post("/api/v1/do-not-call/bulk", {"phones": rows}), 200)
    assert (again["added"], again["known"]) == (0, 2)


async def test_ten_thousand_phones_go_in_at_once(world: ApiWorld) -> None:
    rows = [f"+1415{n:07d}" for n in range(2_000_000, 2_010_000)]
    answer = expect(await world.tenant("a1").post("/api/v1/do-not-call/bulk", {"phones": rows}), 200)
    assert answer["added"] == 10_000
    more = await world.tenant("a1").post("/api/v1/do-not-call/bulk", {"phones": [*rows, "+14155550101"]})
    expect(more, 422)


async def test_a_do_not_call_entry_is_removed_by_an_admin_key_only(world: ApiWorld) -> None:
    entry = expect(await world.tenant("a1").post("/api/v1/do-not-call", {"phone": "+14155550123"}), 201)
    path = f"/api/v1/do-not-call/{entry['id']}"
    expect(await world.tenant("a1", "leads").delete(path), 403)
    expect(await world.tenant("a1").delete(path), 204)
    expect(await world.tenant("a1").get(path), 404)


# Why


async def ask_why(world: ApiWorld, lead: dict[str, Any]) -> dict[str, Any]:
    return expect(await world.tenant(lead["merchant_id"]).get(f"/api/v1/leads/{lead['id']}/why"), 200)


def closed(found: dict[str, Any]) -> list[str]:
    return [check["gate"] for check in found["checks"] if not check["open"]]


async def test_why_reports_that_nothing_stands_in_the_way(world: ApiWorld) -> None:
    found = await ask_why(world, await world.make_lead("a1"))
    assert closed(found) == []
    assert found["answer"].startswith("No gate refuses it")


async def test_why_names_every_closed_gate(world: ApiWorld) -> None:
    day_after = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    lead = await world.make_lead("a1", scheduled_at=day_after)
    body = {**NIGHT, "destinations": {"allow": ["+91"]}, "attempts_per_day": 0, "prechecks": [CHECK]}
    await put(world, merchant(), body)
    expect(await world.tenant("a").post("/api/v1/do-not-call", {"phone": lead["phone"]}), 201)
    async with world.database.connection() as conn:
        await conn.execute(
            "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s)"
            " VALUES ('merchant', 'a1', 'merchant', 'holiday', 'test', 0)"
        )
        await conn.execute(
            "INSERT INTO merchant_days (merchant_id, day) VALUES ('a1', (clock_timestamp() AT TIME ZONE 'UTC')::date)"
        )
    found = await ask_why(world, lead)
    gates = closed(found)
    assert gates[:2] == ["control", "due"]
    assert {"do_not_call", "destination", "precheck", "limit"} <= set(gates)
    assert found["answer"] == "Calls are stopped: merchant: holiday, set by test."
    assert found["refused_by"] == "control"
    assert found["next_at"] is not None


async def test_why_names_who_stopped_a_lead_without_the_reasons_of_levels_above(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    async with world.database.connection() as conn:
        await conn.execute(
            "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s) VALUES"
            " ('kill_switch', '', 'platform', 'secret of the platform', 'test', 0),"
            " ('merchant', 'a1', 'platform', 'suspected fraud', 'test', 0),"
            " ('merchant', 'a1', 'reseller', 'unpaid', 'test', 0),"
            " ('merchant', 'a1', 'merchant', 'holiday', 'test', 0)"
        )
    seen = {}
    for name, asks in (("a1", world.tenant("a1")), ("a", world.tenant("a")), ("platform", world.admin)):
        found = expect(await asks.get(f"/api/v1/leads/{lead['id']}/why"), 200)
        seen[name] = sorted(check["detail"] for check in found["checks"] if check["gate"] == "control")
    assert seen["a1"] == ["kill_switch", "merchant", "merchant", "merchant: holiday"]
    assert seen["a"] == ["kill_switch", "merchant", "merchant: holiday", "merchant: unpaid"]
    assert "merchant: suspected fraud" in seen["platform"]
    assert "kill_switch: secret of the platform" in seen["platform"]


async def test_why_names_the_rollout_flag_of_a_merchant_left_out(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    switch = {"enabled": True, "percentage": 100, "merchants": {"a1": False}, "reason": "not yet"}
    expect(await world.admin.request("PUT", "/api/v1/flags/event_dispatch", json=switch), 200)
    found = await ask_why(world, lead)
    assert closed(found) == ["event_dispatch"]
    assert found["answer"] == (
        "This platform does not call it: another system calls its leads, set by the platform."
    )


async def test_why_names_a_pool_without_an_active_number(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    async with world.database.connection() as conn:
        await conn.execute("UPDATE numbers SET status = 'draining' WHERE pool_id = 'a1-pool'")
    found = await ask_why(world, lead)
    assert closed(found) == ["number"]
    assert found["answer"] == (
        "No number may dial it: its pool has no number that is active and has channels."
    )


async def test_why_shows_the_outcome_of_an_ended_lead(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE leads SET status = 'FINISHED', outcome = 'NO_ANSWER', outcome_reason = 'TIMEOUT',"
            " finished_at = now()"
        )
    found = await ask_why(world, lead)
    assert (found["answer"], found["checks"]) == ("It has ended as NO_ANSWER (TIMEOUT).", [])


async def test_why_shows_earlier_decisions(world: ApiWorld) -> None:
    lead = await world.make_lead("a1")
    async with world.database.connection() as conn:
        await conn.execute(
            "INSERT INTO decisions (lead_id, reason, merchant_id, subject, times)"
            " SELECT id, 'limit', 'a1', 'calls_per_person', 4 FROM leads"
        )
    (decision,) = (await ask_why(world, lead))["decisions"]
    assert (decision["reason"], decision["subject"], decision["times"]) == ("limit", "calls_per_person", 4)


async def test_a_pack_is_edited_for_everybody_and_taken_back(world: ApiWorld) -> None:
    path, shorter = "/api/v1/policy/packs/us-tcpa", {"as_of": "2026-11-15", "note": "ours", "region": "US",
                     "windows": [{"spans": [{"start": "10:00", "end": "11:00"}]}]}  # fmt: skip
    assert (await world.tenant("a").request("PUT", path, json=shorter)).status == 404
    edited = expect(await world.admin.request("PUT", path, json=shorter), 200)
    assert (edited["name"], edited["is_edited"], edited["as_of"]) == ("us-tcpa", True, "2026-11-15")
    await put(world, "/api/v1/merchants/a1/policy", {"packs": ["us-tcpa"]})
    lead = await world.make_lead("a1", timezone="America/New_York")
    assert datetime.fromisoformat(lead["due_at"]).astimezone(ZoneInfo("America/New_York")).hour == 10
    expect(await world.admin.request("PUT", "/api/v1/policy", json={"attempts_per_day": 5}), 200)
    packs = expect(await world.tenant("a1").get("/api/v1/policy/packs"), 200)["packs"]
    assert [pack["name"] for pack in packs if pack["is_edited"]] == ["us-tcpa"], (
        "another edit of the layer keeps it"
    )
    expect(await world.admin.delete(path), 204)
    assert (await world.admin.delete(path)).status == 404
    packs = expect(await world.tenant("a1").get("/api/v1/policy/packs"), 200)["packs"]
    assert not any(pack["is_edited"] for pack in packs)


async def test_a_policy_can_name_a_rule_pack_that_the_platform_added(world: ApiWorld) -> None:
    pack = {
        "as_of": "2026-11-15",
        "note": "ours",
        "region": "DE",
        "windows": [{"spans": [{"start": "10:00", "end": "11:00"}]}],
    }
    refused = await put(world, "/api/v1/merchants/a1/policy", {"packs": ["de-own"]}, 422)
    assert refused["fields"][0]["field"] == "packs"
    expect(await world.admin.request("PUT", "/api/v1/policy/packs/de-own", json=pack), 200)
    await put(world, "/api/v1/merchants/a1/policy", {"packs": ["de-own"]})
