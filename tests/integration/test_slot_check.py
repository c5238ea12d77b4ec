"""Slots that nothing needs any more are ended, told of where nothing should have left them, and freed in Valkey."""

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.router.addresses import PodAddresses
from trunkline.router.slot_check import SlotCheck


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


class Freed(list[UUID]):
    async def free(self, attempt_ids: Sequence[UUID]) -> None:
        self.extend(attempt_ids)


async def alarms(dialing: Dialing) -> list[str]:
    rows = await dialing.database.pool.fetch("SELECT name FROM alarms WHERE cleared_at IS NULL")
    return [row["name"] for row in rows]


async def test_a_doubt_that_cannot_ring_any_more_frees_its_slot_and_alarms_nobody(dialing: Dialing) -> None:
    freed = Freed()
    check = SlotCheck(dialing.database, freed.free, doubt_s=60, tombstone_s=600)
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    assert await check.run_once() == 0
    await dialing.run("UPDATE attempts SET send_at = send_at - interval '61 seconds'")
    assert await check.run_once() == 1
    assert (freed, await alarms(dialing)) == ([attempt], [])


async def test_a_slot_without_an_attempt_is_a_fault_that_is_told(dialing: Dialing) -> None:
    freed = Freed()
    check = SlotCheck(dialing.database, freed.free, doubt_s=60, tombstone_s=600)
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    await dialing.run("DELETE FROM attempts")
    await dialing.run("UPDATE allocations SET asked_at = asked_at - interval '1 minute'")
    assert await check.run_once() == 1
    assert (freed, await alarms(dialing)) == ([attempt], ["stray_slots"])


async def test_addresses_of_pods_are_learnt_by_difference(dialing: Dialing) -> None:
    addresses = PodAddresses(dialing.database)
    first = await dialing.pod("va-0")
    assert (await addresses.run_once(), await addresses.run_once()) == (1, 0)
    await dialing.run(
        "UPDATE pods SET incarnation = nextval('pod_incarnations'), base_url = 'ws://elsewhere'"
    )
    assert await addresses.run_once() == 1
    newest: int = await dialing.value("SELECT incarnation FROM pods")
    old, new = addresses.find(first.incarnation), addresses.find(newest)
    assert old is not None
    assert new is not None
    assert (old.base_url, new.base_url) == ("ws://va-0.example.com", "ws://elsewhere")
    assert addresses.find(newest + 1) is None
    assert (addresses.of_pod("va-0"), addresses.of_pod("va-9")) == (new, None)


async def test_a_pod_that_takes_no_stream_alarms_by_its_name(dialing: Dialing) -> None:
    await dialing.pod("broken-0")
    await dialing.run("UPDATE pods SET missed = 2, missed_at = clock_timestamp()")
    await dialing.pod("va-0")
    await SlotCheck(dialing.database, Freed().free, doubt_s=60, tombstone_s=600).run_once()
    rows = await dialing.database.pool.fetch("SELECT name, subject FROM alarms WHERE cleared_at IS NULL")
    assert [tuple(row) for row in rows] == [("pod_takes_no_stream", "broken-0")]
