"""The same call through each carrier: dialled over its own REST API, followed by its own webhooks, at its own pod."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.telephony.carriers import FROM, TRAITS, open_carrier_world
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, CARRIER, World
from trunkline.client import LeadWithAttempts
from trunkline.telephony.simulator import SimulatedAccount

SECOND = SimulatedAccount(sid="AC" + "0" * 31 + "2", auth_token="another-token")


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    config = replace(CARRIER, accounts=(*CARRIER.accounts, SECOND))
    async with open_carrier_world(database_url, redis_url, key_prefix, config=config) as world:
        yield world


async def number_at(world: World, carrier: str, account: str = "default", max_channels: int = 3) -> None:
    await world.client.create_number(
        FROM, pool="p", carrier=carrier, account=account, max_channels=max_channels
    )


def answered_as(carrier: str) -> str:
    """At the simulator's pace a call lasts a second. Vapi's end-of-call report says that its assistant was there all
    the time, so the person hung up early; of the others nobody has reported."""
    return "EARLY_HANGUP" if carrier == "vapi" else "ANSWERED"


async def call(world: World, phone: str) -> LeadWithAttempts:
    lead = await world.client.create_lead(merchant_id="m", phone=phone)
    return await world.finished(lead.id)


async def got_pods(world: World, count: int) -> None:
    """So many calls were given a pod, and have left it."""

    async def written() -> bool:
        sql = "SELECT count(*) FROM allocations WHERE begun_at IS NOT NULL AND ended_at IS NOT NULL"
        return bool(await world.platform.database.pool.fetchval(sql) == count)

    await eventually(written, timeout_s=20, what=f"{count} calls had a pod")


@pytest.mark.parametrize("carrier", sorted(TRAITS))
async def test_an_answered_call_is_finished_and_frees_its_channel(world: World, carrier: str) -> None:
    await number_at(world, carrier)
    lead = await call(world, "+15005551000")
    assert lead.outcome == answered_as(carrier)
    assert [attempt.state for attempt in lead.attempts] == ["ended"]
    await world.channels_are_free()
    await got_pods(world, 0 if carrier == "vapi" else 1)
    assert world.carrier.ledger.double_dials() == []
    (dial,) = world.carrier.ledger.dials
    assert (dial.from_, dial.attempt) == (FROM, str(lead.attempts[0].id))


@pytest.mark.parametrize("carrier", sorted(TRAITS))
@pytest.mark.parametrize(
    ("phone", "outcome", "reason"),
    [("+15005551100", "BUSY", None), ("+15005551200", "NO_ANSWER", "NO_ANSWER")],
)
async def test_an_unanswered_calls_outcome_gives_the_reason_at_every_carrier(
    world: World, carrier: str, phone: str, outcome: str, reason: str | None
) -> None:
    await number_at(world, carrier)
    lead = await call(world, phone)
    assert (lead.outcome, lead.outcome_reason) == (outcome, reason)


@pytest.mark.parametrize("carrier", ["plivo", "exotel", "vapi"])
@pytest.mark.parametrize("fault", ["21", "23", "24", "25", "41", "42", "43"])
async def test_faults_of_each_carrier_change_no_outcome_and_dial_once(
    world: World, carrier: str, fault: str
) -> None:
    """500 after dialling, reset, garbage, webhook first; doubled, reordered and late webhooks."""
    await number_at(world, carrier)
    lead = await call(world, f"+1500555{fault}00")
    # Where webhooks are late, the call is over before the report comes.
    assert lead.outcome == ("ANSWERED" if fault == "43" else answered_as(carrier))
    assert len(lead.attempts) == 1
    assert len(world.carrier.ledger.dials) == 1


async def test_vapis_end_of_call_report_becomes_the_agents_report(world: World) -> None:
    """Vapi's end-of-call report stands for the report of an agent of ours."""
    told = {"disposition": "not interested", "opt_out": True, "score": 3}
    world.carrier.vapi_analysis |= {"summary": "No.", "structuredData": told}
    await number_at(world, "vapi")
    made = await world.client.create_lead(
        merchant_id="m", phone="+15005551000", payload={"name": "Ada", "order": 4711}
    )
    lead = await world.finished(made.id)
    (heard,) = world.carrier.calls("vapi")
    overrides: Any = heard.order.custom["assistantOverrides"]
    assert overrides["variableValues"] == {
        "name": "Ada",
        "order": "4711",
        "attempt": str(lead.attempts[0].id),
    }

    async def reported() -> LeadWithAttempts | None:
        found = await world.client.get_lead(lead.id)
        return found if found.outcome == "NOT_INTERESTED" else None

    lead = await eventually(reported, timeout_s=20, what="the report is joined with the end")
    report = lead.attempts[0].report
    assert report is not None
    assert (report["opt_out"], report["data"]["score"]) == (True, 3)
    assert report["transcript_ref"].endswith(f"/call/{lead.attempts[0].carrier_call_id}")
    assert lead.attempts[0].recordings == [report["recording_ref"]]
    answer = await AsgiClient(world.platform.http.api, ADMIN_KEY).get("/api/v1/do-not-call")
    assert [entry["phone"] for entry in answer.json()["items"]] == ["+15005551000"]


async def test_a_number_dials_with_the_account_it_names(world: World) -> None:
    """The account is kept in Postgres; its webhooks are signed with its own token."""
    admin = AsgiClient(world.platform.http.api, ADMIN_KEY)
    body = {
        "carrier": "twilio",
        "name": "second",
        "credentials": {"account_sid": SECOND.sid, "auth_token": SECOND.auth_token},
        "base_url": world.carrier.base_url,
    }
    assert (await admin.post("/api/v1/accounts", body)).status == 201
    await number_at(world, "twilio", "second")
    lead = await call(world, "+15005551000")
    assert lead.outcome == "ANSWERED"
    (dial,) = world.carrier.ledger.dials
    assert dial.account == SECOND.sid
    await got_pods(world, 1)


async def test_a_number_whose_account_is_missing_dials_with_no_other(world: World) -> None:
    """There are other accounts at this carrier, and none of them is spent."""
    await number_at(world, "twilio", "missing")
    lead = await world.client.create_lead(merchant_id="m", phone="+15005551000")

    async def refused() -> LeadWithAttempts | None:
        found = await world.client.get_lead(lead.id)
        states = [attempt.state for attempt in found.attempts]
        return found if (found.status, states) == ("BACKLOG", ["rejected"]) else None

    found = await eventually(refused, timeout_s=20)
    assert [attempt.end_reason for attempt in found.attempts] == ["not_connected:no_account"]
    assert found.outcome is None
    assert world.carrier.ledger.dials == []
    await world.channels_are_free()


@pytest.mark.parametrize("carrier", sorted(TRAITS))
async def test_more_leads_than_channels_wait_their_turn(world: World, carrier: str) -> None:
    await number_at(world, carrier, max_channels=2)
    leads = [await world.client.create_lead(merchant_id="m", phone=f"+150055515{n:02d}") for n in range(6)]
    for lead in leads:
        await world.finished(lead.id)
    ledger = world.carrier.ledger
    assert len(ledger.dials) == 6
    assert ledger.double_dials() == []
    assert ledger.over_capacity({FROM: 2}) == []
