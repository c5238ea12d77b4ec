"""Whose leads are dispatched here: event dispatch on or off, per reseller and merchant, while everything runs."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.control.flags import EVENT_DISPATCH, FlagBoard, Flags
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.rollout import LEFT_OUT, DialStops, Rollout
from trunkline.model import RefusalReason
from trunkline.schema.flags import Flag


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


@pytest.fixture
def board() -> FlagBoard:
    return FlagBoard()


@pytest.fixture
async def rollout(board: FlagBoard, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rollout]:
    """Asked anew every time, so that a test sees what it set."""
    monkeypatch.setattr("trunkline.dispatch.rollout.FRESH_S", -1.0)
    flags = Flags(board)
    await flags.open()
    yield Rollout(flags)
    await flags.close()


def switch(board: FlagBoard, **more: Any) -> None:
    values: dict[str, Any] = {"enabled": True, "percentage": 100, "resellers": {}, "merchants": {}} | more
    board.read([Flag(EVENT_DISPATCH.name, **values, reason="", changed_by="", changed_at=datetime.now(UTC))])


async def test_leads_outside_the_rollout_are_not_granted_and_stay_scheduled(
    stage: Stage, board: FlagBoard, rollout: Rollout
) -> None:
    reconciler = ChannelReconciler(stage.database, stage.bus, stage.controls, rollout)
    theirs, ours = await stage.dialing.lead(merchant="m"), await stage.dialing.lead(merchant="n")
    switch(board, merchants={"m": False})
    await reconciler.run_once()
    assert await stage.dial() == 1
    assert (await stage.attempt(ours))["state"] == "accepted"
    assert await stage.dialing.value("SELECT count(*) FROM decisions") == 0, "it was not even granted"
    assert str(theirs) in await stage.known_leads(), "and it is where it was"
    switch(board)
    await reconciler.run_once()
    assert await dialled(stage, theirs)


async def test_a_reseller_left_out_of_the_rollout_is_not_dialled(
    stage: Stage, board: FlagBoard, rollout: Rollout
) -> None:
    await stage.dialing.lead()
    switch(board, resellers={"r": False})
    await ChannelReconciler(stage.database, stage.bus, stage.controls, rollout).run_once()
    assert await stage.dial() == 0


async def test_the_intent_checks_the_rollout_again(stage: Stage, board: FlagBoard, rollout: Rollout) -> None:
    """The flag was switched off between the match and the intent."""
    switch(board, enabled=False)
    lead = await stage.dialing.lead()
    stopped = DialStops(stage.controls, rollout)
    (refusal,) = (await stage.dialing.intend(stage.dialing.grant(lead), stopped=stopped)).refused.values()
    assert (refusal.reason, refusal.subject) == (RefusalReason.PAUSED, LEFT_OUT)


async def test_without_a_stored_flag_no_merchant_is_left_out(stage: Stage, rollout: Rollout) -> None:
    await stage.dialing.lead()
    async with stage.database.connection() as conn:
        assert await rollout.left_out(conn) == ()


async def dialled(stage: Stage, lead: UUID) -> bool:
    """A parked flow wakes within a second."""
    while not await stage.attempts(lead):
        await stage.dialer.wait()
        await stage.dialer.run_once()
    return True
