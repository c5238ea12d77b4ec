"""Workers are killed and stopped, Postgres dies, Valkey loses its data: no event is lost, none takes effect twice."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from tests.support.crashpoints import run_until_crash
from tests.support.mailbox.process import (
    HELD,
    HELD_AT_WRITE,
    KINDS,
    LEDGER,
    command,
    mailbox_process,
    some_events,
)
from tests.support.mailbox.world import MailboxWorld, mailbox_world
from tests.support.store.server_clock import jump, make_settable
from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.embedded.server import Server
from trunkline.errors import StoreUnavailable
from trunkline.store.mailboxes import NewEvent
from trunkline.store.migrate import migrate

# Processes are started and engines come back: on a busy machine that takes its time.
soon = partial(eventually, timeout_s=40)


@dataclass(frozen=True)
class Scene:
    world: MailboxWorld
    # What a process needs to find it.
    place: tuple[str, str, str]

    async def effects(self) -> int:
        return int(await self.world.value("SELECT count(*) FROM effects"))

    async def settled(self, count: int) -> None:
        """So many events of each kind took effect, once each."""

        async def is_settled() -> bool:
            return bool(
                await self.world.value(
                    """SELECT (SELECT count(*) FROM mailbox_events WHERE processed_at IS NOT NULL) = $1
                       AND NOT EXISTS (SELECT FROM mailboxes WHERE processing_status <> 'idle')""",
                    count * len(KINDS),
                )
            )

        await soon(is_settled, what=f"{count} events of each kind are done")
        doubled = await self.world.rows("SELECT kind, name FROM effects GROUP BY 1, 2 HAVING count(*) > 1")
        assert doubled == []
        assert await self.effects() == count * len(KINDS)


@asynccontextmanager
async def open_scene(database_url: str, redis_url: str, prefix: str) -> AsyncIterator[Scene]:
    async with mailbox_world(database_url, redis_url, prefix) as world:
        await world.database.pool.execute(LEDGER)
        yield Scene(world, (database_url, redis_url, prefix))


@pytest.fixture
async def scene(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Scene]:
    async with open_scene(database_url, redis_url, key_prefix) as scene:
        yield scene


@pytest.mark.parametrize(
    "point",
    ["mailbox.after_claim", "mailbox.before_write", "mailbox.before_commit", "mailbox.after_commit"],
)
async def test_a_mailbox_worker_that_crashes_loses_and_repeats_no_event(scene: Scene, point: str) -> None:
    await scene.world.append(*some_events(60))
    await run_until_crash(command("work", scene.place, 1.0), point, nth=3)
    async with mailbox_process(scene.place):
        await scene.settled(60)


async def test_a_mailbox_worker_that_crashes_before_its_commit_has_no_effect(scene: Scene) -> None:
    await scene.world.append(*some_events(15))
    await run_until_crash(command("work", scene.place, 60.0), "mailbox.before_commit")
    assert await scene.world.value("SELECT count(*) FROM begun") > 0
    assert await scene.effects() == 0
    assert await scene.world.value("SELECT count(*) FROM mailbox_events WHERE processed_at IS NOT NULL") == 0


async def test_an_event_sent_again_after_a_crash_past_its_commit_is_stored_once(scene: Scene) -> None:
    """It got no reply, so it cannot know that its event is durable."""
    await run_until_crash(command("send", scene.place, 20), "inbox.after_commit", nth=15)
    assert await scene.world.value("SELECT count(*) FROM mailbox_events") == 15
    sender = await asyncio.create_subprocess_exec(*command("send", scene.place, 20))
    assert await sender.wait() == 0
    assert await scene.world.value("SELECT count(*) FROM mailbox_events") == 20 * len(KINDS)
    async with mailbox_process(scene.place):
        await scene.settled(20)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_mailbox_worker_continued_past_its_lease_writes_nothing(scene: Scene, kind: str) -> None:
    """It comes back while its successor has the mailbox in hand, and commits what it had begun to write: the mailbox is
    being processed, and nothing but the fence says that it is not by this one."""
    held = NewEvent(kind, HELD_AT_WRITE, "1", "happened", {"name": "1"})
    await scene.world.append(held)
    async with mailbox_process(scene.place, lease_s=4.0) as stopped:
        await soon(lambda: scene.world.value("SELECT count(*) = 1 FROM begun"))
        stopped.send_signal(signal.SIGSTOP)
        async with mailbox_process(scene.place, lease_s=60.0) as successor:
            await soon(lambda: scene.world.value("SELECT count(*) = 2 FROM begun"))
            successor.send_signal(signal.SIGSTOP)
            await scene.world.value("INSERT INTO gates VALUES ($1)", HELD_AT_WRITE)
            stopped.send_signal(signal.SIGCONT)
            # What it does next shows that it came past the mailbox that it had lost.
            await scene.world.append(NewEvent(kind, "next", "2", "happened", {"name": "2"}))
            await soon(lambda: scene.world.value("SELECT count(*) FROM effects WHERE name = '2'"))
            stopped.send_signal(signal.SIGTERM)
            await stopped.wait()
            assert await scene.world.status(HELD_AT_WRITE, kind) == "processing"
            assert await scene.world.value("SELECT count(*) FROM effects WHERE name = '1'") == 0
            successor.send_signal(signal.SIGCONT)
            await soon(lambda: scene.world.value("SELECT count(*) FROM effects WHERE name = '1'"))
    rows = await scene.world.rows("SELECT name, pid FROM effects ORDER BY name")
    assert [tuple(row) for row in rows] == [("1", successor.pid), ("2", stopped.pid)]


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_event_takes_effect_once_through_a_random_mix_of_faults(scene: Scene, seed: int) -> None:
    chance, sent = random.Random(seed), 0
    for _ in range(4):
        sent += 100
        await scene.world.inbox.append_all(some_events(sent))
        async with mailbox_process(scene.place) as victim, mailbox_process(scene.place):
            await some_effects(scene, sent)
            await inflict(scene, victim, chance.choice(["kill", "stop", "cut", "term"]))
    async with mailbox_process(scene.place), mailbox_process(scene.place):
        await scene.settled(sent)


async def some_effects(scene: Scene, sent: int) -> None:
    """Until something more took effect, or nothing is left."""
    before = await scene.effects()
    await soon(
        lambda: scene.world.value(
            "SELECT count(*) > $1 OR count(*) >= $2 FROM effects", before, sent * len(KINDS)
        )
    )


async def inflict(scene: Scene, victim: asyncio.subprocess.Process, fault: str) -> None:
    match fault:
        case "kill":
            victim.kill()
        case "term":
            victim.send_signal(signal.SIGTERM)
        case "stop":
            victim.send_signal(signal.SIGSTOP)
            await soon(
                lambda: scene.world.value(
                    "SELECT count(*) = 0 FROM mailboxes WHERE processing_status = 'processing' AND claimable_at < now()"
                )
            )
            victim.send_signal(signal.SIGCONT)
        case "cut":
            await scene.world.value(
                """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()"""
            )


async def append_through_anything(scene: Scene, events: Sequence[NewEvent]) -> None:
    """As a sender of webhooks does: again, until it is told that it is kept."""
    for start in range(0, len(events), 20):
        some = events[start : start + 20]
        await soon(lambda some=some: _is_appended(scene, some))


async def _is_appended(scene: Scene, events: Sequence[NewEvent]) -> bool:
    try:
        await scene.world.inbox.append_all(events)
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("fault", ["valkey forgets", "valkey dies", "postgres stops", "postgres dies"])
async def test_no_event_is_lost_when_an_engine_fails_under_load(
    private_engines: Engines, key_prefix: str, fault: str
) -> None:
    await migrate(private_engines.database_url)
    place = private_engines.database_url, private_engines.redis_url, key_prefix
    async with open_scene(*place) as scene, mailbox_process(place, lease_s=2.0):
        sending = asyncio.create_task(append_through_anything(scene, some_events(300)))
        await soon(lambda: scene.world.value("SELECT count(*) > 20 FROM effects"))
        match fault:
            case "valkey forgets":
                await scene.world.bus.client.flushall()
            case "valkey dies":
                await restart(private_engines.valkey, signal.SIGKILL)
            case "postgres stops":
                await restart(private_engines.postgres, signal.SIGINT)
            case _:
                await restart(private_engines.postgres, signal.SIGKILL)
        await sending
        async with mailbox_world(*place) as with_new_connections:
            await Scene(with_new_connections, place).settled(300)


async def restart(server: Server | None, how: signal.Signals) -> None:
    assert server is not None
    assert server.pid is not None
    os.kill(server.pid, how)
    await server.exited()
    await server.start()


async def test_a_clock_set_back_prolongs_no_mailbox_lease_of_a_killed_process(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    await make_settable(database_url)
    async with open_scene(database_url, redis_url, key_prefix) as scene:
        world = scene.world
        async with mailbox_process(scene.place, lease_s=60.0) as victim:
            await world.append(NewEvent("single", HELD, "1", "happened", {"name": "held"}))
            await soon(lambda: world.value("SELECT count(*) FROM begun"), what="its handler begun")
            victim.kill()
            await victim.wait()
        await world.database.pool.execute("INSERT INTO gates VALUES ($1)", HELD)
        async with mailbox_process(scene.place, lease_s=1.0):
            # It knows the clock as it was once it has swept.
            await world.append(NewEvent("single", "other", "2", "happened", {"name": "other"}))
            await soon(scene.effects)
            await jump(database_url, -3600.0)
            await soon(lambda: world.value("SELECT count(*) FROM effects WHERE key = $1", HELD))
