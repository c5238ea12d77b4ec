"""The journal is compared with what is so at every reconcile, and mended; what looks like a loss is left alone."""

from collections.abc import AsyncIterator

import pytest

from trunkline.bus.router import WaitRule
from trunkline.bus.router_manager import Unnamed
from trunkline.router.config import RouterConfig
from trunkline.router.journal_writer import JournalWriter
from trunkline.router.pods import Heartbeat, Pods
from trunkline.router.streams import StreamKeys
from trunkline.settings.tiers import parse_tiers
from trunkline.store import router as store
from trunkline.testing.managed_router import Managed, open_managed


@pytest.fixture
async def managed(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix) as managed:
        yield managed


async def noted_tiers(managed: Managed) -> dict[str, str]:
    async with managed.database.connection() as conn:
        return await store.tiers(conn)


async def test_a_call_that_a_heartbeat_ended_is_ended_in_the_journal_too(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    await managed.world.beat(pod, ["call-1"])
    await managed.world.beat(pod)
    assert await managed.open_calls() == ["call-1"]

    await managed.pass_by(61)

    assert await managed.open_calls() == []


async def test_a_call_whose_beginning_was_not_noted_is_noted_and_comes_back_busy_after_a_loss(
    managed: Managed,
) -> None:
    await managed.pods(3)
    pod = await managed.world.allocate("call-1")
    await managed.pass_by(61)
    assert await managed.open_calls() == ["call-1"]

    await managed.world.flush()
    await managed.pass_by(1)

    assert await managed.world.allocate("call-1") == pod


async def test_tiers_and_pods_that_differ_are_mended(managed: Managed) -> None:
    pods = await managed.pods(3)
    right = {pod: await managed.world.tier_of(pod) for pod in pods}
    async with managed.database.connection() as conn:
        await store.set_tiers(conn, {"agent-0": "standard", "agent-of-old": "gold"})
        await store.remove_pods(conn, ["agent-1"])
    await managed.pass_by(61)
    assert await noted_tiers(managed) == right


@pytest.mark.parametrize("step", ["note", "tidy"])
@pytest.mark.parametrize("is_other_process", [False, True])
async def test_a_pod_that_speaks_again_while_its_row_is_removed_has_a_row(
    managed: Managed, step: str, is_other_process: bool
) -> None:
    """`note`: it was just removed for its silence. `tidy`: a leader before removed it and died before its note."""
    await managed.pods(3)
    journal = JournalWriter(managed.database) if is_other_process else managed.journal
    assert await journal.tier_of("agent-2")
    memory = managed.manager._memory
    real = getattr(memory, step)

    async def speak_again(*args: object) -> None:
        setattr(memory, step, real)
        await speak(managed, journal)
        if is_other_process:
            await journal.write()
        await real(*args)

    setattr(memory, step, speak_again)
    if step == "note":
        await managed.world.fall_silent("agent-2")
        await managed.pass_by(RouterConfig(tiers={}).expire_interval_s)
    else:
        await remove_without_a_note(managed)
        await managed.pass_by(61)

    assert getattr(memory, step) is not speak_again
    await journal.write()
    assert "agent-2" in await noted_tiers(managed)
    assert await managed.world.tier_of("agent-2")


async def test_a_pod_that_read_its_row_before_that_was_removed_has_a_row(managed: Managed) -> None:
    await managed.pods(3)
    await remove_without_a_note(managed)

    class SlowJournal(JournalWriter):
        async def tier_of(self, pod: str, *, afresh: bool = False) -> str:
            tier = await super().tier_of(pod, afresh=afresh)
            await managed.pass_by(61)
            assert "agent-2" not in await noted_tiers(managed)
            return tier

    journal = SlowJournal(managed.database)
    await speak(managed, journal)
    await journal.write()
    assert "agent-2" in await noted_tiers(managed)


async def speak(managed: Managed, journal: JournalWriter) -> None:
    config = RouterConfig(tiers=parse_tiers("{}"))
    secrets = StreamKeys.from_secrets(["a secret"])
    pods = Pods(managed.world.bus, managed.world.keys, secrets, config, journal)
    await pods.heartbeat(Heartbeat("agent-2", "boot-2", 1, "10.0.0.1", 8080))


async def remove_without_a_note(managed: Managed) -> None:
    """As a leader does that dies right after it."""
    term = managed.manager._term
    assert term is not None, "it leads"
    await term.remove("agent-2")


async def test_a_memory_that_is_being_deleted_is_not_taken_for_the_end_of_every_call(
    managed: Managed,
) -> None:
    """As the full reset of the operations sheet: key by key, the epoch's own among the last."""
    await managed.world.begin('{"standard": {"target": 1}}')
    await managed.pods(12)
    calls = sorted([f"call-{number}" for number in range(12)])
    for call in calls:
        await managed.allocate(call)
    client, keys = managed.world.client, managed.world.keys
    for number in range(12):
        call, pod = f"call-{number}", f"agent-{number}"
        await client.delete(
            keys.call(call), keys.pod_calls(pod), keys.lease(pod), keys.pod(pod), keys.pod_tier(pod)
        )
    await client.delete(keys.assigned("standard"), keys.available("standard"), keys.metadata, keys.calls)

    await managed.pass_by(61)
    assert await managed.open_calls() == calls
    assert len(await noted_tiers(managed)) == 12

    # It stays so: then it is the truth.
    await managed.pass_by(61)
    assert await managed.open_calls() == []
    assert await noted_tiers(managed) == {}


async def test_a_new_leader_of_a_memory_that_is_whole_brings_nothing_back(managed: Managed) -> None:
    """The note of an end was lost, and the tombstone has run out: the dead call stays dead."""
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    await managed.world.release("call-1")
    await managed.world.client.delete(managed.world.keys.ended("call-1"))

    managed.leading.term = 2
    await managed.pass_by(1)

    assert pod in await managed.world.available("standard") or await managed.world.available("basic")
    assert await managed.world.client.exists(managed.world.keys.call("call-1")) == 0
    assert await managed.open_calls() == []


async def test_a_call_that_came_while_the_leader_asked_about_it_keeps_its_pod(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    client, keys = managed.world.client, managed.world.keys
    allocation = await client.hget(keys.call("call-1"), "allocation_id")
    await client.zadd(keys.unnamed, {"call-1": 1})
    await managed.world.beat(pod, ["call-1"])
    await managed.world.begin(term=2)

    asked = Unnamed("call-1", pod, allocation)
    assert not await managed.world.term.abandon(asked, tombstone_s=600)

    assert await managed.world.allocate("call-1") == pod


async def test_who_waited_and_hung_up_is_not_counted_for_ever(managed: Managed) -> None:
    rule = WaitRule(most_ms=60_000, silence_ms=7000)
    assert await managed.world.allocate("call-1", wait=rule) == "hold 0"
    await managed.world.client.zadd(managed.world.keys.waiting, {"call-1": 1})
    await managed.pass_by(6)
    keys = managed.world.keys
    assert await managed.world.client.exists(keys.waiting, keys.waiters, keys.waiting_for("standard")) == 0


async def test_an_unnamed_call_without_a_record_makes_room_for_others(managed: Managed) -> None:
    client, keys = managed.world.client, managed.world.keys
    await client.zadd(keys.unnamed, {f"gone-{number}": number for number in range(100)})
    await managed.pass_by(6)
    assert await client.zcard(keys.unnamed) == 0


async def test_a_change_by_hand_counts_as_written_only_when_postgres_has_it(managed: Managed) -> None:
    await managed.world.configure("acme", tier="gold")
    await managed.world.begin(term=2)
    told = await managed.world.term.merchants({}, "0")
    again = await managed.world.term.merchants({}, "0")
    assert told == again == {"acme": '{"tier": "gold"}'}
    assert await managed.world.term.merchants(told, "0") == {}
    await managed.world.client.hdel(managed.world.keys.merchant_config, "acme")
    assert await managed.world.term.merchants(told, "0") == {"acme": ""}
    assert await managed.world.term.merchants({}, "0") == {}


async def test_all_merchants_gone_at_once_is_a_loss_and_no_change_by_hand(managed: Managed) -> None:
    await managed.world.configure("acme", tier="gold")
    await managed.world.configure("other", tier="standard")
    await managed.pass_by(61)
    await managed.world.client.delete(managed.world.keys.merchant_config)
    await managed.pass_by(61)
    assert await managed.world.client.hlen(managed.world.keys.merchant_config) == 2


async def test_a_merchants_tier_that_changed_meanwhile_is_not_overwritten_by_a_leader_that_was_paused(
    managed: Managed,
) -> None:
    async with managed.database.connection() as conn:
        await store.set_merchant(conn, "acme", "new")
        await store.adopt_merchant(conn, "acme", "by hand", before="old")
        await store.adopt_merchant(conn, "acme", "", before="old")
        await store.adopt_merchant(conn, "acme", "by hand", before="")
        assert await store.merchants(conn) == {"acme": "new"}
        await store.adopt_merchant(conn, "acme", "by hand", before="new")
        assert await store.merchants(conn) == {"acme": "by hand"}
        await store.adopt_merchant(conn, "acme", "", before="by hand")
        assert await store.merchants(conn) == {}


async def test_a_call_that_lost_its_pod_is_not_hung_up_after_a_loss(managed: Managed) -> None:
    """Its pod died and began anew, or fell silent. The call lives at its carrier and may have another pod."""
    await managed.world.begin('{"standard": {"target": 1}}')
    await managed.pods(3)
    restarted, silent = await managed.allocate("call-1"), await managed.allocate("call-2")
    await managed.world.beat(restarted, boot="boot-2", sequence=1)
    client, keys = managed.world.client, managed.world.keys
    await managed.pass_by(61)
    await client.zadd(keys.heartbeats, {silent: 1})
    await client.hset(keys.hearing, "since", "1")
    await managed.pass_by(6)
    assert await managed.world.tier_of(silent) is None
    assert await managed.open_calls() == []

    await managed.world.flush()
    await managed.pass_by(1)
    for number in range(3):
        await managed.world.beat(f"agent-{number}", boot="boot-3", sequence=1)

    assert "none" not in {await managed.world.allocate(call) for call in ("call-1", "call-2")}
    assert "ended" not in {await managed.world.allocate(call) for call in ("call-1", "call-2")}
