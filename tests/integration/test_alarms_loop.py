"""Alarms judged from a real database: what raises them, what clears them, which process notifies."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

import pytest

from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.control.alarm_loop import AlarmLoop
from trunkline.control.alarms import DEFINITIONS
from trunkline.control.notifier import AlarmNotifier, AlarmWebhook, Announcement, NotifierTimes
from trunkline.control.presence import Presence, counted
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.model import new_id
from trunkline.store import alarms, controls, mailboxes
from trunkline.store import database as store_database
from trunkline.store.controls import Level, NewStop, Scope
from trunkline.store.database import Database
from trunkline.store.mailboxes import NewEvent, Parked
from trunkline.store.presence import Key
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics
from trunkline.testing.clock import ManualClock

RESELLER, MERCHANT, POOL = "acme", "shop", "pool"


@dataclass
class Watch:
    """A leader that judges, and time that passes in the database at will."""

    database: Database
    loop: AlarmLoop
    notifier: AlarmNotifier
    clock: ManualClock
    told: list[Announcement] = field(default_factory=list)

    # When the last look was, by Postgres' clock: how long this machine takes for one must not count.
    looked_at: datetime | None = None

    async def look(self) -> set[tuple[str, str]]:
        await self.loop.run_once()
        await self.notifier.run_once()
        async with self.database.connection() as conn:
            self.looked_at = await conn.fetchval("SELECT clock_timestamp()")
        async with self.database.connection() as conn:
            return {(alarm.name, alarm.subject) for alarm in await alarms.list_open(conn)}

    async def pass_time(self, seconds: float, every_s: float = 5) -> set[tuple[str, str]]:
        """Look again and again while so much time goes by."""
        opened: set[tuple[str, str]] = set()
        for _ in range(round(seconds / every_s)):
            await self.execute(
                "UPDATE alarm_samples SET at = at - make_interval(secs => $1)"
                " + (clock_timestamp() - coalesce($2, clock_timestamp()))",
                every_s,
                self.looked_at,
            )
            await self.execute("UPDATE alarms SET seen_at = seen_at - make_interval(secs => $1)", every_s)
            opened = await self.look()
        return opened

    async def execute(self, statement: str, *values: object) -> None:
        async with self.database.connection() as conn:
            await conn.execute(statement, *values)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await store_database.connect(database_url, pool_size=4)
    yield database
    await database.close()


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = bus_connection.connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


async def watch_on(database: Database, bus: Bus, clock: ManualClock | None = None) -> Watch:
    clock = clock or ManualClock()
    leadership = Leadership(database, clock, "control", "judge", LeaseTimes())
    await leadership.run_once()
    told: list[Announcement] = []
    notifier = AlarmNotifier(database, bus, clock, "judge", "control", Recorder(told))
    return Watch(database, AlarmLoop(leadership, database, bus, walk_share=1e9), notifier, clock, told)


class Recorder(AlarmWebhook):
    """A receiver that takes everything, unless it is told to refuse."""

    def __init__(self, told: list[Announcement]):
        super().__init__("http://unused.test")
        self.told = told
        self.refuses = False

    async def send(self, announcement: Announcement) -> bool:
        if not self.refuses:
            self.told.append(announcement)
        return not self.refuses


@pytest.fixture
async def watch(database: Database, bus: Bus) -> Watch:
    return await watch_on(database, bus)


@pytest.fixture
async def tenants(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO resellers (id, name) VALUES ($1, 'r')", RESELLER)
        await tx.execute(
            "INSERT INTO merchants (id, reseller_id, name) VALUES ($1, $2, 'm')", MERCHANT, RESELLER
        )
        await tx.execute("INSERT INTO pools (id, name) VALUES ($1, 'p')", POOL)


async def add_number(database: Database, channels: int = 2) -> UUID:
    number_id = new_id()
    async with database.connection() as conn:
        await conn.execute(
            "INSERT INTO numbers (id, e164, pool_id, carrier, max_channels) VALUES ($1, $2, $3, 'twilio', $4)",
            number_id, f"+1415555{number_id.int % 10_000:04}", POOL, channels,
        )  # fmt: skip
    return number_id


async def add_leads(
    database: Database, count: int, late_s: float = 60, campaign_id: UUID | None = None
) -> None:
    async with database.connection() as conn:
        await conn.executemany(
            "INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, campaign_id,"
            " scheduled_at, due_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now(), now() - make_interval(secs => $9))",
            [
                (
                    new_id(),
                    RESELLER,
                    MERCHANT,
                    str(uuid4()),
                    bytes(32),
                    "+14155550123",
                    POOL,
                    campaign_id,
                    late_s,
                )
                for _ in range(count)
            ],
        )


async def add_attempt(
    database: Database, number_id: UUID, channel_no: int, state: str, late_s: float = 0
) -> None:
    async with database.transaction() as tx:
        lead_id = await tx.fetchval("SELECT id FROM leads ORDER BY id DESC LIMIT 1")
        await tx.execute(
            "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
            " account, to_phone, from_phone, state, dialer, lead_due_at, send_at)"
            " VALUES ($1, $2, 1, $3, $4, $5, $6, 'twilio', 'main', '+1', '+2', $7, 'd',"
            " clock_timestamp() - make_interval(secs => $8), clock_timestamp())",
            new_id(), lead_id, RESELLER, MERCHANT, number_id, channel_no, state, late_s,
        )  # fmt: skip


async def test_an_idle_platform_raises_no_alarm(watch: Watch) -> None:
    assert await watch.look() == set()
    assert await watch.pass_time(60) == set()
    assert watch.told == []


async def test_dispatch_halted_is_raised_after_a_minute_and_cleared_by_a_placed_call(
    watch: Watch, tenants: None
) -> None:
    number_id = await add_number(watch.database)
    await add_leads(watch.database, 11)
    assert await watch.look() == set(), "at once is too soon"
    assert await watch.pass_time(55) == set()
    assert await watch.pass_time(5) == {("dispatch_halted", "")}
    await add_attempt(watch.database, number_id, 1, "accepted")
    assert await watch.pass_time(5) == set()
    assert [each.type for each in watch.told] == ["alarm.raised", "alarm.cleared"]
    assert watch.told[0].body["data"]["detail"] == {"value": 11}


@pytest.mark.parametrize("count", [10, 0])
async def test_ten_overdue_leads_are_no_halt(watch: Watch, tenants: None, count: int) -> None:
    await add_number(watch.database)
    await add_leads(watch.database, count)
    await add_leads(watch.database, 20, late_s=5)
    await watch.look()
    assert await watch.pass_time(90) == set()


CAMPAIGN = uuid4()


@pytest.mark.parametrize(
    ("scope", "subject"),
    [
        (Scope.KILL_SWITCH, ""),
        (Scope.PROMOTER, ""),
        (Scope.RESELLER, RESELLER),
        (Scope.MERCHANT, MERCHANT),
        (Scope.CAMPAIGN, f"{MERCHANT}/{CAMPAIGN}"),
        (Scope.CARRIER, "twilio"),
    ],
)
async def test_stopped_leads_are_no_halt(watch: Watch, tenants: None, scope: Scope, subject: str) -> None:
    await add_number(watch.database)
    await add_leads(watch.database, 50, campaign_id=CAMPAIGN)
    async with watch.database.transaction() as tx:
        await controls.stop(tx, NewStop(scope, subject, Level.PLATFORM, "r", "k", PLATFORM, ramp_s=0))
    await watch.look()
    assert await watch.pass_time(70) == set()
    async with watch.database.transaction() as tx:
        await controls.resume(tx, scope, subject, Level.PLATFORM, reason="r", by="k", ramp_s=0)
    assert await watch.pass_time(70) == {("dispatch_halted", "")}


async def test_channels_that_are_all_busy_are_no_halt(watch: Watch, tenants: None) -> None:
    number_id = await add_number(watch.database, channels=1)
    await add_leads(watch.database, 50)
    await add_attempt(watch.database, number_id, 1, "answered")
    await watch.execute("UPDATE attempts SET send_at = send_at - interval '10 minutes'")
    await watch.look()
    assert await watch.pass_time(70) == set()
    await watch.execute("UPDATE numbers SET max_channels = 2")
    assert await watch.pass_time(70) == {("dispatch_halted", "")}


async def test_a_stopped_merchants_backlog_does_not_hide_another_merchants_halt(
    watch: Watch, tenants: None
) -> None:
    await add_number(watch.database)
    await add_leads(watch.database, 200, late_s=3600)
    async with watch.database.transaction() as tx:
        await tx.execute("INSERT INTO merchants (id, reseller_id, name) VALUES ('small', $1, 'm')", RESELLER)
        stop = NewStop(Scope.MERCHANT, MERCHANT, Level.PLATFORM, "r", "k", PLATFORM, ramp_s=0)
        await controls.stop(tx, stop)
    await add_leads(watch.database, 11)
    await watch.execute(
        "UPDATE leads SET merchant_id = 'small' WHERE id IN (SELECT id FROM leads ORDER BY id DESC LIMIT 11)"
    )
    await watch.look()
    assert await watch.pass_time(60) == {("dispatch_halted", "")}


async def test_lateness_high_is_raised_after_five_minutes_and_cleared_below_the_lower_threshold(
    watch: Watch, tenants: None
) -> None:
    number_id = await add_number(watch.database)
    await add_leads(watch.database, 1, late_s=0)
    await add_attempt(watch.database, number_id, 1, "ended", late_s=9)
    await watch.look()
    assert await watch.pass_time(290, every_s=10) == set()
    assert await watch.pass_time(10) == {("lateness_high", "")}
    await watch.execute("UPDATE attempts SET lead_due_at = send_at - interval '4 s'")
    assert await watch.pass_time(120, every_s=10) == {("lateness_high", "")}, (
        "under one number, over the other"
    )
    await watch.execute("UPDATE attempts SET lead_due_at = send_at")
    assert await watch.pass_time(70, every_s=10) == set()


async def test_a_new_leader_continues_the_time_of_a_pending_alarm(
    database: Database, bus: Bus, tenants: None
) -> None:
    await add_number(database)
    await add_leads(database, 11)
    first = await watch_on(database, bus)
    await first.look()
    await first.pass_time(30)
    await first.loop.leadership.resign()
    second = await watch_on(database, bus)
    assert await second.pass_time(25) == set()
    assert await second.pass_time(5) == {("dispatch_halted", "")}


async def test_attempt_unknown_lasts_until_the_attempts_channel_is_free(watch: Watch, tenants: None) -> None:
    number_id = await add_number(watch.database)
    await add_leads(watch.database, 1, late_s=0)
    await add_attempt(watch.database, number_id, 1, "unknown")
    assert await watch.look() == {("attempt_unknown", "twilio/main")}
    await watch.execute("UPDATE attempts SET holds_channel = false")
    assert await watch.pass_time(35) == set()


async def test_dead_letters_are_an_alarm_by_type_until_they_are_gone(watch: Watch) -> None:
    await watch.execute(
        "INSERT INTO job_dead (id, created_at, fence, priority, attempt_count, max_attempts, job_type, payload)"
        " VALUES ($1, now(), 1, 50, 4, 4, 'export', '{}')",
        new_id(),
    )
    assert await watch.look() == {("dead_jobs", "export")}
    await watch.execute("DELETE FROM job_dead")
    assert await watch.look() == set()


async def test_a_valkey_that_is_away_is_an_alarm_after_ten_seconds(database: Database) -> None:
    away = bus_connection.connect("redis://127.0.0.1:1", Keys())
    watch = await watch_on(database, away)
    assert await watch.look() == set()
    assert await watch.pass_time(10) == {("valkey_unreachable", "")}
    await away.close()


def presence(database: Database, counts: dict[Key, float], **gauges: float) -> Presence:
    return Presence(
        database,
        "p",
        ["dispatcher"],
        counted=lambda: dict(counts),
        gauged=lambda: {(name, ""): value for name, value in gauges.items()},
    )


@pytest.mark.parametrize(
    ("counts", "raised"),
    [
        ({("schedule_tried", ""): 200, ("schedule_failed", ""): 2}, None),
        ({("schedule_tried", ""): 200, ("schedule_failed", ""): 3}, ("schedule_failures", "")),
        ({("reconciler_fixes", "channels"): 5}, None),
        ({("reconciler_fixes", "channels"): 6}, ("reconciler_fixes", "channels")),
        ({("set_aside", "call"): 1}, ("events_set_aside", "call")),
        ({("placed", "twilio"): 150, ("unknown", "twilio"): 4}, ("unknown_rate", "twilio")),
    ],
)
async def test_counts_of_two_processes_are_added_up(
    watch: Watch, counts: dict[Key, float], raised: Key | None
) -> None:
    """Neither of them is over the threshold alone: 5 fixes a minute are few, twice 6 are more than ten."""
    totals: list[dict[Key, float]] = [{}, {}]
    both = [presence(watch.database, total) for total in totals]
    for total in totals:
        total.update(counts)
    for each in both:
        await each.run_once()
        await each.run_once()
    assert await watch.look() == ({raised} if raised else set())


async def test_counts_before_a_processs_first_report_are_not_counted(watch: Watch) -> None:
    counts: dict[Key, float] = {("reconciler_fixes", "channels"): 1000}
    await presence(watch.database, counts).run_once()
    assert await watch.look() == set()


async def test_channel_drift_is_the_greatest_that_any_process_reported(watch: Watch) -> None:
    for drift in (6, 2):
        await presence(watch.database, {}, channel_drift=drift).run_once()
    assert await watch.look() == {("channel_drift", "")}


def test_the_metrics_counters_that_alarms_use_are_read() -> None:
    before = counted()
    metrics.RECONCILER_FIXES.labels("found_by_a_test").inc(3)
    metrics.SCHEDULE_ADDS.labels("failed").inc()
    metrics.SCHEDULE_ADDS.labels("ok").inc()
    found = counted()
    assert found["reconciler_fixes", "found_by_a_test"] == 3
    more = {
        name: found["schedule_" + name, ""] - before.get(("schedule_" + name, ""), 0)
        for name in ("tried", "failed")
    }
    assert more == {"tried": 2, "failed": 1}


async def processes(watch: Watch, count: int) -> list[Presence]:
    running = [presence(watch.database, {}) for _ in range(count)]
    for each in running:
        await each.run_once()
    return running


async def test_half_of_the_workers_dead_is_a_warning_until_others_take_their_places(watch: Watch) -> None:
    await processes(watch, 4)
    dies = "UPDATE processes SET seen_at = seen_at - interval '1 minute', started_at = started_at - interval '1 minute'"
    await watch.execute(f"{dies} WHERE id = (SELECT min(id) FROM processes)")
    assert await watch.pass_time(30) == set(), "a quarter is not half"
    await watch.execute(f"{dies} WHERE id IN (SELECT id FROM processes ORDER BY id LIMIT 2)")
    await watch.execute("UPDATE processes SET started_at = started_at - interval '1 hour'")
    assert await watch.pass_time(30) == {("workers_down", "dispatcher")}
    await processes(watch, 2)
    assert await watch.pass_time(30) == set()


async def test_a_planned_stop_of_every_process_but_one_is_no_alarm(watch: Watch) -> None:
    running = await processes(watch, 4)
    await watch.look()
    for each in running[1:]:
        await each.leave()
        await each.run_once()
    # Nobody has said anything for a minute but the one that stays.
    await watch.execute("UPDATE processes SET seen_at = seen_at - interval '1 minute'")
    await running[0].run_once()
    assert await watch.pass_time(30) == set()
    await running[0].leave()
    await watch.execute("UPDATE processes SET seen_at = seen_at - interval '1 minute'")
    assert await watch.pass_time(30) == set(), "scaled to nothing"


async def test_leads_that_no_number_may_dial_are_an_alarm_of_their_own(watch: Watch, tenants: None) -> None:
    await add_leads(watch.database, 3)
    await watch.look()
    assert await watch.pass_time(60) == {("leads_without_number", POOL)}
    await add_number(watch.database)
    assert await watch.look() == set()
    await watch.execute("UPDATE numbers SET status = 'draining'")
    await watch.look()
    assert await watch.pass_time(60) == {("leads_without_number", POOL)}


async def test_a_refusal_by_an_intent_is_no_halt_and_our_own_failures_are(
    watch: Watch, tenants: None
) -> None:
    await add_number(watch.database)
    await add_leads(watch.database, 50)
    refuse = (
        "INSERT INTO decisions (lead_id, reason, merchant_id)"
        " SELECT id, $1, merchant_id FROM leads ORDER BY priority, due_at LIMIT 1"
    )
    await watch.execute(refuse, "limit")
    await watch.look()
    assert await watch.pass_time(70) == set()
    await watch.execute("UPDATE decisions SET reason = 'error'")
    assert await watch.pass_time(70) == {("dispatch_halted", "")}


async def test_leads_of_an_account_that_cools_down_are_no_halt(watch: Watch, tenants: None) -> None:
    """Its own alarm tells of it."""
    await add_number(watch.database)
    await add_leads(watch.database, 50)
    await watch.execute(
        "INSERT INTO cooldowns (scope, subject, carrier, account, code, refused_at, opens_at)"
        " SELECT 'account', carrier || '/' || account, carrier, account, '20003', now(), now() FROM numbers"
    )
    await watch.look()
    assert await watch.pass_time(70) == set()
    await watch.execute("DELETE FROM cooldowns")
    assert await watch.pass_time(70) == {("dispatch_halted", "")}


async def test_leads_that_the_rollout_leaves_out_are_no_halt(
    database: Database, bus: Bus, tenants: None
) -> None:
    watch = await watch_on(database, bus)
    on: set[str] = set()
    watch.loop._includes = lambda reseller, merchant: merchant in on
    await add_number(database)
    await add_leads(database, 50)
    await watch.look()
    assert await watch.pass_time(70) == set()
    on.add(MERCHANT)
    assert await watch.pass_time(70) == {("dispatch_halted", "")}


async def test_events_set_aside_by_an_application_are_an_alarm(watch: Watch) -> None:
    """Its worker is no process of the platform's: nothing is known of what it counts."""
    async with watch.database.transaction() as tx:
        await mailboxes.append(tx, [NewEvent("ticket", "1", "d", "opened", {})])
        await mailboxes.park(tx, "ticket", [Parked("1", 1, "no such field")])
    assert await watch.look() == {("events_set_aside", "ticket")}


