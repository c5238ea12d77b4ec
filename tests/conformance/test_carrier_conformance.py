"""What every carrier must do at its simulated wire: calls from beginning to end, and what a place can answer."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.telephony.carriers import FROM, Line
from trunkline import value
from trunkline.clock import SystemClock
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    CallView,
    HangUpAsked,
    InDoubt,
    NoSuchCall,
    PlaceResult,
    Rejected,
    Throttled,
    Unavailable,
)
from trunkline.telephony.carrier_registry import PRICES_LATER
from trunkline.telephony.http_carrier import whole_list
from trunkline.telephony.simulator import Faults

# --- a call from beginning to end


async def test_a_call_is_placed_followed_listed_and_looked_up(line: Line) -> None:
    attempt = uuid4()
    call_id = await line.accepted("+15005551001", attempt)
    await line.simulator.idle()

    events = line.events()
    assert tuple(event.kind for event in events) == line.trait.told
    assert {event.call_id for event in events} == {call_id}
    assert {event.attempt_id for event in events} == {attempt}
    assert events[-1].reason == "completed"
    assert len({event.dedupe_key for event in events}) == len(events)
    if line.carrier.streams:
        (answer,) = line.events("answer")
        assert (answer.kind, answer.attempt_id, answer.call_id) == ("answered", attempt, call_id)

    (seen,) = await line.listed("+15005551001")
    assert seen == await line.carrier.look_up(call_id)
    assert (seen.call_id, seen.state, seen.reason) == (call_id, "ended", "completed")
    assert (seen.to, seen.from_) == ("+15005551001", FROM)
    assert seen.duration_s is not None
    assert seen.duration_s == events[-1].duration_s
    assert seen.status in line.carrier.terminal_statuses
    assert await line.carrier.hang_up(call_id) == AlreadyOver()


@pytest.mark.parametrize(
    ("to", "reason"), [("+15005551101", "busy"), ("+15005551201", "no_answer"), ("+15005551301", "failed")]
)
async def test_an_unanswered_call_ends_with_its_reason(line: Line, to: str, reason: str) -> None:
    placed = await line.carrier.place(value.replace(line.order(to), ring_timeout_s=30))
    assert isinstance(placed, Accepted)
    await line.simulator.idle()
    end = line.events()[-1]
    assert (end.kind, end.reason, end.carrier_status in line.carrier.terminal_statuses) == (
        "ended",
        reason,
        True,
    )
    assert "answered" not in [event.kind for event in line.events()]
    seen = await line.carrier.look_up(placed.call_id)
    assert isinstance(seen, CallView)
    assert (seen.state, seen.reason) == ("ended", reason)
    assert not line.events("answer")


async def test_an_answered_call_is_hung_up(line: Line) -> None:
    call_id = await line.accepted("+15005551601")
    await line.until("answered")
    if not line.carrier.limits.can_hang_up:
        assert isinstance(await line.carrier.hang_up(call_id), Unavailable)
        return
    assert isinstance(await line.carrier.hang_up(call_id, only_unanswered=True), HangUpAsked)
    seen = await line.carrier.look_up(call_id)
    assert isinstance(seen, CallView)
    assert seen.state == "answered"
    assert isinstance(await line.carrier.hang_up(call_id), HangUpAsked)
    await line.simulator.idle()
    assert line.events()[-1].reason == "completed"


async def test_a_ringing_call_is_canceled(line: Line) -> None:
    call_id = await line.accepted("+15005551701")
    if not line.carrier.limits.can_hang_up:
        assert isinstance(await line.carrier.hang_up(call_id, only_unanswered=True), Unavailable)
        return
    await line.until("ringing")
    assert isinstance(await line.carrier.hang_up(call_id, only_unanswered=True), HangUpAsked)
    await line.simulator.idle()
    assert line.events()[-1].reason == "canceled"
    assert not line.events("answer")


async def test_a_lookup_shows_a_live_call_as_answered_only_where_the_carrier_does(line: Line) -> None:
    call_id = await line.accepted("+15005551601")
    await line.until("answered")
    seen = await line.carrier.look_up(call_id)
    assert isinstance(seen, CallView)
    assert seen.state == ("answered" if line.trait.shows_answered else "ringing")


async def test_list_calls_shows_calls_in_every_state(line: Line) -> None:
    to = "+15005551001"
    over = await line.accepted(to)
    await line.simulator.idle()
    live = await line.accepted(to)
    states = {call.call_id: call.state for call in await line.listed(to)}
    assert states.keys() == {over, live}
    assert states[over] == "ended"
    assert states[live] != "ended"
    assert await line.listed("+15005551602") == []


async def test_account_calls_shows_calls_in_every_state_and_direction(line: Line) -> None:
    over = await line.accepted("+15005551001")
    await line.simulator.idle()
    live = await line.accepted("+15005551601")
    line.ring(from_="+15005551602")
    await line.until("answered")
    listed = await whole_list(line.carrier.account_calls(datetime.now(UTC) - timedelta(seconds=60)))
    assert isinstance(listed, list)
    dialled = {call.call_id: call for call in listed if call.direction == "outbound"}
    assert dialled.keys() == {over, live}
    assert (dialled[over].to, dialled[over].from_, dialled[over].state) == ("+15005551001", FROM, "ended")
    assert dialled[live].state != "ended"
    assert len([call for call in listed if call.direction == "inbound"]) == 1


async def test_live_calls_leaves_out_ended_calls_where_the_carrier_can(line: Line) -> None:
    """And others only where the carrier cannot tell them apart."""
    over = await line.accepted("+15005551001")
    await line.simulator.idle()
    live = await line.accepted("+15005551601")
    await line.until("answered")
    listed = await whole_list(line.carrier.live_calls(datetime.now(UTC) - timedelta(seconds=60)))
    assert isinstance(listed, list)
    states = {call.call_id: call.state for call in listed}
    assert states[live] != "ended"
    assert states.get(over, "ended") == "ended"
    assert (over in states) is (line.carrier.limits.lists != "live")


async def test_a_calls_cost_is_in_its_end_webhook_or_in_ended_calls(line: Line) -> None:
    """Exotel reports no currency, so it reports no cost."""
    call_id = await line.accepted("+15005551001")
    await line.simulator.idle()
    told = [event.cost for event in line.events() if event.cost]
    now = datetime.now(UTC)
    pages = line.carrier.ended_calls(now - timedelta(seconds=60), now + timedelta(seconds=60))
    listed = await whole_list(pages)
    assert isinstance(listed, list)
    told += [call.cost for call in listed if call.call_id == call_id and call.cost]
    assert bool(told) is (line.carrier.name != "exotel")
    assert all(cost.micros > 0 and cost.currency == "USD" for cost in told)
    assert line.carrier.limits.prices_later is (line.carrier.name in PRICES_LATER)


async def test_account_calls_ends_with_list_unavailable_while_the_list_is_down(line: Line) -> None:
    line.simulator.faults = Faults(list_down=True)
    pages = [page async for page in line.carrier.account_calls(datetime.now(UTC))]
    assert isinstance(pages[-1], Unavailable)


async def test_list_calls_leaves_out_calls_that_began_before_since(line: Line) -> None:
    await line.accepted("+15005551001")
    later = datetime.now(UTC) + timedelta(seconds=60)
    assert await line.carrier.list_calls("+15005551001", FROM, later) == []


async def test_the_carrier_keeps_to_the_orders_ring_timeout_and_time_limit(line: Line) -> None:
    """A carrier's time out may have a least value (Vapi's time limit: 10 s), far below 14,400 of them."""
    order = value.replace(line.order("+15005551701"), ring_timeout_s=20)
    assert isinstance(await line.carrier.place(order), Accepted)
    await line.simulator.idle()
    assert line.events()[-1].reason == "no_answer"
    order = value.replace(line.order("+15005551601"), time_limit_s=10)
    assert isinstance(await line.carrier.place(order), Accepted)
    await line.simulator.idle()
    assert line.events()[-1].reason == "completed"
    dial = line.simulator.ledger.dials[-1]
    assert dial.ended_at is not None


# --- what a place can answer: certain and uncertain


@pytest.mark.parametrize(
    ("code", "result", "is_dialled"),
    [
        ("20", Accepted, True),  # slow
        ("25", Accepted, True),  # the webhook overtook the reply
        ("21", InDoubt, True),  # 500 after dialling
        ("22", InDoubt, True),  # the reply is lost
        ("23", InDoubt, True),  # reset after dialling
        ("24", InDoubt, True),  # 2xx without sense
        ("30", Throttled, False),
        ("31", InDoubt, False),  # 500 without dialling
        ("32", InDoubt, False),  # reset without dialling
        ("33", InDoubt, False),  # redirect
    ],
)
async def test_place_returns_a_certain_result_only_where_the_reply_is_certain(
    line: Line, code: str, result: type[PlaceResult], is_dialled: bool
) -> None:
    answer = await line.carrier.place(line.order(f"+1500555{code}01"))
    assert isinstance(answer, result)
    await line.simulator.idle()
    assert len(line.simulator.ledger.dials) == is_dialled
    assert not line.simulator.ledger.double_dials()


@pytest.mark.parametrize("last", ["1", "2", "3", "4"])
async def test_a_refused_destination_blames_neither_account_nor_number(line: Line, last: str) -> None:
    answer = await line.carrier.place(line.order(f"+1500555000{last}"))
    assert isinstance(answer, Rejected)
    assert answer.reason == "refused"
    assert answer.blames in ("destination", "country", "unknown")
    assert not line.simulator.ledger.dials


async def test_wrong_credentials_are_a_retryable_rejection_that_blames_the_account(line: Line) -> None:
    stranger = line.another(account=replace(line.account, auth_token="wrong"))
    answer = await stranger.place(line.order("+15005551001"))
    assert isinstance(answer, Rejected)
    assert (answer.retryable, answer.blames) == (True, "account")
    assert not line.simulator.ledger.dials


async def test_an_unreachable_carrier_is_a_rejection_that_blames_the_network(line: Line) -> None:
    answer = await line.another(base_url="http://127.0.0.1:9").place(line.order("+15005551001"))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.blames) == ("not_connected", "network")


async def test_an_order_past_its_deadline_is_not_sent(line: Line) -> None:
    late = value.replace(line.order("+15005551001"), send_by_boottime_s=SystemClock().boottime_s() - 1)
    assert isinstance(await line.carrier.place(late), Rejected)
    assert not line.simulator.ledger.dials


async def test_a_throttled_place_returns_the_carriers_retry_after(line: Line) -> None:
    line.simulator.faults = replace(line.simulator.faults, retry_after_s=7)
    assert await line.carrier.place(line.order("+15005553001")) == Throttled(7.0)


@pytest.mark.parametrize("code", ["21", "22", "23", "24"])
async def test_a_call_in_doubt_is_found_by_its_webhooks_and_in_the_list(line: Line, code: str) -> None:
    attempt = uuid4()
    to = f"+1500555{code}01"
    assert isinstance(await line.carrier.place(line.order(to, attempt)), InDoubt)
    await line.simulator.idle()
    (seen,) = await line.listed(to)
    assert {(event.attempt_id, event.call_id) for event in line.events()} == {(attempt, seen.call_id)}
    if line.name == "vapi":
        assert seen.attempt_id == attempt  # the only one that keeps our tag where a list shows it


# --- doubt about the past


async def test_list_calls_is_unavailable_rather_than_empty_while_the_list_is_down(line: Line) -> None:
    line.simulator.faults = Faults(list_down=True)
    await line.accepted("+15005551001")
    since = datetime.now(UTC) - timedelta(seconds=60)
    assert isinstance(await line.carrier.list_calls("+15005551001", FROM, since), Unavailable)


async def test_a_lagging_list_shows_the_call_later_and_a_lookup_at_once(line: Line) -> None:
    line.simulator.faults = Faults(list_lag_s=3600)
    call_id = await line.accepted("+15005551001")
    assert await line.listed("+15005551001") == []
    assert isinstance(await line.carrier.look_up(call_id), CallView)
    line.simulator.faults = Faults()
    assert [call.call_id for call in await line.listed("+15005551001")] == [call_id]


async def test_an_unknown_call_and_an_unreachable_carrier_have_different_results(line: Line) -> None:
    gone = line.another(base_url="http://127.0.0.1:9")
    unknown = "CA" + "0" * 32
    assert await line.carrier.look_up(unknown) == NoSuchCall()
    assert await line.carrier.hang_up(unknown) == NoSuchCall()
    assert isinstance(await gone.look_up(unknown), Unavailable)
    assert isinstance(await gone.hang_up(unknown), Unavailable)
    assert isinstance(await gone.list_calls("+1", FROM, datetime.now(UTC)), Unavailable)


# --- what the account has


async def test_own_numbers_reads_every_page(line: Line) -> None:
    numbers = await line.carrier.own_numbers()
    assert isinstance(numbers, list)
    assert {"+14155550100", "+14155550101"} <= set(numbers)


async def test_own_numbers_reports_wrong_credentials_as_unauthorized(line: Line) -> None:
    wrong = replace(line.account, auth_token="not the token")
    carrier = line.another(account=wrong)
    assert await carrier.own_numbers() == Unavailable("status 401", is_unauthorized=True)


async def test_own_numbers_of_an_unreachable_carrier_is_not_unauthorized(line: Line) -> None:
    await line.simulator.stop()
    found = await line.carrier.own_numbers()
    assert isinstance(found, Unavailable)
    assert not found.is_unauthorized
