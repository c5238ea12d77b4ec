"""An installation without an agent for its dials is reported by `why`, the doctor, the start and the alarms."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tests.support.dispatch.dialing import AGENTS_OURS, Dialing, open_dialing
from tests.support.world import world_settings
from trunkline.app import Platform
from trunkline.cli.doctor import examine_router
from trunkline.control import inputs
from trunkline.control.inputs import Readings
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.why import DispatchView, why
from trunkline.schema.leads import GateCheck
from trunkline.settings import load_settings
from trunkline.store.agents import SlotRule
from trunkline.store.tenants import Tenant
from trunkline.telephony.simulator import Simulator

SLOTS = SlotRule(callers_of=lambda tier: 0)


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


async def agents_of(dialing: Dialing, lead: UUID, slots: SlotRule = SLOTS) -> GateCheck:
    """As the merchant itself is told."""
    async with dialing.database.connection() as conn:
        check = DispatchView(agents=AGENTS_OURS, slots=slots)
        found = await why(conn, Policies(fresh_s=0), Tenant("r", "m"), lead, check)
    assert found is not None
    (agents,) = [each for each in found.checks if each.gate == "agents"]
    closed = [each for each in found.checks if not each.open]
    assert closed == ([] if agents.open else [agents])
    assert agents.open or found.answer == f"It waits for an agent: {agents.detail}."
    return agents


async def test_why_names_that_no_agent_is_known_and_the_remedy(dialing: Dialing) -> None:
    found = await agents_of(dialing, await dialing.lead())
    assert not found.open
    assert found.detail is not None
    assert "no agent is registered" in found.detail
    assert "AGENTS=elsewhere" in found.detail


async def test_why_opens_the_agents_gate_while_an_agent_is_free(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.pod("agent-0")
    assert await agents_of(dialing, lead) == GateCheck("agents", True)


async def test_why_says_that_every_agent_is_busy_without_naming_calls(dialing: Dialing) -> None:
    slot = await dialing.pod("agent-0")
    await dialing.kept("+12125550199", slot)
    found = await agents_of(dialing, await dialing.lead())
    assert found == GateCheck(
        "agents", False, "every agent that can take its calls is busy, or in the inbound reserve"
    )


async def test_why_counts_an_agent_of_the_inbound_reserve_as_busy(dialing: Dialing) -> None:
    await dialing.pod("agent-0")
    found = await agents_of(dialing, await dialing.lead(), SlotRule(callers_of=lambda tier: 1))
    assert not found.open


async def test_why_names_the_tiers_without_an_agent(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.pod("agent-0", tier="gold")
    detail = (await agents_of(dialing, lead)).detail
    assert detail is not None
    assert "(standard, overflow, basic)" in detail
    await dialing.run(
        "INSERT INTO router_merchants (merchant_id, config) VALUES ('m', '{\"tier\": \"gold\"}')"
    )
    assert await agents_of(dialing, lead) == GateCheck("agents", True)


async def test_why_says_that_the_known_agents_take_no_calls(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.pod("agent-0")
    await dialing.run("UPDATE pods SET is_ready = false")
    detail = (await agents_of(dialing, lead)).detail
    assert detail == "no agent takes calls: those that serve it are silent, draining or not ready"


@pytest.mark.parametrize(
    "change", ["UPDATE merchants SET agents = 'elsewhere'", "UPDATE pools SET agents = 'elsewhere'"]
)
async def test_why_opens_the_agents_gate_for_external_agents(dialing: Dialing, change: str) -> None:
    lead = await dialing.lead()
    await dialing.run(change)
    assert await agents_of(dialing, lead) == GateCheck("agents", True)


async def measured(dialing: Dialing, slots: SlotRule | None = SLOTS) -> dict[str, float]:
    async with dialing.database.connection() as conn:
        waits = await inputs.waits(conn, slots)
        found = inputs.values(await inputs.read(conn, waits, valkey_answers=True))
    return {name: found[name, ""] for name in ("dispatch_halted", "no_agents", "agents_busy")}


async def test_overdue_leads_without_any_agent_are_an_alarm_of_their_own(dialing: Dialing) -> None:
    await dialing.lead(due_in_s=-60)
    assert await measured(dialing) == {"dispatch_halted": 0, "no_agents": 1, "agents_busy": 0}
    await dialing.pod("agent-0")
    await dialing.run("UPDATE pods SET is_ready = false")
    assert (await measured(dialing))["no_agents"] == 1, "one that takes no calls is none"


async def test_a_merchant_without_an_agent_in_its_own_tiers_is_an_alarm_though_others_have_some(
    dialing: Dialing,
) -> None:
    await dialing.lead(due_in_s=-60)
    await dialing.pod("agent-0", tier="gold")
    async with dialing.database.connection() as conn:
        waits = await inputs.waits(conn, SLOTS)
        found = inputs.values(await inputs.read(conn, waits, valkey_answers=True))
        assert found["merchant_without_agents", "m"] == 1
        assert (found["no_agents", ""], found["dispatch_halted", ""]) == (0, 0)
        await conn.execute("UPDATE pods SET tier = 'standard'")
        waits = await inputs.waits(conn, SLOTS)
    assert ("merchant_without_agents", "m") not in inputs.values(Readings(waits=waits))


async def test_overdue_leads_that_wait_for_busy_agents_are_no_halted_dispatch(dialing: Dialing) -> None:
    slot = await dialing.pod("agent-0")
    await dialing.kept("+12125550199", slot)
    await dialing.run("UPDATE attempts SET send_at = send_at - interval '5 minutes'")
    await dialing.lead(due_in_s=-60)
    assert await measured(dialing) == {"dispatch_halted": 0, "no_agents": 0, "agents_busy": 1}


async def test_overdue_leads_beside_a_free_agent_are_a_halted_dispatch(dialing: Dialing) -> None:
    await dialing.lead(due_in_s=-60)
    await dialing.pod("agent-0")
    assert await measured(dialing) == {"dispatch_halted": 1, "no_agents": 0, "agents_busy": 0}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE merchants SET agents = 'elsewhere'",
        "UPDATE pools SET agents = 'elsewhere'",
        "UPDATE numbers SET carrier = 'vapi'",
    ],
)
async def test_overdue_leads_of_external_agents_count_as_a_halt_not_as_missing_agents(
    dialing: Dialing, change: str
) -> None:
    await dialing.lead(due_in_s=-60)
    await dialing.run(change)
    assert await measured(dialing) == {"dispatch_halted": 1, "no_agents": 0, "agents_busy": 0}


async def test_with_external_agents_overdue_leads_raise_no_missing_agents_alarm(dialing: Dialing) -> None:
    await dialing.lead(due_in_s=-60)
    assert await measured(dialing, slots=None) == {"dispatch_halted": 1, "no_agents": 0, "agents_busy": 0}


async def test_doctor_reports_leads_that_wait_without_any_agent(
    dialing: Dialing, redis_url: str, key_prefix: str
) -> None:
    settings = load_settings({}, REDIS_URL=redis_url, ROUTER_KEY_PREFIX=key_prefix)
    assert (await examine_router(settings, redis_url, dialing.url)).state == "warning", "nobody waits yet"
    await dialing.lead(due_in_s=-60)
    finding = await examine_router(settings, redis_url, dialing.url)
    assert (finding.state, "AGENTS=elsewhere" in finding.detail) == ("problem", True)
    elsewhere = load_settings({}, REDIS_URL=redis_url, ROUTER_KEY_PREFIX=key_prefix, AGENTS="elsewhere")
    assert (await examine_router(elsewhere, redis_url, dialing.url)).state == "ok"
    await dialing.pod("agent-0")
    assert (await examine_router(settings, redis_url, dialing.url)).state == "warning"


@pytest.mark.parametrize(
    ("more", "pods", "is_said"),
    [
        ({}, 0, True),
        ({}, 1, False),
        ({"AGENTS": "elsewhere"}, 0, False),
        ({"TRUNKLINE_ROLES": "api,control"}, 0, False),
        ({"TWILIO_ACCOUNT_SID": None, "TWILIO_AUTH_TOKEN": None}, 0, True),
        (
            {
                "TWILIO_ACCOUNT_SID": None,
                "TWILIO_AUTH_TOKEN": None,
                "VAPI_API_KEY": "a key",
                "VAPI_WEBHOOK_SECRET": "a secret",
            },
            0,
            False,
        ),
    ],
    ids=[
        "no agent",
        "an agent",
        "elsewhere",
        "no dispatcher",
        "no carrier yet",
        "a carrier with its own agents",
    ],
)
async def test_a_start_without_a_known_agent_is_logged(
    dialing: Dialing,
    redis_url: str,
    key_prefix: str,
    more: dict[str, str],
    pods: int,
    *,
    is_said: bool,
) -> None:
    for number in range(pods):
        await dialing.pod(f"agent-{number}")
    async with Simulator() as carrier:
        settings = world_settings(dialing.url, redis_url, key_prefix, carrier, **more)
        with capture_logs() as logs:
            async with Platform.open(settings):
                pass
    lines = [line for line in logs if line["event"] == "platform.no_agents_known"]
    assert len(lines) == is_said
    assert not lines or "AGENTS=elsewhere" in lines[0]["action"]