async def test_a_mailbox_kind_without_a_handler_is_an_alarm_after_a_minute(watch: Watch) -> None:
    await watch.execute(
        "INSERT INTO mailboxes (kind, key, processing_status, claimable_at) VALUES ('ticket', 'x', 'queued', now())"
    )
    assert await watch.look() == set()
    await watch.execute("UPDATE mailboxes SET claimable_at = claimable_at - interval '61 s'")
    assert await watch.look() == {("mailboxes_waiting", "ticket")}
    await watch.execute(
        "UPDATE mailboxes SET claimable_at = now() + interval '15 s', processing_status = 'processing'"
    )
    assert await watch.look() == set()


async def test_a_dead_mailbox_is_an_alarm_when_it_dies_and_until_it_is_replayed(watch: Watch) -> None:
    await watch.execute(
        "INSERT INTO mailboxes (kind, key, processing_status) VALUES ('call', 'x', 'dead'), ('call', 'y', 'idle')"
    )
    assert await watch.look() == {("dead_mailbox", "call")}
    await watch.execute("UPDATE mailboxes SET processing_status = 'idle'")
    assert await watch.look() == set()


async def test_a_stop_that_lasts_is_a_warning_that_names_who_set_it_and_a_draft_is_none(watch: Watch) -> None:
    async with watch.database.transaction() as tx:
        for scope, subject in ((Scope.KILL_SWITCH, ""), (Scope.CAMPAIGN, f"{MERCHANT}/{CAMPAIGN}")):
            stop = NewStop(scope, subject, Level.PLATFORM, "the fire drill", "ada", PLATFORM, ramp_s=0)
            await controls.stop(tx, stop)
    await watch.execute("UPDATE controls SET stopped_at = now() - interval '11 hours'")
    assert await watch.look() == set()
    await watch.execute("UPDATE controls SET stopped_at = now() - interval '13 hours'")
    assert await watch.look() == {("stop_lasting", "kill_switch")}
    detail = watch.told[-1].body["data"]["detail"]
    assert (detail["reason"], detail["changed_by"]) == ("the fire drill", "ada")
    async with watch.database.transaction() as tx:
        await controls.resume(tx, Scope.KILL_SWITCH, "", Level.PLATFORM, reason="r", by="k", ramp_s=0)
    assert await watch.look() == set()


