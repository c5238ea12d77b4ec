"""Each loop in a situation in which it is the only thing that can save the lead."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from trunkline.bus import channels, connection, epoch, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.clock import SystemClock
from trunkline.control.controls import Controls
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.fallback import PostgresFallback
from trunkline.dispatch.loader import Loader, Rebuilder, Refiller
from trunkline.model import Flow, Grant, Holder, new_id
from trunkline.store import database as store_database
from trunkline.store import schedule as store_schedule
from trunkline.store.controls import Control, Level, Scope
from trunkline.store.database import Database

NUMBER = uuid4()


def open_controls(*in_force: Control) -> Controls:
    """A view that has been read: only what is given is stopped."""
    controls = Controls(SystemClock())
    controls.read(datetime.now(UTC), in_force)
    return controls


@dataclass
class Stage:
    database: Database
    bus: Bus

    async def lead(self, *, due: timedelta = timedelta(0), merchant: str = "m", priority: int = 50) -> UUID:
        lead_id = new_id()
        async with self.database.connection() as conn:
            await conn.execute(
                "INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, "
                "priority, scheduled_at, due_at) VALUES ($1, 'r', $2, $3, $4, '+15005551000', 'p', $5, "
                "clock_timestamp() + $6, clock_timestamp() + $6)",
                lead_id, merchant, str(lead_id), b"0" * 32, priority, due,
            )  # fmt: skip
        return lead_id

    async def match(self, most: int = 10) -> tuple[Grant, ...]:
        return (await schedule.match(self.bus, [uuid4() for _ in range(most)], clock_offset_ms=0)).grants

    async def flush(self) -> None:
        """Everything that Valkey knew of this domain is gone."""
        keys = self.bus.keys
        async for key in self.bus.client.scan_iter(match=f"{keys.prefix}:{{{keys.domain}}}:*"):
            await self.bus.client.delete(key)

    async def attempt(self, grant: Grant) -> None:
        async with self.database.connection() as conn:
            await conn.execute(
                "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, "
                "carrier, account, to_phone, from_phone, dialer) "
                "VALUES ($1, $2, 1, 'r', 'm', $3, $4, 'twilio', 'default', $5, '+14155550100', 'test')",
                grant.attempt_id, grant.lead_id, grant.number_id, grant.channel_no, str(grant.lead_id),
            )  # fmt: skip
            await conn.execute(
                "UPDATE leads SET status = 'PROCESSING', version = version + 1 WHERE id = $1", grant.lead_id
            )


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    database = await store_database.connect(database_url, pool_size=3)
    bus = connection.connect(redis_url, Keys(prefix=key_prefix))
    async with database.connection() as conn:
        await conn.execute("INSERT INTO resellers (id, name) VALUES ('r', 'R')")
        await conn.execute(
            "INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'M'), ('n', 'r', 'N')"
        )
        await conn.execute("INSERT INTO pools (id, name) VALUES ('p', 'P')")
        await conn.execute(
            "INSERT INTO numbers (id, e164, pool_id, carrier, max_channels) "
            "VALUES ($1, '+14155550100', 'p', 'twilio', 2)",
            NUMBER,
        )
    await Rebuilder(database, bus, open_controls()).run_once()
    yield Stage(database, bus)
    await bus.close()
    await database.close()


async def test_the_loader_adds_a_lead_that_valkey_missed(stage: Stage) -> None:
    lead = await stage.lead()
    assert await stage.match() == ()
    assert await Loader(stage.database, stage.bus).run_once() == 1
    assert [grant.lead_id for grant in await stage.match()] == [lead]


async def test_the_loader_leaves_a_lead_beyond_the_horizon_in_postgres(stage: Stage) -> None:
    await stage.lead(due=timedelta(hours=2))
    assert await Loader(stage.database, stage.bus).run_once() == 0


async def test_the_loader_adds_a_due_lead_behind_upcoming_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.dispatch.loader.REFILL_BELOW", 3)
    for minutes in range(5, 9):
        await stage.lead(due=timedelta(minutes=minutes))
    loader = Loader(stage.database, stage.bus)
    assert await loader.run_once() == 4
    lost = await stage.lead()
    assert await loader.run_once() == 1
    assert [grant.lead_id for grant in await stage.match()] == [lost]


async def test_deferred_leads_do_not_count_against_a_refill(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.dispatch.loader.REFILL_BELOW", 2)
    for _ in range(2):
        await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    tomorrow_ms = schedule.to_ms(datetime.now(UTC) + timedelta(days=1))
    for grant in await stage.match():
        await schedule.give_back(stage.bus, [GiveBack(grant.attempt_id, GrantReturn.AGAIN, tomorrow_ms)])
    rest = await stage.lead()
    async with stage.database.connection() as conn:
        (flow,) = await store_schedule.flows(conn, after=store_schedule.BEFORE_ALL, limit=9)
    await stage.bus.client.sadd(f"{stage.bus.projection}partial", str(flow))
    assert await Refiller(stage.database, stage.bus).run_once() == 1
    assert [grant.lead_id for grant in await stage.match()] == [rest]


async def test_the_loader_pauses_briefly_between_pages_of_flows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.dispatch.loader.FLOWS_PER_RUN", 1)
    await stage.lead()
    await stage.lead(merchant="n")
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    loader = Loader(stage.database, stage.bus, interval_s=5.0)
    monkeypatch.setattr(loader, "pause", pause)
    for _ in range(3):
        await loader.run_once()
        await loader.wait()
    assert waits == [1.0, 1.0, 5.0]
    assert len(await stage.match()) == 2


async def test_the_loader_adds_a_lost_lead_beside_a_large_flow(stage: Stage) -> None:
    for _ in range(30):
        await stage.lead()
    lost = await stage.lead(merchant="n")
    await Loader(stage.database, stage.bus).run_once()
    assert lost in {grant.lead_id for grant in await stage.match()}


async def test_the_loader_does_not_add_a_granted_lead_again(stage: Stage) -> None:
    await stage.lead()
    loader = Loader(stage.database, stage.bus)
    await loader.run_once()
    assert len(await stage.match()) == 1
    assert await loader.run_once() == 0
    assert await stage.match() == ()


async def test_the_refiller_adds_a_flows_remaining_leads_in_order(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "FLOW_CAP", 2)
    monkeypatch.setattr("trunkline.dispatch.loader.REFILL_BELOW", 1)
    late = await stage.lead(priority=60)
    first, second = await stage.lead(priority=10), await stage.lead(priority=20)
    async with stage.database.connection() as conn:
        heads = await store_schedule.heads(
            conn, (await store_schedule.flows(conn, after=store_schedule.BEFORE_ALL, limit=9))[0],
            horizon_s=900, limit=9,
        )  # fmt: skip
    assert [entry.lead_id for entry in heads] == [first, second, late]
    await schedule.add(stage.bus, heads, cap=2)
    held = await stage.match()
    assert [grant.lead_id for grant in held] == [first, second]
    for grant in held:
        await stage.attempt(grant)
        await channels.release(stage.bus, [grant.attempt_id])
    assert await Refiller(stage.database, stage.bus).run_once() == 1
    assert await schedule.partial_flows(stage.bus) == set(), "and then all of it is here"
    assert [grant.lead_id for grant in await stage.match()] == [late]


async def test_a_flow_with_more_leads_in_postgres_stays_marked_for_a_refill(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "FLOW_CAP", 2)
    monkeypatch.setattr("trunkline.dispatch.loader.REFILL_BELOW", 2)
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    flow = Flow("p", "r", "m")
    await schedule.mark_partial(stage.bus, flow)
    for _ in range(2):
        await stage.lead()
    await Refiller(stage.database, stage.bus).run_once()
    assert await schedule.partial_flows(stage.bus) == {flow}, "one of three is still there alone"


async def test_a_dead_dialers_grant_is_returned_after_its_ttl(stage: Stage) -> None:
    lead = await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    assert len(await stage.match()) == 1
    assert (
        await ChannelReconciler(stage.database, stage.bus, open_controls(), grant_ttl_s=60).run_once() == 0
    ), "it may still be alive"
    assert await ChannelReconciler(stage.database, stage.bus, open_controls(), grant_ttl_s=-1).run_once() == 1
    assert [grant.lead_id for grant in await stage.match()] == [lead]


async def test_a_call_that_ended_while_valkey_was_away_frees_its_channel(stage: Stage) -> None:
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    (grant,) = await stage.match()
    await stage.attempt(grant)
    reconciler = ChannelReconciler(stage.database, stage.bus, open_controls(), grant_ttl_s=-1)
    assert await reconciler.run_once() == 0
    async with stage.database.connection() as conn:
        await conn.execute("UPDATE attempts SET state = 'ended', holds_channel = false")
    assert await reconciler.run_once() == 1
    assert await channels.holders(stage.bus) == []


async def test_a_live_call_missing_in_valkey_gets_its_channel_back(stage: Stage) -> None:
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    (grant,) = await stage.match()
    await stage.attempt(grant)
    await channels.release(stage.bus, [grant.attempt_id])
    assert await ChannelReconciler(stage.database, stage.bus, open_controls()).run_once() == 1
    assert [holder.attempt_id for holder in await channels.holders(stage.bus)] == [grant.attempt_id]


async def test_race_2_15_a_holder_written_after_its_calls_end_is_freed_by_the_next_reconcile(
    stage: Stage,
) -> None:
    """A dial was refused because of it, and by the time that Valkey was given the owner its call was over."""
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    (grant,) = await stage.match()
    await stage.attempt(grant)
    async with stage.database.connection() as conn:
        await conn.execute("UPDATE attempts SET state = 'ended', holds_channel = false")
    await channels.release(stage.bus, [grant.attempt_id])
    await channels.hold(stage.bus, [Holder(grant.attempt_id, grant.number_id, grant.channel_no)])
    await ChannelReconciler(stage.database, stage.bus, open_controls()).run_once()
    assert await channels.holders(stage.bus) == []


async def test_a_call_that_ended_during_a_reconcile_does_not_get_its_channel_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    (grant,) = await stage.match()
    await stage.attempt(grant)
    configure = channels.configure

    async def its_end_is_told(bus: Bus, wanted: Configuration) -> int:
        """Postgres was read before."""
        await channels.release(bus, [grant.attempt_id])
        return await configure(bus, wanted)

    monkeypatch.setattr(channels, "configure", its_end_is_told)
    await ChannelReconciler(stage.database, stage.bus, open_controls()).run_once()
    assert await channels.holders(stage.bus) == []


@pytest.mark.parametrize(("scope", "subject"), [(Scope.NUMBER, str(NUMBER)), (Scope.CARRIER, "twilio")])
async def test_a_number_that_is_stopped_itself_or_with_its_carrier_grants_nothing(
    stage: Stage, scope: Scope, subject: str
) -> None:
    now = datetime.now(UTC)
    stop = Control(scope, subject, Level.PLATFORM, "test", "test", now, now, None, 0, None, None, now)
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    await ChannelReconciler(stage.database, stage.bus, open_controls(stop)).run_once()
    assert await stage.match() == ()
    await ChannelReconciler(stage.database, stage.bus, open_controls()).run_once()
    assert len(await stage.match()) == 1


async def test_the_reconciler_stops_before_it_would_free_60_channels(stage: Stage) -> None:
    many = [Holder(uuid4(), NUMBER, channel + 1) for channel in range(60)]
    await channels.hold(stage.bus, many)
    await ChannelReconciler(stage.database, stage.bus, open_controls(), grant_ttl_s=-1).run_once()
    assert len(await channels.holders(stage.bus)) == 60


async def sixty_granted(stage: Stage) -> tuple[Grant, ...]:
    for _ in range(60):
        await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    return await stage.match(60)


@pytest.fixture
async def reconciler(stage: Stage) -> ChannelReconciler:
    """One that has looked before anything was granted, and takes every grant for a dead dialer's."""
    async with stage.database.connection() as conn:
        await conn.execute("UPDATE numbers SET max_channels = 100")
    reconciler = ChannelReconciler(stage.database, stage.bus, open_controls(), grant_ttl_s=-1)
    await reconciler.run_once()
    return reconciler


