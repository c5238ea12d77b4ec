"""Event dispatch is turned on for merchants whose leads another dialer has called until now: nobody is rung twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider
from typer.testing import CliRunner

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from tests.support.dispatch.stage import Stage, open_stage
from trunkline.cli.control import app
from trunkline.control.flags import EVENT_DISPATCH, FlagBoard, Flags
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.lapsed_leads import LapsedLeads
from trunkline.dispatch.rollout import DialStops, Rollout, carry_out, foresee
from trunkline.model import RefusalReason
from trunkline.schema.flags import Flag
from trunkline.store import flags

FLAG = "/api/v1/flags/event_dispatch"
OFF: dict[str, Any] = {"enabled": True, "percentage": 0}
# Of reseller `a` are the merchants a1 and a2.
ON: dict[str, Any] = OFF | {"resellers": {"a": True}}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def put(world: ApiWorld, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """As somebody who has just read the flag."""
    [flag] = [
        each
        for each in expect(await world.admin.get("/api/v1/flags"), 200)["items"]
        if each["name"] == EVENT_DISPATCH.name
    ]
    body = {"reason": "trial", "version": flag["version"]} | body
    return expect(await world.admin.request("PUT", FLAG, json=body), status)


async def preview(world: ApiWorld, body: dict[str, Any] = ON) -> dict[str, Any]:
    return expect(await world.admin.post(f"{FLAG}/preview", body), 200)


async def leads(world: ApiWorld, many: int, merchant: str = "a1", **more: Any) -> list[str]:
    made = []
    for n in range(many):
        lead = {"request_id": f"{merchant}-{n}", "merchant_id": merchant, "phone": f"+1415555{n + 2000:04}"}
        made.append(expect(await world.admin.post("/api/v1/leads", lead | more), 201)["id"])
    return made


async def states(world: ApiWorld, ids: list[str]) -> set[tuple[str, str | None, str | None]]:
    found = [expect(await world.admin.get(f"/api/v1/leads/{each}"), 200) for each in ids]
    return {(lead["status"], lead["outcome"], lead["outcome_reason"]) for lead in found}


async def test_a_flags_preview_counts_overdue_leads_and_changes_nothing(world: ApiWorld) -> None:
    await put(world, OFF)
    await leads(world, 16)
    await leads(world, 2, "a2", scheduled_at="2035-01-01T00:00:00Z")
    await leads(world, 3, "b1")
    foreseen = await preview(world)
    assert (foreseen["turned_on"], foreseen["turned_off"], foreseen["overdue"]) == (2, 0, 16)
    assert foreseen["merchants"] == [{"merchant_id": "a1", "leads": 16}]
    assert await preview(world) == foreseen


async def test_turning_event_dispatch_on_ends_leads_due_before_and_keeps_later_ones(world: ApiWorld) -> None:
    await put(world, OFF)
    before, later = await leads(world, 16), await leads(world, 1, "a2", scheduled_at="2035-01-01T00:00:00Z")
    await put(world, ON)
    after = expect(
        await world.admin.post(
            "/api/v1/leads", {"request_id": "new", "merchant_id": "a1", "phone": "+14155550199"}
        ),
        201,
    )
    assert await LapsedLeads(world.database, page=5).run_once() == 16
    assert await states(world, before) == {("FINISHED", "ABORTED", "DUE_BEFORE_CUTOVER")}
    assert await states(world, [*later, after["id"]]) == {("BACKLOG", None, None)}
    [line] = expect(await world.admin.get("/api/v1/audit", {"action": "flag.set", "limit": 1}), 200)["items"]
    assert (line["details"]["overdue"], line["details"]["take_overdue"]) == (16, None)


async def test_take_overdue_keeps_overdue_leads_only_with_their_current_count(world: ApiWorld) -> None:
    await put(world, OFF)
    before = await leads(world, 16)
    refused = await put(world, ON | {"take_overdue": 15}, 409)
    assert refused["code"] == "more_overdue"
    await put(world, ON | {"take_overdue": 16})
    await LapsedLeads(world.database).run_once()
    assert await states(world, before) == {("BACKLOG", None, None)}


async def test_unsetting_the_flag_is_a_cutover_too(world: ApiWorld) -> None:
    stored = await put(world, OFF)
    before = await leads(world, 2)
    query = {"reason": "everybody", "version": stored["version"]}
    expect(await world.admin.delete(FLAG, query=query | {"take_overdue": 1}), 409)
    expect(await world.admin.delete(FLAG, query=query), 200)
    await LapsedLeads(world.database).run_once()
    assert await states(world, before) == {("FINISHED", "ABORTED", "DUE_BEFORE_CUTOVER")}


async def test_a_merchant_that_was_on_before_keeps_its_leads(world: ApiWorld) -> None:
    await put(world, ON)
    before = await leads(world, 2)
    await put(world, ON | {"merchants": {"b1": True}})
    await LapsedLeads(world.database).run_once()
    assert await states(world, before) == {("BACKLOG", None, None)}


async def test_the_flag_command_previews_and_warns_of_overdue_leads(world: ApiWorld) -> None:
    await put(world, OFF)
    await leads(world, 16)
    async with serve(world.app) as url:

        async def run(*arguments: str) -> Any:
            command = ["--url", url, "--key", ADMIN_KEY, "--json", *arguments, "--reason", "r"]
            result = await asyncio.to_thread(CliRunner().invoke, app, command)
            assert result.exit_code == 0, result.output
            return result

        flag = ("flag", "event_dispatch", "--reseller", "a=on")
        assert json.loads((await run(*flag, "--preview")).stdout)["overdue"] == 16
        assert (await preview(world))["overdue"] == 16, "nothing was changed"
        result = await run(*flag)
        assert "16 leads were due before and are not called" in result.stderr
        assert json.loads(result.stdout)["resellers"] == {"a": True}


# --- at the dial


async def turn(stage: Stage, *, on: bool) -> None:
    """As the API does it, for merchant `m`."""
    async with stage.database.transaction() as tx:
        before = await flags.lock(tx, EVENT_DISPATCH.name)
        stored = await flags.set_flag(tx, Flag(EVENT_DISPATCH.name, True, 100, {}, {"m": on}, "r", "t", None))
        await carry_out(tx, await foresee(tx, before, stored), take_overdue=False)


async def test_an_intent_refuses_a_lead_due_before_the_cutover(stage: Stage) -> None:
    """Not even before any loop has come to it, or when a lead is committed late."""
    await turn(stage, on=False)
    before = await stage.dialing.lead()
    await turn(stage, on=True)
    after = await stage.dialing.lead(due_in_s=0.5)
    intents = await stage.dialing.intend(stage.dialing.grant(before), stage.dialing.grant(after))
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.subject) == (RefusalReason.PAUSED, EVENT_DISPATCH.name)
    assert [intent.lead_id for intent in intents.committed] == [after]


async def test_a_cutover_is_deleted_five_minutes_after_its_last_lead(stage: Stage) -> None:
    await turn(stage, on=False)
    lead = await stage.dialing.lead()
    await turn(stage, on=True)
    loop = LapsedLeads(stage.database)
    assert await loop.run_once() == 1
    assert await stage.dialing.value("SELECT count(*) FROM cutovers") == 1, "a lead may still be on its way"
    await stage.dialing.run("UPDATE cutovers SET since = since - interval '6 minutes'")
    await loop.run_once()
    assert await stage.dialing.value("SELECT count(*) FROM cutovers") == 0
    assert (await stage.lead(lead))["outcome"] == "ABORTED"


# --- a hosted flag service


class Hosted:
    """Somebody else's provider, which changes its mind without telling."""

    def __init__(self) -> None:
        self.provider = InMemoryProvider({})
        self.turn(on=False)

    def turn(self, *, on: bool) -> None:
        self.provider._flags[EVENT_DISPATCH.name] = InMemoryFlag(
            "on" if on else "off", {"on": True, "off": False}
        )


