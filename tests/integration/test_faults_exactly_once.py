"""Faults 18 to 27 of the design that this one replaces: how leads were dialled twice, lost or starved."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, open_world
from trunkline.api.deps import ApiLimits
from trunkline.app import http_surface
from trunkline.bus import connection as bus_connection
from trunkline.bus import schedule
from trunkline.client import TrunklineClient
from trunkline.dispatch import sender
from trunkline.dispatch.sender import is_cancelled
from trunkline.store import attempts as store_attempts
from trunkline.store import lead_edits
from trunkline.store.tenants import PLATFORM
from trunkline.telephony.carrier import (
    Accepted,
    CallOrder,
    CallView,
    InDoubt,
    PlaceResult,
    Rejected,
    Unavailable,
)


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


def as_listed(order: CallOrder, state: str = "answered", **more: object) -> CallView:
    """The carrier's own record of a call that it made for this order."""
    return CallView(
        f"CA-{order.attempt_id}",
        order.to,
        order.from_,
        state,
        state,  # type: ignore[arg-type]
        created_at=datetime.now(UTC),
        **more,  # type: ignore[arg-type]
    )


async def test_fault_18_a_lost_carrier_reply_does_not_dial_the_lead_again(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    stage.carrier.says(InDoubt("time-out"))
    assert await stage.dial() == 1
    assert (await stage.attempt(lead))["state"] == "in_doubt"
    await stage.due_now(lead)
    assert await stage.dial() == 0
    (order,) = stage.carrier.orders
    assert await stage.held() == {order.attempt_id}, "it may be live, so its channel is taken"
    await stage.told(order.attempt_id, "ringing", "answered", "ended")
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"
    assert len(stage.carrier.orders) == 1


async def test_fault_18_a_dialer_killed_after_its_request_does_not_make_the_lead_dialled_again(
    stage: Stage,
) -> None:
    """Its attempt is found by the checker, and its call in the carrier's list."""
    lead = await stage.dialing.lead()
    asked, never = asyncio.Event(), asyncio.Event()

    async def dies(_: CallOrder) -> PlaceResult:
        asked.set()
        await never.wait()
        raise asyncio.CancelledError

    stage.carrier.answer = dies
    await stage.loader.run_once()
    await stage.dialer.run_once()
    await asked.wait()
    (order,) = stage.carrier.orders
    stage.carrier.calls = [as_listed(order)]
    await stage.age(order.attempt_id, 20)
    await stage.checker.run_once()
    assert (await stage.attempt(lead))["state"] == "in_doubt"
    await stage.age(order.attempt_id, 0)
    await stage.checker.run_once()
    await stage.folder.drain()
    adopted = await stage.attempt(lead)
    assert (adopted["state"], adopted["carrier_call_id"]) == ("answered", f"CA-{order.attempt_id}")
    assert len(stage.carrier.orders) == 1
    never.set()


async def test_fault_19_webhooks_that_arrive_before_the_reply_find_their_attempt(stage: Stage) -> None:
    lead = await stage.dialing.lead()

    async def slow(order: CallOrder) -> PlaceResult:
        await stage.told(order.attempt_id, "ringing", "answered", "ended")
        return Accepted(f"CA-{order.attempt_id}")

    stage.carrier.answer = slow
    await stage.dial()
    found = await stage.attempt(lead)
    assert (found["state"], found["holds_channel"]) == ("ended", False)
    assert found["carrier_call_id"] == f"CA-{found['id']}"
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"
    assert await stage.held() == set()


@pytest.mark.parametrize("hang_up", [True, False])
async def test_fault_20_an_abort_during_the_dial_takes_effect(stage: Stage, hang_up: bool) -> None:
    lead = await stage.dialing.lead()

    async def aborted_meanwhile(order: CallOrder) -> PlaceResult:
        async with stage.database.transaction() as tx:
            await lead_edits.lock(tx, PLATFORM, [lead])
            await lead_edits.request_cancel(tx, [lead], "changed my mind", hang_up=hang_up)
        return Accepted(f"CA-{order.attempt_id}")

    stage.carrier.answer = aborted_meanwhile
    await stage.dial()
    (order,) = stage.carrier.orders
    await stage.hang_ups.run_once()
    assert stage.carrier.hung_up == ([f"CA-{order.attempt_id}"] if hang_up else [])
    # Nobody has answered. Without the abort it would be called again.
    await stage.told(order.attempt_id, "ended", reason="no_answer")
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == (
        "FINISHED",
        "ABORTED",
        "changed my mind",
    )
    assert await stage.held() == set()


async def test_fault_20_an_abort_while_a_call_waits_for_its_turn_keeps_it_from_being_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of a batch waits for its turn, and the sender checks before it whether it was aborted."""
    await stage.dialing.run("UPDATE numbers SET starts_per_s = 1.5")
    leads = await stage.dialing.leads(2)
    sent, aborted = asyncio.Event(), asyncio.Event()
    asked: list[UUID] = []

    async def asked_when_it_was_aborted(lead: UUID) -> bool:
        asked.append(lead)
        await aborted.wait()
        return await is_cancelled(stage.database, lead)

    # It is asked at once and may take its time.
    monkeypatch.setattr(sender, "RECHECK_AHEAD_S", 30.0)
    monkeypatch.setattr(stage.dialer._batches._sender, "_unwanted", asked_when_it_was_aborted)

    async def first_has_left(order: CallOrder) -> PlaceResult:
        sent.set()
        return Accepted(f"CA-{order.attempt_id}")

    stage.carrier.answer = first_has_left
    await stage.loader.run_once()
    assert await stage.dialer.run_once() == 2
    await sent.wait()
    (first,) = (order.to for order in stage.carrier.orders)
    (other,) = [lead for lead in leads if (await stage.lead(lead))["phone"] != first]
    async with stage.database.transaction() as tx:
        await lead_edits.lock(tx, PLATFORM, [other])
        await lead_edits.request_cancel(tx, [other], "changed my mind", hang_up=False)
    aborted.set()
    await stage.dialer.drain()
    assert asked == [other], "the first had no wait"
    assert len(stage.carrier.orders) == 1
    row = await stage.lead(other)
    assert (row["outcome"], row["outcome_reason"]) == ("ABORTED", "changed my mind")
    assert (await stage.attempt(other))["end_reason"] == "not_sent_in_time:unwanted"


async def test_fault_20_a_waiting_calls_abort_is_checked_just_before_it_is_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it begins to wait: an abort in between would go unheard."""
    await stage.dialing.run("UPDATE numbers SET starts_per_s = 1.5")
    leads = await stage.dialing.leads(2)
    asked: dict[UUID, datetime] = {}

    async def note(lead: UUID) -> bool:
        asked[lead] = await stage.dialing.now()
        return False

    monkeypatch.setattr(stage.dialer._batches._sender, "_unwanted", note)
    assert await stage.dial() == 2
    turns = {lead: (await stage.attempt(lead))["send_at"] for lead in leads}
    waited = max(turns, key=lambda lead: turns[lead])
    assert set(asked) == {waited}
    assert asked[waited] >= turns[waited] - timedelta(seconds=sender.RECHECK_AHEAD_S)


async def test_fault_21_no_call_is_closed_by_time_alone(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    await stage.dial()
    (order,) = stage.carrier.orders
    await stage.told(order.attempt_id, "answered")
    call_id = f"CA-{order.attempt_id}"
    for said in (Unavailable("down"), as_listed(order)):
        stage.carrier.found[call_id] = said
        await stage.age(order.attempt_id, 7200)
        await stage.checker.run_once()
        await stage.folder.drain()
        assert (await stage.attempt(lead))["state"] == "answered"
        assert await stage.held() == {order.attempt_id}
    stage.carrier.found[call_id] = as_listed(order, "ended", reason="completed")
    await stage.age(order.attempt_id, 0)
    await stage.checker.run_once()
    await stage.folder.drain()
    assert (await stage.attempt(lead))["state"] == "ended"
    assert await stage.held() == set()
    assert len(stage.carrier.orders) == 1


async def test_fault_22_an_exception_in_the_dial_leaves_the_attempt_in_doubt_and_no_lead_locked(
    stage: Stage,
) -> None:
    """A carrier's code that breaks is a bug; the call may have been made, so it is in doubt, and found out about."""
    lead = await stage.dialing.lead()

    async def breaks(_: CallOrder) -> PlaceResult:
        raise RuntimeError("a bug")

    stage.carrier.answer = breaks
    await stage.dial()
    assert (await stage.attempt(lead))["state"] == "in_doubt"
    (order,) = stage.carrier.orders
    await given_up(stage, order.attempt_id)
    assert (await stage.attempt(lead))["state"] == "absent"
    stage.carrier.answer = stage.carrier.accept
    await stage.due_now(lead)
    assert await stage.dial() == 1


async def given_up(stage: Stage, attempt: UUID) -> None:
    """Every time the list is asked it lacks the call."""
    for _ in range(5):
        await stage.age(attempt, 600)
        await stage.checker.run_once()


async def test_fault_23_a_lead_that_every_dial_refuses_ends_after_three_carrier_errors(stage: Stage) -> None:
    lead = await stage.dialing.lead(max_attempts=20)
    stage.carrier.says(Rejected("refused", "21214", retryable=True, blames="destination"))
    for _ in range(10):
        await stage.due_now(lead)
        await stage.dialing.run("UPDATE paces SET next_start_at = now()")
        await stage.dial()
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"]) == ("FINISHED", "CARRIER_ERROR")
    assert len(stage.carrier.orders) == 3


async def test_a_refused_destination_is_not_dialled_again(stage: Stage) -> None:
    lead = await stage.dialing.lead(max_attempts=20)
    stage.carrier.says(Rejected("refused", "21211", retryable=False, blames="destination"))
    await stage.dial()
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == ("FINISHED", "CARRIER_ERROR", "21211")


async def test_fault_24_an_end_reported_twice_is_one_retry(stage: Stage) -> None:
    lead = await stage.dialing.lead(max_attempts=3)
    await stage.dial()
    (order,) = stage.carrier.orders
    await stage.told(order.attempt_id, "ended", reason="busy")
    once = await stage.lead(lead)
    await stage.told(order.attempt_id, "ended", reason="busy", dedupe_key="told-again")
    assert await stage.lead(lead) == once
    assert (once["status"], once["attempt_count"]) == ("BACKLOG", 1)


async def test_fault_24_the_end_of_a_call_and_its_retry_are_written_together_or_not_at_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = await stage.dialing.lead(max_attempts=3)
    await stage.dial()
    (order,) = stage.carrier.orders

    async def dies(*_: object) -> None:
        raise ConnectionResetError("the process is gone")

    with monkeypatch.context() as patched:
        patched.setattr(store_attempts, "retry_leads", dies)
        await stage.told(order.attempt_id, "ended", reason="busy")
    assert (await stage.attempt(lead))["state"] == "accepted"
    assert (await stage.lead(lead))["status"] == "PROCESSING"
    await stage.dialing.run("UPDATE mailboxes SET claimable_at = now() WHERE claimable_at IS NOT NULL")
    await stage.folder.drain()
    assert (await stage.attempt(lead))["state"] == "ended"
    assert (await stage.lead(lead))["status"] == "BACKLOG"


async def test_fault_25_a_repeated_request_is_one_lead(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_world(database_url, redis_url, key_prefix, pods=0) as world:
        leads = await asyncio.gather(
            *(
                world.client.create_lead(merchant_id="m", phone="+15005551000", request_id="order-1")
                for _ in range(8)
            )
        )
        assert len({lead.id for lead in leads}) == 1


async def test_fault_26_creating_a_lead_does_not_wait_for_an_unreachable_valkey(
    database_url: str, redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gives up on Valkey within an hour: a request that waited for it would have no answer at all."""
    monkeypatch.setattr(bus_connection, "COMMAND_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(http_surface, "ApiLimits", partial(ApiLimits, schedule_timeout_s=3600.0))
    async with (
        TcpProxy.before(redis_url) as proxy,
        open_world(database_url, proxy.url, key_prefix, pods=0) as world,
    ):
        proxy.black_hole()
        # A client that waited less would ask again, and be told of the lead that its first request had made.
        async with (
            TrunklineClient(world.platform.base_url, ADMIN_KEY, timeout_s=3600) as patient,
            asyncio.timeout(30),
        ):
            lead = await patient.create_lead(merchant_id="m", phone="+15005551000", request_id="order-1")
        assert lead.status == "BACKLOG"
        # Its entry is on the way, and arrives when Valkey answers again.
        await proxy.saw_request()
        await proxy.heal()

        async def is_scheduled() -> bool:
            return bool(await schedule.lead_count(world.platform.bus))

        await eventually(is_scheduled, what="the lead is in the schedule")


async def test_fault_27_one_tenants_many_leads_do_not_starve_another(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = 4")
    await stage.reconciler.run_once()
    await stage.dialing.leads(100, merchant="m", due_in_s=-60)
    few = await stage.dialing.leads(2, merchant="n", due_in_s=0)
    assert await stage.dial() == 4
    for lead in few:
        assert (await stage.attempt(lead))["state"] == "accepted"
