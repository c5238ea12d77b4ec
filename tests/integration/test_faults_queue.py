"""Faults 1 to 9 of the design that this one replaces: how leads were lost, doubled and starved in its queues."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.bus import schedule
from trunkline.bus.schedule import to_ms
from trunkline.clock import SystemClock
from trunkline.dispatch import grants as grants_module
from trunkline.dispatch import loader as loader_module
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.intent import Intents, intend
from trunkline.dispatch.loader import Loader, Rebuilder
from trunkline.model import new_id
from trunkline.store import leaders
from trunkline.store.controls import Control, Level, Scope
from trunkline.telephony.carrier import Rejected


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def one_line(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = 1")
    await stage.reconciler.run_once()


async def memory(stage: Stage) -> dict[str, object]:
    """Everything that Valkey knows of this domain, but for the moment of the last match that left nothing to do."""
    found: dict[str, object] = {}
    async for key in stage.bus.client.scan_iter(match=f"{stage.bus.projection}*"):
        if key != f"{stage.bus.projection}idle":
            found[key] = await stage.bus.client.dump(key)
    return found


async def kill_switch(stage: Stage) -> None:
    now = await stage.dialing.now()
    control = Control(Scope.KILL_SWITCH, "", Level.PLATFORM, "stop", "me", now, now, None, 0, None, None, now)
    stage.controls.read(now, [control])


async def test_fault_01_under_load_the_oldest_lead_is_called_first(stage: Stage) -> None:
    await one_line(stage)
    ages_s = [30, 90, 10, 60]
    leads = {age_s: await stage.dialing.lead(due_in_s=-age_s) for age_s in ages_s}
    called: list[UUID] = []
    for _ in ages_s:
        # Somebody new comes before every call: whoever is taken from the wrong end is taken now.
        await stage.dialing.lead(due_in_s=0)
        assert await stage.dial() == 1
        call = stage.carrier.orders[-1].attempt_id
        called.append(await stage.dialing.value("SELECT lead_id FROM attempts WHERE id = $1", call))
        await stage.told(call, "ended")
    assert called == [leads[age_s] for age_s in sorted(ages_s, reverse=True)]


async def test_fault_02_the_grant_of_a_dead_dialer_is_dialled_by_another(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    await stage.loader.run_once()
    (grant,) = (await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)).grants
    assert await stage.held() == {grant.attempt_id}, "taking it and writing down who has it are one step"
    # The dialer is dead. Nobody but the reconciler knows of its grant.
    dead = ChannelReconciler(stage.database, stage.bus, stage.controls, grant_ttl_s=-1)
    await dead.run_once()
    assert await stage.dialer.run_once() == 1
    await stage.dialer.drain()
    assert (await stage.attempt(lead))["state"] == "accepted"


async def test_fault_03_leads_that_wait_or_are_being_called_are_not_added_again(stage: Stage) -> None:
    await one_line(stage)
    leads = await stage.dialing.leads(20)
    assert await stage.loader.run_once() == 20
    (granted,) = (await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)).grants
    before = await stage.known_leads()
    assert await stage.loader.run_once() == 0, "one is granted, the others wait: all are known"
    assert await stage.refiller.run_once() == 0
    assert await stage.known_leads() == before
    assert len(before) == len(leads)
    assert str(granted.lead_id) in before


async def test_fault_04_the_loaders_walk_finds_a_lost_lead_behind_a_large_flow(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "FLOWS_PER_RUN", 1)
    await stage.dialing.leads(30, merchant="m")
    lost = await stage.dialing.lead(merchant="n", due_in_s=0)
    walk = Loader(stage.database, stage.bus)
    await walk.run_once()
    assert str(lost) not in await stage.known_leads()
    await walk.run_once()
    assert str(lost) in await stage.known_leads()


async def test_fault_05_a_process_that_starts_wipes_nothing(stage: Stage) -> None:
    await stage.dialing.leads(5, due_in_s=60)
    await stage.dialing.lead()
    assert await stage.dial() == 1
    before = await memory(stage)
    newcomer = stage.bus.at_epoch(0)
    await Rebuilder(stage.database, newcomer, stage.controls).run_once()
    await Loader(stage.database, newcomer).run_once()
    await ChannelReconciler(stage.database, newcomer, stage.controls).run_once()
    assert await memory(stage) == before


async def test_fault_06_a_deferred_lead_stays_deferred_when_the_projection_is_lost(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    stage.carrier.says(Rejected("refused", "21214", retryable=True, blames="destination"))
    assert await stage.dial() == 1
    assert (await stage.lead(lead))["status"] == "BACKLOG", "it is called again, and not now"
    await stage.forget()
    stage.bus.epoch = 0
    assert await stage.rebuilder.run_once() == 1
    assert await stage.dial() == 0
    assert len(stage.carrier.orders) == 1


async def test_fault_07_the_kill_switch_takes_nothing_out_of_the_queue(stage: Stage) -> None:
    await stage.dialing.leads(3)
    await stage.loader.run_once()
    await kill_switch(stage)
    await stage.reconciler.run_once()
    before = await memory(stage)
    found = await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)
    assert found.grants == ()
    assert found.next_in_s, "nobody is told to ask again at once"
    assert await memory(stage) == before


async def test_fault_07_the_kill_switch_is_checked_again_before_the_send(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = await stage.dialing.lead()

    async def killed_meanwhile(*args: object) -> Intents:
        intents = await intend(*args)  # type: ignore[arg-type]
        await kill_switch(stage)
        return intents

    monkeypatch.setattr(grants_module, "intend", killed_meanwhile)
    assert await stage.dial() == 1
    assert stage.carrier.orders == []
    assert (await stage.attempt(lead))["state"] == "rejected"
    row = await stage.lead(lead)
    assert (row["status"], row["attempt_count"], row["carrier_error_count"]) == ("BACKLOG", 0, 0), (
        "it was nobody's fault"
    )


async def test_fault_08_a_lease_renewal_never_overwrites_a_new_holder(stage: Stage) -> None:
    async with stage.database.connection() as conn:
        assert await leaders.acquire(conn, "duty", "old", -1.0) == 1, (
            "a lease that is over as soon as it begins"
        )
        assert await leaders.acquire(conn, "duty", "rival", 60.0) == 2
        assert await leaders.acquire(conn, "duty", "old", 60.0) is None
        assert await leaders.acquire(conn, "duty", "rival", 60.0) == 2, "the rival still has its term"


class FastClock(SystemClock):
    """A process whose clock is ten minutes ahead of everybody's."""

    def now(self) -> datetime:
        return super().now() + timedelta(minutes=10)


async def test_fault_09_a_dialer_with_a_fast_clock_dials_no_lead_early(stage: Stage) -> None:
    lead = await stage.dialing.lead(due_in_s=60)
    fast = stage.another_dialer(clock=FastClock())
    assert await stage.dial(fast) == 0
    await stage.due_now(lead)
    assert await stage.dial(fast) == 1


async def test_fault_09_no_rounding_and_no_jitter_makes_a_lead_due_before_its_time(stage: Stage) -> None:
    lead = await stage.dialing.lead(due_in_s=60)
    await stage.loader.run_once()
    due_at: datetime = (await stage.lead(lead))["due_at"]
    record = (await stage.known_leads())[str(lead)]
    due_ms = int(record.split("|")[4])
    assert due_ms == to_ms(due_at)
    assert due_ms / 1000 >= due_at.timestamp()