@pytest.mark.parametrize("has_resigned", [True, False])
async def test_any_process_raises_and_clears_the_no_leader_alarm(
    database: Database, bus: Bus, *, has_resigned: bool
) -> None:
    """A planned stop has more time to come back than a leader whose lease ran out."""
    clock, told, times = ManualClock(), list[Announcement](), NotifierTimes()
    first = await watch_on(database, bus)
    if has_resigned:
        await first.loop.leadership.resign()
    else:
        await first.execute("UPDATE leaders SET expires_at = clock_timestamp()")
    other = AlarmNotifier(database, bus, clock, "an api process", "control", Recorder(told))
    patience_s = times.resigned_after_s if has_resigned else times.lapsed_after_s
    await other.run_once()
    clock.advance(patience_s - 1)
    await other.run_once()
    assert told == []
    clock.advance(1)
    await other.run_once()
    assert [(each.type, each.body["data"]["name"]) for each in told] == [("alarm.raised", "no_leader")]
    watch = await watch_on(database, bus)
    assert await watch.look() == {("no_leader", "")}, "it was said a moment ago"
    await other.run_once()
    assert await watch.pass_time(20) == set()
    assert [each.type for each in [*told, *watch.told]] == ["alarm.raised", "alarm.cleared"]


async def test_an_outage_of_postgres_does_not_count_as_time_without_a_leader(
    database: Database, bus: Bus
) -> None:
    clock = ManualClock()
    notifier = AlarmNotifier(database, bus, clock, "p", "control")
    await notifier.run_once()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connection", _away)
        with pytest.raises(ConnectionRefusedError):
            await notifier.run_once()
    clock.advance(60)
    await notifier.run_once()
    async with database.connection() as conn:
        assert "no_leader" not in {alarm.name for alarm in await alarms.list_open(conn)}


