"""Without Valkey: stopped or refused leads are not picked again and again, and those behind them have a turn."""

import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.dispatch.stage import Stage, open_stage
from tests.support.faults.proxy import TcpProxy
from trunkline.bus.connection import connect as connect_bus
from trunkline.dispatch.fallback import PostgresFallback
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import Blocks, Grant, Refusal, RefusalReason, new_id


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def picked(dialing: Dialing, fallback: PostgresFallback, most: int = 5) -> list[Grant]:
    grants = await fallback.grants(dialing.database, most)
    assert grants is not None, "another one has the lease"
    return grants


async def stop(dialing: Dialing, scope: str, subject: str, ends_in_s: float | None = None) -> None:
    await dialing.run(
        "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s, ends_at)"
        " VALUES ($1, $2, 'platform', 'test', 'test', 0, clock_timestamp() + make_interval(secs => $3))",
        scope,
        subject,
        ends_in_s,
    )


def refused(
    grants: Sequence[Grant], blocks: Blocks, reason: RefusalReason = RefusalReason.LIMIT
) -> dict[Grant, Refusal]:
    return dict.fromkeys(grants, Refusal(reason, blocks))


@pytest.mark.parametrize(
    ("scope", "subject", "others"),
    [
        ("kill_switch", "", False),
        ("promoter", "", False),
        ("reseller", "r", False),
        ("carrier", "twilio", False),
        ("merchant", "m", True),
        ("campaign", "m/{campaign}", True),
        ("number", "{number}", False),
    ],
)
async def test_the_fallback_picks_no_stopped_lead(
    dialing: Dialing, scope: str, subject: str, *, others: bool
) -> None:
    campaign = new_id()
    await dialing.lead(campaign_id=campaign)
    other = await dialing.lead(merchant="n")
    await stop(dialing, scope, subject.format(campaign=campaign, number=dialing.number))
    fallback = PostgresFallback()
    assert [grant.lead_id for grant in await picked(dialing, fallback)] == ([other] if others else [])
    await dialing.run("UPDATE controls SET ends_at = clock_timestamp()")
    assert len(await picked(dialing, fallback)) == 2, "and when the stop is over, it is"


async def test_the_fallback_picks_no_merchant_outside_the_rollout(dialing: Dialing) -> None:
    def includes(reseller_id: str, merchant_id: str) -> bool:
        return (reseller_id, merchant_id) != ("r", "m")

    await dialing.lead()
    other = await dialing.lead(merchant="n")
    assert [grant.lead_id for grant in await picked(dialing, PostgresFallback(includes))] == [other]


async def test_the_fallback_picks_no_lead_before_its_due_time(dialing: Dialing) -> None:
    await dialing.lead(due_in_s=600)
    assert await picked(dialing, PostgresFallback()) == []


async def test_a_refused_lead_does_not_keep_the_fallback_from_later_leads(
    stage: Stage, redis_url: str
) -> None:
    """The older lead is over its merchant's limit. Picked every second, it would keep all others from their turn."""
    await stage.dialing.policy(CallingPolicy(attempts_per_day=1))
    await stage.dialing.attempt("+12125551000")
    await stage.dialing.run(
        "INSERT INTO merchant_days (merchant_id, day, attempts, spent_micros)"
        " VALUES ('m', (clock_timestamp() AT TIME ZONE 'UTC')::date, 1, 0)"
    )
    held_up = await stage.dialing.lead(due_in_s=-60)
    behind = await stage.dialing.lead(merchant="n")
    async with TcpProxy.before(redis_url) as proxy:
        bus = connect_bus(proxy.url, stage.bus.keys)
        cut_off = stage.another_dialer(bus=bus, fallback_starts_per_s=1)
        proxy.refuse()
        assert [await cut_off.run_once() for _ in range(2)] == [0, 1]
        await cut_off.drain()
        await bus.close()
    assert (await stage.attempt(behind))["state"] == "accepted"
    assert (await stage.lead(held_up))["status"] == "BACKLOG"


