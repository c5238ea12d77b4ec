"""One key of Valkey is gone (evicted, or deleted by hand), and no epoch tells of it: the loops find and mend it."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.bus import epoch, schedule
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.model import Flow, new_id

FLOW = Flow("p", "r", "m")
PARKED = Flow("p", "r", "n")
# What is only a hint of the past, and comes back by itself: the fairness of turns already taken, the clock.
HINTS = ("virtual", "peers:p", "finish:p", "offset")


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def busy(stage: Stage) -> UUID:
    """A call, leads that wait, one that is due later, a flow that is set aside, a number that rests; the attempt."""
    dialing = stage.dialing
    await dialing.run("INSERT INTO pools (id, reseller_id, name) VALUES ('q', 'r', 'q')")
    await dialing.run("UPDATE pools SET overflow_pool_id = 'q', overflow_after_s = 600 WHERE id = 'p'")
    await dialing.run("UPDATE merchants SET max_concurrent = 9 WHERE id = 'm'")
    await stage.reconciler.run_once()
    called = await dialing.lead()
    assert await stage.dial() == 1
    aside = await dialing.lead(merchant="n")
    await stage.loader.run_once()
    far_ms = 2**42
    (grant,) = (await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)).grants
    assert grant.lead_id == aside
    await schedule.give_back(stage.bus, [GiveBack(grant.attempt_id, GrantReturn.PARK, far_ms)])
    resting = await dialing.add_number()
    await stage.reconciler.run_once()
    await stage.bus.client.zadd(f"{stage.bus.projection}resting", {str(resting): far_ms})
    await dialing.leads(2)
    await dialing.lead(due_in_s=600)
    await reconcile(stage)
    attempt: UUID = (await stage.attempt(called))["id"]
    return attempt


async def reconcile(stage: Stage) -> None:
    """One round of each loop."""
    for loop in (stage.rebuilder, stage.reconciler, stage.loader, stage.refiller):
        await loop.run_once()


async def memory(stage: Stage) -> dict[str, Any]:
    """Everything that is known here, by key; of turns only whose they are."""
    await epoch.ensure(stage.bus)
    found: dict[str, Any] = {}
    client: Any = stage.bus.client
    async for key in client.scan_iter(match=f"{stage.bus.projection}*"):
        name = key.removeprefix(stage.bus.projection)
        match await client.type(key):
            case "hash":
                found[name] = {
                    field: _lasting(name, value) for field, value in (await client.hgetall(key)).items()
                }
            case "set":
                found[name] = await client.smembers(key)
            case "zset":
                scores = dict(await client.zrange(key, 0, -1, withscores=True))
                found[name] = set(scores) if name in ("active:p", "pools", "moves") else scores
    return {name: value for name, value in found.items() if name not in HINTS}


def _lasting(name: str, value: str) -> str:
    """Without moments that begin anew: since when a channel is held, until when a lead waits for its own pool."""
    parts = value.split("|")
    return "|".join(parts[:4] if name == "holders" else parts[:8] if name == "leads" else parts)


KEYS = [
    "leads", "holders", "numbers", "live", "caps", "due", "pools", "parked", "resting", "moves",
    "active:p", "free:p", "account:twilio/default", f"flow:{FLOW}:s", f"flow:{FLOW}:w", f"flow:{PARKED}:w",
    "channels:{number}",
]  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
async def test_a_lost_key_is_restored_by_one_reconcile(stage: Stage, name: str) -> None:
    attempt = await busy(stage)
    called = str(await stage.dialing.value("SELECT lead_id FROM attempts"))
    before = await memory(stage)
    key = name.format(number=stage.dialing.number)
    assert await stage.bus.client.delete(f"{stage.bus.projection}{key}") == 1, (
        f"nothing was there under {key}"
    )
    await reconcile(stage)
    after = await memory(stage)
    if name in ("parked", "resting"):
        # Until when is not known any more: it is tried again, and set aside again if it must be.
        assert str(PARKED) in after["active:p"] or name == "resting"
    else:
        if name == "leads":
            del before["leads"][called]  # nobody asks for the record of a lead that is being called
        assert after == before
    # And what follows from it goes on: the call ends, everybody who is due is called.
    await stage.told(attempt, "ended")
    assert await stage.held() == set()
    due = await stage.dialing.value("SELECT count(*) FROM leads WHERE status = 'BACKLOG' AND due_at <= now()")
    sent = await stage.dial()
    assert sent == due - (name != "parked"), "all but the one that is set aside"


async def test_a_grant_is_not_lost_with_the_holders_key(stage: Stage) -> None:
    """A dialer died with a grant, and then the key that names its holder was lost."""
    lead = await stage.dialing.lead()
    await stage.loader.run_once()
    (grant,) = (await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)).grants
    await stage.bus.client.delete(
        f"{stage.bus.projection}holders", f"{stage.bus.projection}channels:{grant.number_id}"
    )
    await reconcile(stage)
    assert await stage.dial() == 1
    assert (await stage.lead(lead))["status"] == "PROCESSING"


async def test_leads_are_granted_after_their_records_key_was_lost(stage: Stage) -> None:
    await stage.dialing.leads(3)
    await stage.loader.run_once()
    await stage.bus.client.delete(f"{stage.bus.projection}leads")
    assert (await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)).grants == ()
    assert await stage.dial() == 3


async def test_a_new_flow_after_the_virtual_time_was_lost_does_not_take_every_turn(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = 40")
    await stage.reconciler.run_once()
    await stage.dialing.leads(30)
    assert await stage.dial(stage.another_dialer(batch_max=10)) == 10
    await stage.bus.client.delete(f"{stage.bus.projection}virtual")
    await stage.dialing.leads(10, merchant="n")
    await stage.loader.run_once()
    grants = (await schedule.match(stage.bus, [new_id() for _ in range(10)], clock_offset_ms=0)).grants
    assert sorted(grant.merchant_id for grant in grants) == ["m"] * 5 + ["n"] * 5
