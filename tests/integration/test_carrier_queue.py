"""Calls that a carrier keeps in its own queue: taken back before they ring too late, and never once they ring."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.support.dispatch.stage import LIMITS, Stage, open_stage
from trunkline.telephony.carrier import (
    Accepted,
    CallOrder,
    CallState,
    CallView,
    EndReason,
    LookUpResult,
    PlaceResult,
)

HOUR_MS = 3_600_000


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


def view(call_id: str, state: CallState, started: datetime | None = None) -> CallView:
    reason: EndReason | None = "canceled" if state == "ended" else None
    return CallView(call_id, "+1", "+1", state, state, reason, started_at=started)


def queue_for(stage: Stage, queued_ms: int, seen: CallView) -> None:
    async def accept(order: CallOrder) -> PlaceResult:
        stage.carrier.found[seen.call_id] = seen
        return Accepted(seen.call_id, queued_ms)

    stage.carrier.answer = accept


async def test_a_call_queued_for_an_hour_is_cancelled_and_costs_no_attempt(stage: Stage) -> None:
    lead_id = await stage.dialing.lead()
    queue_for(stage, HOUR_MS, view("CA1", "ended"))
    await stage.dial()
    assert stage.carrier.hung_up == ["CA1"]
    attempt, lead = await stage.attempt(lead_id), await stage.lead(lead_id)
    assert (attempt["state"], attempt["holds_channel"]) == ("rejected", False)
    assert (lead["status"], lead["attempt_count"], lead["carrier_error_count"]) == ("BACKLOG", 0, 0)
    assert lead["due_at"] > await stage.dialing.now()


async def test_a_queued_call_that_rings_despite_its_cancellation_stays_accepted(stage: Stage) -> None:
    """It left the carrier's queue during the cancellation: the lead is not dialled again."""
    lead_id = await stage.dialing.lead()
    queue_for(stage, HOUR_MS, view("CA1", "ringing"))
    await stage.dial()
    assert (await stage.attempt(lead_id))["state"] == "accepted"
    assert (await stage.lead(lead_id))["status"] == "PROCESSING"


async def test_an_order_carries_the_end_of_its_window_as_not_after(stage: Stage) -> None:
    lead_id = await stage.dialing.lead()
    closes_at = datetime.now(UTC) + timedelta(seconds=5)
    await stage.dialing.run("UPDATE leads SET closes_at = $2 WHERE id = $1", lead_id, closes_at)
    queue_for(stage, 10_000, view("CA1", "ended"))
    await stage.dial()
    (order,) = stage.carrier.orders
    assert order.not_after == closes_at
    # Ten seconds are no long wait; past the end of the window they are too long.
    assert (await stage.attempt(lead_id))["state"] == "rejected"


async def queued(stage: Stage, state: CallState) -> UUID:
    """A call that the carrier took, and of which nothing was heard since."""
    lead_id = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead_id))["id"]
    stage.carrier.found[f"CA-{attempt}"] = view(f"CA-{attempt}", state)
    await stage.age(attempt, LIMITS.ring_timeout_s + 60)
    return lead_id


@pytest.mark.parametrize(
    ("state", "is_closed", "is_cancelled"),
    [("queued", True, True), ("queued", False, False), ("ringing", True, False), ("answered", True, False)],
)
async def test_the_checker_cancels_a_call_still_queued_when_its_window_has_closed(
    stage: Stage, state: CallState, is_closed: bool, is_cancelled: bool
) -> None:
    lead_id = await queued(stage, state)
    if is_closed:
        await stage.dialing.run("UPDATE leads SET closes_at = now() WHERE id = $1", lead_id)
    await stage.checker.run_once()
    assert bool(stage.carrier.hung_up) == is_cancelled
    # What it was asked back for comes by its end webhook; until then nothing is concluded.
    assert (await stage.lead(lead_id))["status"] == "PROCESSING"


@pytest.mark.parametrize(("queues_excess", "looks"), [(True, 2), (False, 1)])
async def test_the_checker_asks_about_queued_calls_only_carriers_with_a_queue(
    stage: Stage, *, queues_excess: bool, looks: int
) -> None:
    lead_id = await queued(stage, "ringing")
    await stage.dialing.run("UPDATE leads SET closes_at = now() WHERE id = $1", lead_id)
    stage.carrier.limits = replace(stage.carrier.limits, queues_excess=queues_excess)
    asked: list[str] = []
    look_up = stage.carrier.look_up

    async def counted(call_id: str) -> LookUpResult:
        asked.append(call_id)
        return await look_up(call_id)

    stage.carrier.look_up = counted  # type: ignore[method-assign]  # to count
    await stage.checker.run_once()
    assert len(asked) == looks