HOSTED = Hosted()


def hosted() -> InMemoryProvider:
    return HOSTED.provider


async def test_a_flag_service_that_turns_dispatch_on_dials_no_lead_due_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.dispatch.rollout.FRESH_S", -1.0)
    asked = Flags(FlagBoard(), f"{__name__}:hosted")
    await asked.open()
    try:
        HOSTED.turn(on=False)
        rollout = Rollout(asked)
        reconciler = ChannelReconciler(stage.database, stage.bus, stage.controls, rollout)
        before = await stage.dialing.lead()
        await reconciler.run_once()
        HOSTED.turn(on=True)
        stopped = DialStops(stage.controls, rollout)
        (refusal,) = (
            await stage.dialing.intend(stage.dialing.grant(before), stopped=stopped)
        ).refused.values()
        assert refusal.subject == EVENT_DISPATCH.name, "before anybody has noticed"
        await reconciler.run_once()
        assert await LapsedLeads(stage.database).run_once() == 1
        after: UUID = await stage.dialing.lead(due_in_s=0.5)
        assert len((await stage.dialing.intend(stage.dialing.grant(after), stopped=stopped)).committed) == 1
    finally:
        await asked.close()


async def test_a_merchant_without_leads_is_turned_on_by_the_flag_service(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first lead comes later, and is not taken for one that was due before."""
    monkeypatch.setattr("trunkline.dispatch.rollout.FRESH_S", -1.0)
    asked = Flags(FlagBoard(), f"{__name__}:hosted")
    await asked.open()
    try:
        HOSTED.turn(on=False)
        reconciler = ChannelReconciler(stage.database, stage.bus, stage.controls, Rollout(asked))
        lead = await stage.dialing.lead()
        await reconciler.run_once()
        await stage.dialing.run("UPDATE leads SET status = 'FINISHED', outcome = 'X', finished_at = now()")
        HOSTED.turn(on=True)
        await reconciler.run_once()
        lead = await stage.dialing.lead(due_in_s=0.5)
        assert len((await stage.dialing.intend(stage.dialing.grant(lead))).committed) == 1
    finally:
        await asked.close()
