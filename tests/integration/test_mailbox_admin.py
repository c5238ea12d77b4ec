"""What people ask of mailboxes and do to them, and what age does."""

import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.mailbox.world import KIND, MailboxWorld, Recorder, event, mailbox_world, names
from trunkline.mailbox.handler import Done
from trunkline.mailbox.maintenance import MailboxGauges, MailboxRetention
from trunkline.mailbox.processing import FailureRule
from trunkline.states import MailboxStatus
from trunkline.store import mailbox_admin
from trunkline.store.mailboxes import Parked
from trunkline.telemetry import metrics

DAY_S = 86_400
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "mailboxes.md"


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        yield world


async def kill(world: MailboxWorld, *keys: str) -> None:
    handler = Recorder(poison=set(keys))
    await world.append(*(event(key) for key in keys))
    await world.worker(handler, failure=FailureRule(failures_max=1)).drain()


async def test_the_summary_counts_what_is_not_idle(world: MailboxWorld) -> None:
    await kill(world, "dead")
    await world.append(event("done"))
    await world.worker(Recorder()).drain()
    await world.append(event("in hand"), event("in hand", "2"))
    await world.claim()
    await world.append(event("waits"), event("waits", "2"), event("waits", "3"), event("x", kind="other"))
    async with world.database.connection() as conn:
        found = await mailbox_admin.summary(conn)
    assert [(s.kind, s.status, s.mailboxes, s.events) for s in found] == [
        ("other", "queued", 1, 1),
        (KIND, "dead", 1, 1),
        (KIND, "processing", 1, 2),
        (KIND, "queued", 1, 3),
    ]


async def test_the_pages_sql_shows_backlog_stuck_pending_and_dead_mailboxes(world: MailboxWorld) -> None:
    """Backlog, stuck, unprocessed events per mailbox, dead: for whoever has nothing but psql."""
    block = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    backlog, stuck, pending, dead = re.findall(r"SELECT.*?;", block, re.DOTALL)
    await kill(world, "dead")
    await world.append(event("in hand"), event("in hand", "2"))
    await world.claim()
    await world.append(event("waits"))
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE mailboxes SET processing_started_at = now() - interval '11 minutes' WHERE key = 'in hand'"
        )
        assert [tuple(row) for row in await conn.fetch(backlog)] == [(KIND, 2)]
        assert [row["key"] for row in await conn.fetch(stuck)] == ["in hand"]
        assert {row["key"]: row["pending"] for row in await conn.fetch(pending)} == {"in hand": 2, "waits": 1}
        assert [row["key"] for row in await conn.fetch(dead)] == ["dead"]


async def test_the_gauges_show_what_postgres_counts_and_drop_what_is_gone(world: MailboxWorld) -> None:
    def gauge(name: str) -> float | None:
        return metrics.REGISTRY.get_sample_value(name, {"kind": KIND, "status": "queued"})

    gauges = MailboxGauges(world.database)
    await world.append(event(), event(name="2"))
    await gauges.run_once()
    assert (gauge("trunkline_mailboxes"), gauge("trunkline_mailbox_events_pending")) == (1, 2)
    assert gauge("trunkline_mailbox_oldest_seconds") is not None
    await world.worker(Recorder()).drain()
    await gauges.run_once()
    assert (gauge("trunkline_mailboxes"), gauge("trunkline_mailbox_events_pending")) == (None, None)


async def test_mailboxes_are_listed_by_kind_and_status_in_pages(world: MailboxWorld) -> None:
    await kill(world, "b", "d")
    await world.append(event("a"), event("c"), event("z", kind="other"))
    async with world.database.connection() as conn:
        every = await mailbox_admin.list_mailboxes(conn, KIND, status=None, after="", limit=3)
        rest = await mailbox_admin.list_mailboxes(conn, KIND, status=None, after="c", limit=3)
        dead = await mailbox_admin.list_mailboxes(conn, KIND, status=MailboxStatus.DEAD, after="", limit=9)
    assert [m.key for m in every] == ["a", "b", "c"]
    assert [m.key for m in rest] == ["d"]
    assert [(m.key, m.last_error, m.pending) for m in dead] == [
        ("b", "RuntimeError: b is poison", 1),
        ("d", "RuntimeError: d is poison", 1),
    ]


async def test_stuck_lists_mailboxes_in_processing_for_long(world: MailboxWorld) -> None:
    await world.append(event("slow"), event("quick"))
    await world.claim()
    await world.value(
        "UPDATE mailboxes SET processing_started_at = now() - interval '11 minutes' WHERE key = 'slow'"
    )
    async with world.database.connection() as conn:
        found = await mailbox_admin.stuck(conn, in_hand_for_s=600, limit=10)
    assert [(m.key, m.locked_by) for m in found] == [("slow", "w1")]