async def test_only_the_leader_raises_alarms_and_every_process_exports_them(
    database: Database, bus: Bus
) -> None:
    leader, other = await watch_on(database, bus), await watch_on(database, bus)
    await leader.execute(
        "INSERT INTO job_dead (id, created_at, fence, priority, attempt_count, max_attempts, job_type, payload)"
        " VALUES ($1, now(), 1, 50, 4, 4, 'export', '{}')",
        new_id(),
    )
    assert await other.look() == set()
    assert await leader.look() == {("dead_jobs", "export")}
    await other.look()
    assert metrics.REGISTRY.get_sample_value("trunkline_alarm", {"name": "dead_jobs"}) == 1
    for name in DEFINITIONS:
        assert metrics.REGISTRY.get_sample_value("trunkline_alarm", {"name": name}) is not None, name


async def test_a_leader_that_lost_its_term_raises_no_alarm(watch: Watch) -> None:
    await watch.execute(
        "INSERT INTO job_dead (id, created_at, fence, priority, attempt_count, max_attempts, job_type, payload)"
        " VALUES ($1, now(), 1, 50, 4, 4, 'export', '{}')",
        new_id(),
    )
    await watch.execute("UPDATE leaders SET term = term + 1, holder = 'another'")
    assert watch.loop.leadership.trusted
    assert await watch.look() == set()