async def test_the_reconciler_returns_undialled_grants_however_many_they_are(
    stage: Stage, reconciler: ChannelReconciler
) -> None:
    """Postgres was away: every grant of the meantime came to nothing."""
    assert len(await sixty_granted(stage)) == 60
    assert await reconciler.run_once() == 60
    assert len(await stage.match(60)) == 60


async def test_channels_of_calls_missing_in_postgres_stay_held_until_an_operator_frees_them(
    stage: Stage, reconciler: ChannelReconciler
) -> None:
    for grant in await sixty_granted(stage):
        await stage.attempt(grant)
    assert await reconciler.run_once() == 0
    async with stage.database.connection() as conn:
        await conn.execute("DELETE FROM attempts")
        await conn.execute("UPDATE leads SET status = 'BACKLOG', version = 1")
    assert await reconciler.run_once() == 0
    assert len(await channels.holders(stage.bus)) == 60
    assert await reconciler.free_dead() == 60
    assert len(await stage.match(60)) == 60


async def test_race_1_16_calls_that_truly_ended_are_freed_however_many_they_are(stage: Stage) -> None:
    """Their ends came while Valkey was away: the carrier has told of each of them."""
    ended = [new_id() for _ in range(60)]
    lead = await stage.lead()
    async with stage.database.connection() as conn:
        await conn.executemany(
            "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
            " account, to_phone, from_phone, dialer, state, holds_channel)"
            " VALUES ($1, $2, 1, 'r', 'm', $3, $4, 'twilio', 'default', '+1', '+2', 'd', 'ended', false)",
            [(attempt, lead, NUMBER, channel) for channel, attempt in enumerate(ended, start=1)],
        )
    await channels.hold(stage.bus, [Holder(each, NUMBER, n) for n, each in enumerate(ended, start=1)])
    await ChannelReconciler(stage.database, stage.bus, open_controls(), grant_ttl_s=-1).run_once()
    assert await channels.holders(stage.bus) == []


