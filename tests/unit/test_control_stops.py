"""What is stopped, for whom and until when; and a process's view of it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from trunkline.control.controls import STALE_AFTER_S, UNREAD, Controls, StopTarget, campaign_subject
from trunkline.store.controls import Control, Level, Scope
from trunkline.testing.clock import ManualClock

NOW = datetime(2030, 5, 1, 9, 30, tzinfo=UTC)
CAMPAIGN = uuid4()
NUMBER = uuid4()


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def control(scope: Scope, subject: str = "", **more: Any) -> Control:
    values: dict[str, Any] = {
        "set_by": Level.PLATFORM,
        "reason": "because",
        "changed_by": "key:1",
        "changed_at": NOW,
        "stopped_at": NOW,
        "ends_at": None,
        "ramp_s": 0,
        "reseller_id": None,
        "merchant_id": None,
        "seen_at": NOW,
    }
    return Control(scope=scope, subject=subject, **values | more)


def view_at(at: datetime, controls: Sequence[Control]) -> Controls:
    """As a process sees them that reads them then."""
    view = Controls(ManualClock())
    view.read(at, controls)
    return view


CALL: StopTarget = {
    "reseller_id": "acme",
    "merchant_id": "shop",
    "campaign_id": CAMPAIGN,
    "number_id": NUMBER,
    "carrier": "twilio",
}


@pytest.mark.parametrize(
    ("scope", "subject"),
    [
        (Scope.KILL_SWITCH, ""),
        (Scope.PROMOTER, ""),
        (Scope.RESELLER, "acme"),
        (Scope.MERCHANT, "shop"),
        (Scope.CAMPAIGN, campaign_subject("shop", CAMPAIGN)),
        (Scope.NUMBER, str(NUMBER)),
        (Scope.CARRIER, "twilio"),
    ],
)
def test_every_scope_stops_what_it_names(scope: Scope, subject: str) -> None:
    stop = view_at(NOW, [control(scope, subject)]).stopped(**CALL)
    assert stop is not None
    assert (stop.scope, stop.subject, stop.reason, stop.until) == (scope, subject, "because", None)


@pytest.mark.parametrize(
    ("scope", "subject"),
    [
        (Scope.RESELLER, "shop"),
        (Scope.MERCHANT, "acme"),
        (Scope.CAMPAIGN, campaign_subject("another-shop", CAMPAIGN)),
        (Scope.NUMBER, str(uuid4())),
        (Scope.CARRIER, "plivo"),
    ],
)
def test_a_stop_of_another_subject_does_not_hold(scope: Scope, subject: str) -> None:
    assert view_at(NOW, [control(scope, subject)]).stopped(**CALL) is None


def test_only_the_kill_switch_stops_sending() -> None:
    for scope in Scope:
        subject = "" if scope in (Scope.KILL_SWITCH, Scope.PROMOTER) else "x"
        killed = view_at(NOW, [control(scope, subject)]).killed()
        assert (killed is not None) == (scope is Scope.KILL_SWITCH), scope


def test_a_stop_ends_at_its_moment_and_not_before() -> None:
    stops = [control(Scope.MERCHANT, "shop", ends_at=after(60))]
    stop = view_at(after(59.999), stops).stopped(**CALL)
    assert stop is not None
    assert stop.until == after(60)
    assert view_at(after(60), stops).stopped(**CALL) is None


def test_of_two_stops_the_longer_one_is_returned() -> None:
    short = control(Scope.RESELLER, "acme", ends_at=after(10))
    long = control(Scope.MERCHANT, "shop", ends_at=after(100))
    endless = control(Scope.CARRIER, "twilio")
    for stops, until in (
        ([short, long], after(100)),
        ([long, short], after(100)),
        ([endless, long, short], None),
    ):
        stop = view_at(NOW, stops).stopped(**CALL)
        assert stop is not None
        assert stop.until == until


def test_a_stop_of_one_level_holds_after_that_of_another_ended() -> None:
    platforms = control(Scope.MERCHANT, "shop", ends_at=after(10))
    own = control(Scope.MERCHANT, "shop", set_by=Level.MERCHANT, reason="own")
    stop = view_at(after(20), [platforms, own]).stopped(**CALL)
    assert stop is not None
    assert stop.reason == "own"


def test_the_share_after_a_stop_grows_over_its_ramp() -> None:
    stops = [control(Scope.MERCHANT, "shop", ends_at=after(10), ramp_s=100)]
    shares = [view_at(after(s), stops).share(**CALL) for s in (0, 9.9, 10, 35, 60, 109, 110, 1000)]
    assert shares == [0, 0, 0, 0.25, 0.5, 0.99, 1, 1]
    assert view_at(after(10), stops).stopped(**CALL) is None


def test_the_smallest_share_of_several_ramps_counts() -> None:
    stops = [
        control(Scope.KILL_SWITCH, ends_at=NOW, ramp_s=100),
        control(Scope.MERCHANT, "shop", ends_at=NOW, ramp_s=1000),
    ]
    assert view_at(after(50), stops).share(**CALL) == 0.05
    assert view_at(after(50), stops).share(reseller_id="acme", merchant_id="another") == 0.5


def test_without_a_ramp_the_full_pace_is_back_at_once() -> None:
    assert view_at(NOW, [control(Scope.KILL_SWITCH, ends_at=NOW, ramp_s=0)]).share(**CALL) == 1.0


def opened(clock: ManualClock, *controls: Control) -> Controls:
    view = Controls(clock)
    view.read(NOW, controls)
    return view


def test_everything_is_stopped_until_the_controls_are_read() -> None:
    view = Controls(ManualClock())
    assert view.stopped(merchant_id="shop") == view.killed() == UNREAD
    assert view.share(merchant_id="shop") == 0.0
    view.read(NOW, ())
    assert view.stopped(merchant_id="shop") is None
    assert view.killed() is None


def test_a_stop_ends_by_postgres_clock_while_the_wall_clock_jumps() -> None:
    clock = ManualClock()
    view = opened(clock, control(Scope.KILL_SWITCH, ends_at=after(60)))
    clock.set_wall(clock.now() + timedelta(days=1))
    assert view.killed() is not None
    clock.advance(59)
    assert view.killed() is not None
    clock.suspend(1)
    assert view.killed() is None


def test_a_view_that_is_not_refreshed_keeps_its_stops_and_is_stale() -> None:
    clock = ManualClock()
    view = opened(clock, control(Scope.MERCHANT, "shop"))
    clock.advance(STALE_AFTER_S)
    ages = [view.is_stale]
    clock.advance(3600)
    ages.append(view.is_stale)
    assert ages == [False, True]
    assert view.stopped(merchant_id="shop") is not None
    assert view.stopped(merchant_id="another") is None
    view.read(after(3600))
    assert not view.is_stale


def test_a_closed_view_stops_everything_with_its_reason() -> None:
    view = opened(ManualClock())
    view.close("Nobody knows.")
    stop = view.stopped(merchant_id="shop")
    assert stop is not None
    assert stop.reason == "Nobody knows."


async def test_waiters_for_a_change_are_woken() -> None:
    view = Controls(ManualClock())
    waiting = [asyncio.create_task(view.changed(view.generation)) for _ in range(2)]
    await asyncio.sleep(0)
    view.read(NOW, ())
    first = {await task for task in waiting}
    assert first == {view.generation}
    view.read(NOW, [control(Scope.KILL_SWITCH)])
    assert await view.changed(view.generation - 1) == view.generation


def test_a_read_without_news_is_no_change() -> None:
    view = opened(ManualClock(), control(Scope.KILL_SWITCH))
    before = view.generation
    view.read(after(0.5))
    view.read(after(1), [control(Scope.KILL_SWITCH)])
    assert view.generation == before


@pytest.mark.parametrize(
    "changed",
    [
        {"ends_at": after(5), "changed_at": after(1)},
        {"reason": "another", "changed_at": after(1)},
        {"set_by": Level.RESELLER},
    ],
)
def test_a_changed_end_reason_or_level_of_a_stop_is_a_change(changed: dict[str, Any]) -> None:
    view = opened(ManualClock(), control(Scope.MERCHANT, "shop"))
    before = view.generation
    view.read(NOW, [control(Scope.MERCHANT, "shop", **changed)])
    assert view.generation == before + 1


def test_the_end_of_a_stop_and_of_its_ramp_are_changes() -> None:
    view = opened(ManualClock(), control(Scope.MERCHANT, "shop", ends_at=after(10), ramp_s=10))
    before = view.generation
    for at, changes in ((after(9), 0), (after(10), 1), (after(15), 1), (after(20), 2), (after(30), 2)):
        view.read(at)
        assert view.generation - before == changes, at
