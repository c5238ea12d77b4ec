"""Slots that nothing needs any more are ended, freed in Valkey, and alarmed about where a fault left them."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.router.addresses import READS_PER_FULL_READ, PodAddresses
from trunkline.router.slots import SlotCheck, SlotReleaser
from trunkline.routing import ClusterPod, PodHeartbeat, RegisteredPod
from trunkline.store import allocations, pods
from trunkline.store.allocations import Address
from trunkline.value import replace


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


class Freed(SlotReleaser):
    def __init__(self) -> None:
        super().__init__(cast(Any, None), tombstone_s=600)
        self.ids: list[UUID] = []

    async def release(self, attempt_ids: Sequence[UUID]) -> None:
        self.ids.extend(attempt_ids)


async def alarms(dialing: Dialing) -> list[str]:
    rows = await dialing.database.pool.fetch("SELECT name FROM alarms WHERE cleared_at IS NULL")
    return [row["name"] for row in rows]


async def test_an_in_doubt_attempt_that_cannot_ring_frees_its_slot_without_an_alarm(dialing: Dialing) -> None:
    freed = Freed()
    check = SlotCheck(dialing.database, freed, doubt_s=60)
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
    assert await check.run_once() == 0
    await dialing.run("UPDATE attempts SET send_at = send_at - interval '61 seconds'")
    assert await check.run_once() == 1
    assert (freed.ids, await alarms(dialing)) == ([attempt], [])


async def test_a_slot_without_an_attempt_is_freed_with_an_alarm(dialing: Dialing) -> None:
    freed = Freed()
    check = SlotCheck(dialing.database, freed, doubt_s=60)
    attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"))
    await dialing.run("DELETE FROM attempts")
    await dialing.run("UPDATE allocations SET asked_at = asked_at - interval '1 minute'")
    assert await check.run_once() == 1
    assert (freed.ids, await alarms(dialing)) == ([attempt], ["stray_slots"])


async def test_pod_addresses_are_read_incrementally(dialing: Dialing) -> None:
    addresses = PodAddresses(dialing.database)
    first = await dialing.pod("va-0")
    assert (await addresses.run_once(), await addresses.run_once()) == (1, 0)
    await dialing.run(
        "UPDATE pods SET incarnation = nextval('pod_incarnations'), base_url = 'ws://elsewhere'"
    )
    assert await addresses.run_once() == 1
    newest: int = await dialing.value("SELECT incarnation FROM pods")
    old, new = addresses.by_incarnation.get(first.incarnation), addresses.by_incarnation.get(newest)
    assert old is not None
    assert new is not None
    assert (old.base_url, new.base_url) == ("ws://va-0.example.com", "ws://elsewhere")
    assert addresses.by_incarnation.get(newest + 1) is None
    assert (addresses.by_pod.get("va-0"), addresses.by_pod.get("va-9")) == (new, None)


async def test_a_pod_address_committed_after_a_later_one_is_read(dialing: Dialing) -> None:
    addresses = PodAddresses(dialing.database)
    await dialing.pod("va-0")
    await dialing.pod("va-1")
    await addresses.run_once()
    restart = (
        "UPDATE pods SET incarnation = nextval('pod_incarnations'), base_url = 'ws://new' WHERE name = $1"
    )
    first = await dialing.open_transaction()
    await first.execute(restart, "va-0")
    await dialing.run(restart, "va-1")
    assert await addresses.run_once() == 1
    await dialing.commit(first)

    assert await addresses.run_once() == 1
    number: int = await dialing.value("SELECT incarnation FROM pods WHERE name = 'va-0'")
    assert (
        addresses.by_incarnation.get(number)
        == addresses.by_pod.get("va-0")
        == Address(number, "va-0", "ws://new", interval_s=5.0)
    )


async def test_a_pod_address_reported_by_a_later_heartbeat_is_read(dialing: Dialing) -> None:
    """As of a pod that the cluster shows before its first heartbeat."""
    addresses = PodAddresses(dialing.database)
    async with dialing.database.transaction() as tx:
        await pods.see(tx, [ClusterPod("va-0", "uid-0", True, False, "10.0.0.7", 8080, "")], [])
    await addresses.run_once()
    said = PodHeartbeat("va-0", "boot-1", 1, "10.0.0.7", 8080, "", "wss://va-0.example.com", interval_s=5.0)
    async with dialing.database.transaction() as tx:
        known = await pods.register(tx, said, [], may_insert=False)
    assert isinstance(known, RegisteredPod)

    assert await addresses.run_once() == 1
    found = addresses.by_incarnation.get(known.incarnation)
    assert found is not None
    assert found.base_url == "wss://va-0.example.com"
    async with dialing.database.connection() as conn:
        await pods.write_beats(conn, [(replace(said, sequence=2, port=8081), known.incarnation)])
        await pods.write_beats(conn, [(replace(said, sequence=3, port=8081), known.incarnation)])
    assert (await addresses.run_once(), await addresses.run_once()) == (1, 0)


async def test_how_often_a_pod_speaks_is_known_once_it_speaks(dialing: Dialing) -> None:
    addresses = PodAddresses(dialing.database)
    async with dialing.database.transaction() as tx:
        await pods.see(tx, [ClusterPod("va-0", "uid-0", True, False, "10.0.0.7", 8080, "")], [])
    await addresses.run_once()
    shown = addresses.by_pod.get("va-0")
    assert shown is not None
    assert shown.interval_s is None
    said = PodHeartbeat("va-0", "boot-1", 1, "10.0.0.7", 8080, "", "wss://va-0.example.com")
    async with dialing.database.transaction() as tx:
        await pods.register(tx, said, [], may_insert=False)
    await addresses.run_once()
    heard = addresses.by_pod.get("va-0")
    assert heard is not None
    assert heard.interval_s == 30.0


async def test_all_pod_addresses_are_read_again_once_a_minute(dialing: Dialing) -> None:
    """A server that counts its transactions from an earlier one hides what changes until then."""
    addresses = PodAddresses(dialing.database)
    await dialing.pod("va-0")
    await addresses.run_once()
    await dialing.run("ALTER TABLE pods DISABLE TRIGGER pods_note_address")
    await dialing.run("UPDATE pods SET base_url = 'ws://elsewhere'")

    found = [await addresses.run_once() for _ in range(READS_PER_FULL_READ)]
    assert found == [0] * (READS_PER_FULL_READ - 1) + [1]
    assert await addresses.run_once() == 0


async def test_a_row_with_a_future_transaction_id_is_read_once(dialing: Dialing) -> None:
    await dialing.pod("va-0")
    await dialing.run("UPDATE pods SET addressed_xid = '9223372036854775807'")
    async with dialing.database.connection() as conn:
        first = await allocations.addresses(conn)
        again = await allocations.addresses(conn, first.seen)
    assert (len(first.found), list(again.found)) == (1, [])


async def test_a_pod_that_takes_no_stream_raises_an_alarm_with_its_name(dialing: Dialing) -> None:
    await dialing.pod("broken-0")
    await dialing.run("UPDATE pods SET missed = 2, missed_at = clock_timestamp()")
    await dialing.pod("va-0")
    await SlotCheck(dialing.database, Freed(), doubt_s=60).run_once()
    rows = await dialing.database.pool.fetch("SELECT name, subject FROM alarms WHERE cleared_at IS NULL")
    assert [tuple(row) for row in rows] == [("pod_takes_no_stream", "broken-0")]