async def test_an_alarm_raised_again_is_one_alarm_and_one_notification(watch: Watch) -> None:
    assert await raise_alarm(watch.database, "late_fact", "adopted", {"attempt": "1"}) is True
    await watch.look()
    await watch.execute("UPDATE alarms SET seen_at = seen_at - interval '1 minute'")
    assert await raise_alarm(watch.database, "late_fact", "adopted", {"attempt": "2"}) is False
    assert await raise_alarm(watch.database, "late_fact", "hung_up") is True
    await watch.look()
    assert len(watch.told) == 2
    async with watch.database.connection() as conn:
        opened = {alarm.subject: alarm for alarm in await alarms.list_open(conn)}
    assert opened["adopted"].detail == {"attempt": "2"}
    assert opened["adopted"].seen_at > opened["adopted"].raised_at


async def test_a_reported_alarm_is_cleared_by_its_reporter_or_after_silence(watch: Watch) -> None:
    await raise_alarm(watch.database, "late_fact", "adopted")
    await raise_alarm(watch.database, "mass_free_breaker", "channels")
    await raise_alarm(watch.database, "store_restored")
    assert await clear_alarm(watch.database, "mass_free_breaker", "channels") is True
    assert await clear_alarm(watch.database, "mass_free_breaker", "channels") is False
    assert await watch.pass_time(550, every_s=50) == {("late_fact", "adopted"), ("store_restored", "")}
    assert await watch.pass_time(100, every_s=50) == {("store_restored", "")}, "that one is for a person"


