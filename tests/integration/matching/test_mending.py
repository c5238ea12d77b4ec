"""What is put right where a key was lost, script by script."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, PAST, entry, match, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.connection import Bus
from trunkline.model import Flow, Holder

FLOW = Flow("p", "r", "m")


def later() -> datetime:
    """From now, not from the import: a suite runs for longer than that."""
    return datetime.now(UTC) + timedelta(minutes=10)


@pytest.mark.parametrize("key", ["due", "active:p", "pools"])
async def test_mend_restores_the_keys_derived_from_a_flows_queues(bus: Bus, key: str) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry(), entry(due_at=later())])
    assert await schedule.mend(bus, [str(FLOW)]) == 0
    assert await bus.client.delete(f"{bus.projection}{key}") == 1
    assert await schedule.mend(bus, [str(FLOW)]) == 1
    assert len(await match(bus)) == 1


@pytest.mark.parametrize("place", ["s", "w"])
async def test_leads_whose_queue_key_was_lost_are_found_missing_and_added_again(bus: Bus, place: str) -> None:
    entries = [entry(due_at=later() if place == "s" else PAST) for _ in range(3)]
    await schedule.add(bus, entries)
    assert (await schedule.compare(bus, entries)).missing == []
    await bus.client.delete(f"{bus.projection}flow:{FLOW}:{place}")
    assert (await schedule.compare(bus, entries)).missing == entries
    assert await schedule.add(bus, entries) == 3
    assert (await schedule.compare(bus, entries)).missing == []


async def test_mend_restores_the_keys_derived_from_numbers_and_holders(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    held, calls = await channels.holders_and_calls(bus)
    assert calls == channels.calls_of(held) == {"m/m": 1, "c/m/": 1}
    assert await channels.mend(bus, [NUMBER], held, recounts=True) == 0
    for key in (f"channels:{NUMBER}", "free:p", "live"):
        await bus.client.delete(f"{bus.projection}{key}")
        assert await channels.mend(bus, [NUMBER], held, recounts=True) >= 1
        assert await channels.mend(bus, [NUMBER], held, recounts=True) == 0
    assert await channels.release(bus, [grant.attempt_id]) == 1
    assert await channels.holders_and_calls(bus) == ([], {})


async def test_mend_gives_no_channel_to_an_attempt_that_no_longer_holds_one(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await channels.mend(bus, [NUMBER], [Holder(uuid4(), NUMBER, 1)])
    assert await bus.client.hlen(f"{bus.projection}channels:{NUMBER}") == 0