async def test_a_changed_number_takes_effect_and_live_channels_stay(stage: Stage) -> None:
    for _ in range(4):
        await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    for grant in await stage.match():
        await stage.attempt(grant)
    async with stage.database.connection() as conn:
        await conn.execute("UPDATE numbers SET max_channels = 3")
    await ChannelReconciler(stage.database, stage.bus, open_controls()).run_once()
    assert [grant.channel_no for grant in await stage.match()] == [3]


async def test_a_campaigns_max_concurrent_is_a_cap_of_the_match(stage: Stage) -> None:
    """Else every grant over it would be refused by the intent, a second at a time."""
    campaign = uuid4()
    async with stage.database.connection() as conn:
        await conn.execute(
            "INSERT INTO policies (scope, subject, policy, updated_by) VALUES ('campaign', $1, $2, 'test')",
            f"m/{campaign}",
            {"max_concurrent": 1},
        )
        caps = await store_schedule.caps(conn)
    assert caps == {f"c/m/{campaign}": 1}


async def test_a_lost_projection_is_rebuilt_with_channels_and_schedule(stage: Stage) -> None:
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    (live,) = await stage.match()
    await stage.attempt(live)
    waiting = [await stage.lead() for _ in range(3)]
    await stage.flush()
    assert await Rebuilder(stage.database, stage.bus, open_controls()).run_once() == 1
    assert [holder.attempt_id for holder in await channels.holders(stage.bus)] == [live.attempt_id]
    grants = await stage.match()
    assert len(grants) == 1, "one of two channels is taken"
    assert grants[0].lead_id in waiting
    assert grants[0].channel_no != live.channel_no