async def test_a_refused_notification_is_retried_by_any_process_with_backoff(
    database: Database, bus: Bus
) -> None:
    one, other = await watch_on(database, bus), await watch_on(database, bus)
    assert isinstance(one.notifier._webhook, Recorder)
    one.notifier._webhook.refuses = True
    await raise_alarm(database, "late_fact", "adopted")
    await one.look()
    assert await other.look() == {("late_fact", "adopted")}
    assert other.told == [], "5 s have not passed"
    await one.execute("UPDATE alarms SET notify_after = now()")
    await one.look()
    async with database.connection() as conn:
        wait = await conn.fetchval("SELECT notify_after > now() + interval '9 seconds' FROM alarms")
    assert wait, "twice as long"
    await one.execute("UPDATE alarms SET notify_after = now()")
    await other.look()
    assert [each.type for each in other.told] == ["alarm.raised"]


async def test_one_of_two_processes_sends_a_notification(database: Database, bus: Bus) -> None:
    watches = [await watch_on(database, bus), await watch_on(database, bus)]
    await raise_alarm(database, "late_fact", "adopted")
    await asyncio.gather(*(watch.notifier.run_once() for watch in watches))
    assert [each.type for watch in watches for each in watch.told] == ["alarm.raised"]


async def test_an_alarm_that_lasts_is_sent_again_under_another_id(watch: Watch) -> None:
    await raise_alarm(watch.database, "store_restored")
    await watch.look()
    for _ in range(2):
        await watch.look()
        await watch.execute("UPDATE alarms SET notified_at = notified_at - interval '1 hour'")
        await watch.look()
    assert [each.type for each in watch.told] == ["alarm.raised", "alarm.ongoing", "alarm.ongoing"]
    assert len({each.id for each in watch.told}) == 3


