"""Postgres' clock is set forward or back while workers run: no mailbox waits for the length of the jump."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.mailbox.world import MailboxWorld, Recorder, event, mailbox_world, running
from tests.support.store.server_clock import jump, make_settable
from tests.support.waiting import eventually
from trunkline.mailbox.worker import MailboxWorker

AN_HOUR_S = 3600.0


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    await make_settable(database_url)
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        yield world


def worker(world: MailboxWorld, handler: Recorder, **limits: Any) -> MailboxWorker:
    return world.worker(handler, **{"sweep_s": 0.05, "batch_max": 1, **limits})


async def test_a_clock_that_is_set_back_parks_no_mailbox(world: MailboxWorld, database_url: str) -> None:
    handler = Recorder()
    let_go = handler.hold("first")
    async with running(worker(world, handler, concurrency=1)):
        await world.append(event("first"))
        await handler.until(lambda: handler.seen("first") == ["1"])
        await world.append(event("waiting"))
        await jump(database_url, -AN_HOUR_S)
        let_go()
        await handler.until(lambda: handler.seen("waiting") == ["1"])


async def test_a_clock_that_is_set_back_prolongs_no_lease_of_a_dead_worker(
    world: MailboxWorld, database_url: str
) -> None:
    await world.append(event("a"))
    await world.claim(worker="gone", lease_s=1.0)
    handler = Recorder()
    async with running(worker(world, handler, lease_s=1.0)):
        await world.append(event("b"))
        await handler.until(lambda: handler.seen("b") == ["1"])
        await jump(database_url, -AN_HOUR_S)
        await handler.until(lambda: handler.seen("a") == ["1"])


async def test_a_clock_that_is_set_forward_takes_nothing_from_a_live_worker(
    world: MailboxWorld, database_url: str
) -> None:
    handler = Recorder()
    let_go = handler.hold("a")
    async with running(worker(world, handler, lease_s=3.0), worker(world, handler, lease_s=3.0)):
        await world.append(event("a"))
        await handler.until(lambda: handler.seen("a") == ["1"])
        await jump(database_url, AN_HOUR_S)
        await eventually(lambda: world.value("SELECT claimable_at > clock_timestamp() FROM mailboxes"))
        let_go()
        await eventually(lambda: is_idle(world))
    assert handler.given == [{"a": ["1"]}]


async def test_a_clock_that_is_set_forward_hides_no_mailbox_of_a_dead_worker(
    world: MailboxWorld, database_url: str
) -> None:
    """Its lease was over before. One that the jump alone ended is its owner's to renew."""
    handler = Recorder()
    sweeping = worker(world, handler, sweep_s=60.0)
    await sweeping.drain()
    await world.append(event("dead"), event("alive"))
    await world.claim(["dead"], worker="gone", lease_s=0.0)
    await world.claim(["alive"], worker="other", lease_s=60.0)
    await jump(database_url, AN_HOUR_S)
    await sweeping.drain()
    assert handler.given == [{"dead": ["1"]}]
    assert await world.value("SELECT locked_by FROM mailboxes WHERE key = 'alive'") == "other"


async def is_idle(world: MailboxWorld) -> bool:
    return await world.status("a") == "idle"