async def test_an_intact_projection_is_not_rebuilt(stage: Stage) -> None:
    assert await Rebuilder(stage.database, stage.bus, open_controls()).run_once() == 0


async def test_a_starting_process_leaves_the_projection_as_it_is(stage: Stage) -> None:
    await stage.lead()
    await Loader(stage.database, stage.bus).run_once()
    (live,) = await stage.match()
    newcomer = stage.bus.at_epoch(0)
    await Rebuilder(stage.database, newcomer, open_controls()).run_once()
    assert [holder.attempt_id for holder in await channels.holders(newcomer)] == [live.attempt_id]


async def test_without_valkey_postgres_alone_pairs_leads_with_channels(stage: Stage) -> None:
    piled = [await stage.lead() for _ in range(5)]
    other = await stage.lead(merchant="n")
    await stage.lead(due=timedelta(minutes=5), merchant="n")
    grants = await PostgresFallback().grants(stage.database, 10) or []
    assert [grant.lead_id for grant in grants] == [piled[0], other], "two channels, one for each flow"
    assert {grant.channel_no for grant in grants} == {1, 2}
    assert all(grant.due_ms <= datetime.now(UTC).timestamp() * 1000 for grant in grants)


async def test_the_fallback_sees_no_channel_that_is_held(stage: Stage) -> None:
    fallback = PostgresFallback()
    await stage.lead()
    (first,) = await fallback.grants(stage.database, 10) or []
    await stage.attempt(first)
    second = await stage.lead()
    (grant,) = await fallback.grants(stage.database, 10) or []
    assert (grant.lead_id, grant.channel_no) == (second, 2)
    assert await epoch.read(stage.bus) > 0