async def test_alarms_that_ended_hours_ago_are_not_sent_to_a_webhook_that_is_new(watch: Watch) -> None:
    await raise_alarm(watch.database, "late_fact", "adopted")
    await clear_alarm(watch.database, "late_fact", "adopted")
    await watch.execute("UPDATE alarms SET cleared_at = cleared_at - interval '4 hours'")
    await watch.look()
    assert watch.told == []


async def test_an_alarm_cleared_before_its_notification_is_sent_as_raised_and_cleared(watch: Watch) -> None:
    await raise_alarm(watch.database, "late_fact", "adopted")
    await clear_alarm(watch.database, "late_fact", "adopted")
    await watch.look()
    await watch.look()
    assert [each.type for each in watch.told] == ["alarm.raised", "alarm.cleared"]


async def test_raising_an_open_alarm_does_not_wait_for_its_row_lock(watch: Watch) -> None:
    """One has just said it and has not committed yet; the next one does not wait for the first."""
    await raise_alarm(watch.database, "late_fact", "adopted")
    async with watch.database.transaction() as first:
        await first.execute("SELECT FROM alarms FOR UPDATE")
        async with watch.database.transaction() as second:
            await second.execute("SET LOCAL lock_timeout = '100ms'")
            assert await raise_alarm(second, "late_fact", "adopted") is False


