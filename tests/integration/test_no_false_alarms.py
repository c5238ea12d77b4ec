"""What happens every day raises no alarm: a campaign over two channels, leads that another system calls, a restart of
every role, agents that are all busy for ten minutes. Time passes in the database; every threshold is the real one.

`make alarm-drill` runs the same by the clock, with whole processes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.control.alarm_loop import AlarmLoop
from trunkline.control.notifier import AlarmNotifier
from trunkline.control.presence import Presence
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.store import alarms
from trunkline.store.agents import SlotRule
from trunkline.testing.clock import ManualClock

ROLES = ("api", "dispatcher", "mailbox", "jobs", "router", "control")
STEP_S = 30.0
_TIME_PASSES = """
UPDATE alarm_samples SET at = at - make_interval(secs => {s});
UPDATE alarms SET seen_at = seen_at - make_interval(secs => {s});
UPDATE leads SET due_at = due_at - make_interval(secs => {s});
UPDATE attempts SET intent_at = intent_at - make_interval(secs => {s}), send_at = send_at - make_interval(secs => {s}),
    ready_at = ready_at - make_interval(secs => {s}), lead_due_at = lead_due_at - make_interval(secs => {s});
UPDATE processes SET seen_at = seen_at - make_interval(secs => {s}),
    started_at = started_at - make_interval(secs => {s})
"""


@dataclass
class Watch:
    stage: Stage
    loop: AlarmLoop
    notifier: AlarmNotifier
    clock: ManualClock
    # Every alarm that was ever raised.
    raised: set[str] = field(default_factory=set)

    async def pass_time(self, seconds: float = STEP_S) -> None:
        async with self.stage.database.connection() as conn:
            await conn.execute(_TIME_PASSES.format(s=seconds))
        self.clock.advance(seconds)
        await self.loop.leadership.run_once()
        await self.look()

    async def look(self) -> None:
        await self.loop.run_once()
        await self.notifier.run_once()
        async with self.stage.database.connection() as conn:
            self.raised |= {row["name"] for row in await conn.fetch("SELECT name FROM alarms")}


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def watching(stage: Stage, **more: object) -> Watch:
    clock = ManualClock()
    leadership = Leadership(stage.database, clock, "control", "judge", LeaseTimes())
    await leadership.run_once()
    loop = AlarmLoop(leadership, stage.database, stage.bus, walk_share=1e9, **more)  # type: ignore[arg-type]
    notifier = AlarmNotifier(stage.database, stage.bus, clock, "judge", "control")
    return Watch(stage, loop, notifier, clock)


async def two_channels(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = 2")
    await stage.reconciler.run_once()


async def test_a_healthy_campaign_over_two_channels_raises_no_alarm(stage: Stage) -> None:
    """Forty leads, all due at once, half a minute each: the last one waits for ten minutes."""
    watch = await watching(stage)
    await two_channels(stage)
    ids = [await stage.dialing.lead(due_in_s=0) for _ in range(40)]
    called: set[UUID] = set()
    while len(called) < len(ids):
        await stage.dial()
        await stage.dialer.run_once()
        now = {lead for lead in ids if lead not in called and await stage.attempts(lead)}
        assert len(now) == 2
        await watch.look()
        await watch.pass_time()
        for lead in now:
            await stage.told((await stage.attempts(lead))[-1]["id"], "ended", reason="no_answer")
        called |= now
        await stage.dialing.run(
            "UPDATE leads SET due_at = now() + interval '1 day' WHERE id = ANY($1)", list(now)
        )
    assert watch.raised == set()


async def test_leads_outside_the_rollout_raise_no_alarm(stage: Stage) -> None:
    watch = await watching(stage, includes=lambda reseller, merchant: merchant != "m")
    await stage.dialing.leads(20, due_in_s=-60)
    for _ in range(20):
        await watch.pass_time()
    assert watch.raised == set()


async def test_a_planned_restart_of_every_role_raises_no_alarm(stage: Stage) -> None:
    watch = await watching(stage)
    running = [Presence(stage.database, role, [role]) for role in ROLES for _ in range(2)]
    for each in running:
        await each.run_once()
    await watch.look()
    for index in range(len(running)):
        await running[index].leave()
        if running[index]._roles == ["control"]:
            await watch.loop.leadership.resign()
        await watch.look()
        await watch.pass_time(10)
        running[index] = Presence(stage.database, f"again-{index}", running[index]._roles)
        for each in running:
            await each.run_once()
        await watch.pass_time(10)
        for each in running:
            await each.run_once()
    for _ in range(5):
        for each in running:
            await each.run_once()
        await watch.pass_time(10)
    assert watch.raised == set()


async def test_a_scale_down_to_one_process_of_every_role_raises_no_alarm(stage: Stage) -> None:
    watch = await watching(stage)
    running = [[Presence(stage.database, f"{role}-{n}", [role]) for n in range(3)] for role in ROLES]
    for one, *others in running:
        for each in (one, *others):
            await each.run_once()
    await watch.look()
    for _, *others in running:
        for each in others:
            await each.leave()
    for _ in range(10):
        await watch.pass_time(10)
        for one, *_ in running:
            await one.run_once()
    assert watch.raised == set()


async def test_agents_that_are_all_busy_for_ten_minutes_raise_no_alarm(stage: Stage) -> None:
    slots = SlotRule(callers_of=lambda tier: 0)
    watch = await watching(stage, slots=slots)
    for number in range(2):
        slot = await stage.dialing.pod(f"agent-{number}")
        await stage.dialing.kept(f"+1212555020{number}", slot, state="answered")
    await stage.dialing.leads(30, due_in_s=-60)
    for _ in range(20):
        await stage.dialing.run("UPDATE pods SET heard_at = clock_timestamp()")
        await watch.pass_time()
    assert watch.raised == set()
    async with stage.database.connection() as conn:
        assert await alarms.list_open(conn) == []
    for _ in range(12):
        await stage.dialing.run("UPDATE pods SET heard_at = clock_timestamp()")
        await watch.pass_time()
    assert watch.raised == {"agents_busy"}, "after a quarter of an hour somebody should look"