async def test_a_dead_mailbox_is_replayed_with_everything_that_came_meanwhile(world: MailboxWorld) -> None:
    await kill(world, "a", "b")
    await world.append(event("a", "2"))
    async with world.database.connection() as conn:
        assert await mailbox_admin.replay(conn, KIND, "a") == ["a"]
        assert await mailbox_admin.replay(conn, KIND, "a") == []
    handler = Recorder()
    await world.worker(handler).drain()
    assert handler.given == [{"a": ["1", "2"]}]
    assert await world.status("b") == "dead"


async def test_all_dead_mailboxes_of_a_kind_are_replayed(world: MailboxWorld) -> None:
    await kill(world, "a", "b", "c")
    async with world.database.connection() as conn:
        assert await mailbox_admin.replay(conn, KIND, limit=2) == ["a", "b"]
        assert await mailbox_admin.replay(conn, KIND) == ["c"]


async def test_a_replayed_event_is_handled_after_the_turn_in_progress(world: MailboxWorld) -> None:
    """Replayed while its mailbox is in hand: the completion must not take it for done."""
    await world.append(event(name="1"), event(name="2"))

    class Parks(Recorder):
        async def handle(self, batch: object) -> Done:
            return Done(parked=[Parked("a", 1, "unreadable")])

    await world.worker(Parks()).drain()
    await world.append(event(name="3"))
    [claim] = await world.claim()
    async with world.database.transaction() as tx:
        assert await mailbox_admin.replay_event(tx, KIND, "a", 1) == 4
        assert await mailbox_admin.replay_event(tx, KIND, "a", 2) is None
    assert names([claim]) == ["3"]
    assert await world.complete(claim) == {"a": "queued"}
    assert names(await world.claim()) == ["1"]


async def test_events_are_listed_by_what_became_of_them(world: MailboxWorld) -> None:
    await world.append(event(name="1"), event(name="2"))
    await world.worker(Recorder()).drain()
    await world.append(event(name="3"), event(name="4"))
    async with world.database.connection() as conn:
        assert await mailbox_admin.set_aside(conn, KIND, "a", 3, "by hand")
        assert not await mailbox_admin.set_aside(conn, KIND, "a", 1, "too late")
        seqs = {}
        for which in ("all", "unprocessed", "parked"):
            found = await mailbox_admin.list_events(conn, KIND, "a", which=which, after=0, limit=9)
            seqs[which] = [stored.seq for stored in found]
        one = await mailbox_admin.get_event(conn, KIND, "a", 3)
    assert seqs == {"all": [1, 2, 3, 4], "unprocessed": [4], "parked": [3]}
    assert one is not None
    assert asdict(one)["error"] == "by hand"


# Retention


async def age(world: MailboxWorld, days: int) -> None:
    await world.value(
        """UPDATE mailbox_events SET created_at = created_at - make_interval(days => $1),
                                     processed_at = processed_at - make_interval(days => $1)""",
        days,
    )
    await world.value(
        "UPDATE mailboxes SET last_processed_at = last_processed_at - make_interval(days => $1)", days
    )


async def test_retention_removes_old_processed_events_and_their_mailboxes(world: MailboxWorld) -> None:
    await world.append(event("old"))
    await world.worker(Recorder()).drain()
    await age(world, 8)
    await world.append(event("new"))
    await world.worker(Recorder()).drain()
    retention = MailboxRetention(world.database, keep_s=7 * DAY_S)
    assert await retention.run_once() == 2
    assert [row["key"] for row in await world.rows("SELECT key FROM mailboxes")] == ["new"]
    assert await retention.run_once() == 0


async def test_retention_keeps_unprocessed_events_of_any_age(world: MailboxWorld) -> None:
    await kill(world, "dead")
    await world.append(event("waits"))
    await age(world, 100)
    assert await MailboxRetention(world.database, keep_s=DAY_S).run_once() == 0


async def test_retention_counts_from_the_processing_of_an_event(
    world: MailboxWorld,
) -> None:
    await world.append(event("a"))
    await age(world, 100)
    await world.worker(Recorder()).drain()
    assert await MailboxRetention(world.database, keep_s=DAY_S).run_once() == 0


async def test_retention_skips_dead_mailboxes_and_continues_behind_them(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.mailbox.maintenance.CHUNK", 2)
    await kill(world, "dead")
    await world.append(*(event(str(n)) for n in range(7)))
    await world.worker(Recorder()).drain()
    await age(world, 100)
    assert await MailboxRetention(world.database, keep_s=DAY_S).run_once() == 14
    assert [row["key"] for row in await world.rows("SELECT key FROM mailboxes")] == ["dead"]


async def test_retention_removes_only_the_old_events_of_a_long_lived_mailbox(world: MailboxWorld) -> None:
    await world.append(event(name="1"))
    await world.worker(Recorder()).drain()
    await age(world, 100)
    await world.append(event(name="2"))
    await world.worker(Recorder()).drain()
    assert await MailboxRetention(world.database, keep_s=DAY_S).run_once() == 1
    [receipt] = await world.append(event(name="3"))
    assert receipt.seq == 3