@pytest.mark.parametrize("blocks", [Blocks.LEAD, Blocks.PERSON, Blocks.FLOW])
async def test_the_fallback_backs_a_refused_lead_or_flow_off_up_to_a_minute(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch, blocks: Blocks
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    await dialing.leads(2)
    fallback, waits = PostgresFallback(), []
    for _ in range(8):
        grants = await picked(dialing, fallback, most=1)
        fallback.defer(refused(grants, blocks))
        began_s = now_s
        while not await picked(dialing, fallback, most=1):
            now_s += 0.5
        waits.append(now_s - began_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    now_s += 120
    fallback.defer(refused(await picked(dialing, fallback, most=1), blocks))
    now_s += 1
    assert await picked(dialing, fallback, most=1), "long ago counts for nothing"


async def test_leads_refused_together_back_their_flow_off_once(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    await dialing.leads(5)
    fallback = PostgresFallback()
    fallback.defer(refused(await picked(dialing, fallback), Blocks.FLOW))
    now_s += 1
    assert len(await picked(dialing, fallback)) == 5


@pytest.mark.parametrize(
    ("blocks", "reason", "wait_s"),
    [(Blocks.ACCOUNT, RefusalReason.PACE, 1.0), (Blocks.FLOW, RefusalReason.AGENTS, 0.25)],
)
async def test_refusals_for_pace_or_agents_do_not_increase_the_backoff(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch, blocks: Blocks, reason: RefusalReason, wait_s: float
) -> None:
    """An account of one start a second refuses most of every ask. It would start a call a minute."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    await dialing.leads(2)
    fallback = PostgresFallback()
    for _ in range(5):
        fallback.defer(refused(await picked(dialing, fallback), blocks, reason))
        now_s += 0.9 * wait_s
        assert await picked(dialing, fallback) == []
        now_s += 0.2 * wait_s
    assert await picked(dialing, fallback)


@pytest.mark.parametrize(
    ("blocks", "left"), [(Blocks.NUMBER, {"same", "other"}), (Blocks.ACCOUNT, {"other"})]
)
async def test_the_fallback_picks_no_number_or_account_that_was_set_aside(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch, blocks: Blocks, left: set[str]
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    numbers: dict[UUID, str] = {
        await dialing.add_number(): "same",
        await dialing.add_number(account="another"): "other",
        dialing.number: "refused",
    }
    lead = await dialing.lead()
    fallback = PostgresFallback()
    fallback.defer(refused([Grant(new_id(), lead, 1, dialing.number, 1, 0)], blocks))
    await dialing.leads(3)
    assert {numbers[grant.number_id] for grant in await picked(dialing, fallback)} == left


async def test_a_refusals_until_is_counted_by_postgres_clock(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    await dialing.lead()
    fallback = PostgresFallback()
    (grant,) = await picked(dialing, fallback)
    assert grant.granted_ms is not None
    until = await dialing.now() + timedelta(seconds=20)
    fallback.defer({grant: Refusal(RefusalReason.LIMIT, Blocks.FLOW, until)})
    now_s += 15
    assert await picked(dialing, fallback) == []
    now_s += 10
    assert len(await picked(dialing, fallback)) == 1


async def test_while_the_projection_is_lost_leads_are_dialled_from_postgres(stage: Stage) -> None:
    """The dialer does not wait for the rebuild, and tries Valkey again in the next round."""
    first = await stage.dialing.lead()
    await stage.forget()
    assert await stage.dialer.run_once() == 1
    await stage.dialer.drain()
    assert (await stage.lead(first))["status"] == "PROCESSING"
    second = await stage.dialing.lead()
    await stage.rebuilder.run_once()
    assert await stage.dial() == 1
    assert (await stage.lead(second))["status"] == "PROCESSING"