async def test_an_outage_of_postgres_is_notified_once_past_it_and_when_it_ends(
    database_url: str, bus: Bus
) -> None:
    database = await store_database.connect(database_url, pool_size=3)
    watches = [await watch_on(database, bus) for _ in range(2)]
    for watch in watches:
        await watch.look()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connection", _away)
        patch.setattr(database, "transaction", _away)
        for _ in range(3):
            for watch in watches:
                with pytest.raises(ConnectionRefusedError):
                    await watch.notifier.run_once()
                watch.clock.advance(4)
        told = [each for watch in watches for each in watch.told]
        assert [(each.type, each.body["data"]["name"]) for each in told] == [
            ("alarm.raised", "postgres_unreachable")
        ], "while it lasts"
    for watch in watches:
        await watch.notifier.run_once()
        await watch.notifier.run_once()
    async with database.connection() as conn:
        [past] = await conn.fetch("SELECT id, name, cleared_at > raised_at AS is_over FROM alarms")
    await database.close()
    assert (past["name"], past["is_over"]) == ("postgres_unreachable", True)
    told = [each for watch in watches for each in watch.told]
    assert [each.type for each in told] == ["alarm.raised", "alarm.cleared"]
    assert {each.alarm_id for each in told} == {past["id"]}


async def test_a_process_that_was_suspended_itself_notifies_no_outage(database_url: str, bus: Bus) -> None:
    database = await store_database.connect(database_url, pool_size=3)
    watch = await watch_on(database, bus)

    def late() -> None:
        watch.clock.advance(30)
        raise TimeoutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connection", late)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await watch.notifier.run_once()
    await watch.notifier.run_once()
    await database.close()
    assert watch.told == []


async def test_without_valkey_every_process_notifies_the_outage_of_postgres(database_url: str) -> None:
    database = await store_database.connect(database_url, pool_size=3)
    away = bus_connection.connect("redis://127.0.0.1:1", Keys())
    watch = await watch_on(database, away)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connection", _away)
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await watch.notifier.run_once()
            watch.clock.advance(6)
    await watch.notifier.run_once()
    await watch.notifier.run_once()
    await database.close()
    await away.close()
    assert [each.type for each in watch.told] == ["alarm.raised", "alarm.cleared"]


def _away() -> None:
    raise ConnectionRefusedError


async def test_an_alarm_name_of_a_newer_version_is_left_open(watch: Watch) -> None:
    async with watch.database.transaction() as tx:
        await alarms.raise_alarm(tx, "of_the_future", "", severity="page", detail={}, tenant=PLATFORM)
    assert await watch.look() == {("of_the_future", "")}
    assert await watch.pass_time(100, every_s=50) == {("of_the_future", "")}
