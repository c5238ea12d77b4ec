"""What every carrier must do at its simulated wire. A new carrier is one more line in `CARRIERS`."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from trunkline.clock import Clock, ManualClock, SystemClock
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    CallEvent,
    CallOrder,
    CallView,
    Carrier,
    Document,
    Forged,
    HangUpAsked,
    HangUpUnavailable,
    InDoubt,
    ListUnavailable,
    LookUpUnavailable,
    NoSuchCall,
    PlaceResult,
    Rejected,
    Throttled,
    WebhookRequest,
)
from trunkline.telephony.session import CarrierSession, basic
from trunkline.telephony.simulator import Faults, SimulatedAccount, Simulator, SimulatorConfig
from trunkline.telephony.simulator.receiver import Receiver
from trunkline.telephony.twilio import Twilio

FROM = "+15005559901"
KEYS = CallbackKeys.from_secrets(["a secret of the tests"])


def twilio(base_url: str, account: SimulatedAccount, clock: Clock) -> Carrier:
    session = CarrierSession(basic(account.sid, account.auth_token), total_timeout_s=5.0)
    return Twilio(account.sid, account.auth_token, KEYS, base_url=base_url, session=session, clock=clock)


CARRIERS: dict[str, Callable[[str, SimulatedAccount, Clock], Carrier]] = {"twilio": twilio}


@dataclass
class Line:
    """A carrier, the simulator that plays it, and the other end of its webhooks."""

    build: Callable[[str, SimulatedAccount, Clock], Carrier]
    simulator: Simulator
    receiver: Receiver
    carrier: Carrier
    built: list[Carrier] = field(default_factory=list)

    def another(
        self, base_url: str = "", account: SimulatedAccount | None = None, clock: Clock | None = None
    ) -> Carrier:
        default = self.simulator.config.accounts[0]
        carrier = self.build(base_url or self.simulator.base_url, account or default, clock or SystemClock())
        self.built.append(carrier)
        return carrier

    def order(self, to: str, attempt: UUID | None = None) -> CallOrder:
        attempt = attempt or uuid4()
        return CallOrder(
            attempt_id=attempt,
            to=to,
            from_=FROM,
            answer_url=callback_url(self.receiver.base_url, self.carrier.name, "answer", attempt, KEYS),
            status_url=callback_url(self.receiver.base_url, self.carrier.name, "status", attempt, KEYS),
            ring_timeout_s=600,
            time_limit_s=14_400,
        )

    async def accepted(self, to: str, attempt: UUID | None = None) -> str:
        result = await self.carrier.place(self.order(to, attempt))
        assert isinstance(result, Accepted), result
        return result.call_id

    def events(self, callback: str = "status") -> list[CallEvent]:
        """In the order in which the carrier numbered them; they may have arrived in another."""
        parsed = [self.carrier.parse_webhook(request) for request in self.receiver.requests]
        events = [event for event in parsed if isinstance(event, CallEvent)]
        assert len(events) == len(parsed), parsed
        return sorted((e for e in events if e.callback == callback), key=lambda e: e.sequence or 0)

    async def until(self, kind: str) -> None:
        await self.receiver.until(lambda _: kind in [event.kind for event in self.events()])

    async def listed(self, to: str) -> list[CallView]:
        calls = await self.carrier.list_calls(to, FROM, datetime.now(UTC) - timedelta(seconds=60))
        assert isinstance(calls, list), calls
        return calls


@pytest.fixture(params=sorted(CARRIERS))
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    config = SimulatorConfig(
        time_scale=0.005, faults=Faults(slow_reply_s=(0.01, 0.02), reply_lost_s=0.05), media_interval_s=0.02
    )
    async with Receiver() as receiver, Simulator(config) as simulator:
        build = CARRIERS[request.param]
        carrier = build(simulator.base_url, config.accounts[0], SystemClock())
        line = Line(build, simulator, receiver, carrier, [carrier])
        yield line
        for one in line.built:
            await one.aclose()


# --- a call from beginning to end


async def test_a_call_is_placed_followed_listed_and_looked_up(line: Line) -> None:
    attempt = uuid4()
    call_id = await line.accepted("+15005551001", attempt)
    await line.simulator.idle()

    events = line.events()
    assert [event.kind for event in events] == ["initiated", "ringing", "answered", "ended"]
    assert {event.call_id for event in events} == {call_id}
    assert {event.attempt_id for event in events} == {attempt}
    assert events[-1].reason == "completed"
    assert len({event.dedupe_key for event in events}) == 4
    assert [event.kind for event in line.events("answer")] == ["answered"]

    (seen,) = await line.listed("+15005551001")
    assert seen == await line.carrier.look_up(call_id)
    assert (seen.call_id, seen.state, seen.reason) == (call_id, "ended", "completed")
    assert seen.duration_s is not None
    assert seen.duration_s == events[-1].duration_s
    assert seen.status in line.carrier.terminal_statuses
    assert await line.carrier.hang_up(call_id) == AlreadyOver()


@pytest.mark.parametrize(
    ("to", "reason"), [("+15005551101", "busy"), ("+15005551201", "no_answer"), ("+15005551301", "failed")]
)
async def test_a_call_that_nobody_answers_ends_for_its_reason(line: Line, to: str, reason: str) -> None:
    placed = await line.carrier.place(replace(line.order(to), ring_timeout_s=30))
    assert isinstance(placed, Accepted)
    await line.simulator.idle()
    end = line.events()[-1]
    assert (end.kind, end.reason, end.carrier_status in line.carrier.terminal_statuses) == (
        "ended",
        reason,
        True,
    )
    seen = await line.carrier.look_up(placed.call_id)
    assert isinstance(seen, CallView)
    assert (seen.state, seen.reason) == ("ended", reason)
    assert not line.events("answer")


async def test_an_answered_call_is_hung_up(line: Line) -> None:
    call_id = await line.accepted("+15005551601")
    await line.until("answered")
    assert isinstance(await line.carrier.hang_up(call_id, only_unanswered=True), HangUpAsked)
    seen = await line.carrier.look_up(call_id)
    assert isinstance(seen, CallView)
    assert seen.state == "answered"
    assert isinstance(await line.carrier.hang_up(call_id), HangUpAsked)
    await line.simulator.idle()
    assert line.events()[-1].reason == "completed"


async def test_a_ringing_call_is_canceled(line: Line) -> None:
    call_id = await line.accepted("+15005551701")
    await line.until("ringing")
    assert isinstance(await line.carrier.hang_up(call_id, only_unanswered=True), HangUpAsked)
    await line.simulator.idle()
    assert line.events()[-1].reason == "canceled"
    assert not line.events("answer")


async def test_the_list_shows_calls_in_every_state(line: Line) -> None:
    to = "+15005551601"
    over = await line.accepted(to)
    await line.until("answered")
    await line.carrier.hang_up(over)
    live = await line.accepted(to)
    states = {call.call_id: call.state for call in await line.listed(to)}
    assert states.keys() == {over, live}
    assert states[over] == "ended"
    assert states[live] != "ended"
    assert await line.listed("+15005551602") == []


async def test_the_list_leaves_out_what_began_before(line: Line) -> None:
    await line.accepted("+15005551001")
    later = datetime.now(UTC) + timedelta(seconds=60)
    assert await line.carrier.list_calls("+15005551001", FROM, later) == []


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
async def test_only_what_is_certain_is_called_certain(
    line: Line, code: str, result: type[PlaceResult], is_dialled: bool
) -> None:
    answer = await line.carrier.place(line.order(f"+1500555{code}01"))
    assert isinstance(answer, result)
    await line.simulator.idle()
    assert len(line.simulator.ledger.dials) == is_dialled
    assert not line.simulator.ledger.double_dials()


@pytest.mark.parametrize("last", ["1", "2", "3", "4"])
async def test_a_refused_destination_is_rejected_for_good(line: Line, last: str) -> None:
    answer = await line.carrier.place(line.order(f"+1500555000{last}"))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.retryable) == ("refused", False)
    assert not line.simulator.ledger.dials


async def test_wrong_credentials_are_rejected_for_now(line: Line) -> None:
    stranger = line.another(account=replace(line.simulator.config.accounts[0], auth_token="wrong"))
    answer = await stranger.place(line.order("+15005551001"))
    assert isinstance(answer, Rejected)
    assert answer.retryable
    assert not line.simulator.ledger.dials


async def test_a_carrier_that_cannot_be_reached_is_rejected_for_now(line: Line) -> None:
    answer = await line.another(base_url="http://127.0.0.1:9").place(line.order("+15005551001"))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.retryable) == ("not_connected", True)


async def test_an_order_past_its_deadline_is_not_sent(line: Line) -> None:
    late = replace(line.order("+15005551001"), send_by_boottime_s=SystemClock().boottime_s() - 1)
    assert isinstance(await line.carrier.place(late), Rejected)
    assert not line.simulator.ledger.dials


async def test_throttling_says_how_long(line: Line) -> None:
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


# --- doubt about the past


async def test_a_list_that_is_down_is_not_an_empty_list(line: Line) -> None:
    line.simulator.faults = Faults(list_down=True)
    await line.accepted("+15005551001")
    since = datetime.now(UTC) - timedelta(seconds=60)
    assert isinstance(await line.carrier.list_calls("+15005551001", FROM, since), ListUnavailable)


async def test_a_list_that_lags_shows_the_call_later(line: Line) -> None:
    line.simulator.faults = Faults(list_lag_s=3600)
    call_id = await line.accepted("+15005551001")
    assert await line.listed("+15005551001") == []
    assert isinstance(await line.carrier.look_up(call_id), CallView)
    line.simulator.faults = Faults()
    assert [call.call_id for call in await line.listed("+15005551001")] == [call_id]


async def test_an_unknown_call_and_an_unreachable_carrier_are_told_apart(line: Line) -> None:
    gone = line.another(base_url="http://127.0.0.1:9")
    unknown = "CA" + "0" * 32
    assert await line.carrier.look_up(unknown) == NoSuchCall()
    assert await line.carrier.hang_up(unknown) == NoSuchCall()
    assert isinstance(await gone.look_up(unknown), LookUpUnavailable)
    assert isinstance(await gone.hang_up(unknown), HangUpUnavailable)
    assert isinstance(await gone.list_calls("+1", FROM, datetime.now(UTC)), ListUnavailable)


# --- webhooks that are not what they seem


@pytest.fixture
async def webhook(line: Line) -> WebhookRequest:
    """A true one, kept to be tampered with."""
    await line.accepted("+15005551101")
    await line.simulator.idle()
    assert isinstance(line.carrier.parse_webhook(line.receiver.requests[0]), CallEvent)
    return line.receiver.requests[0]


def without_proof(request: WebhookRequest) -> WebhookRequest:
    return replace(request, headers={n: v for n, v in request.headers.items() if "signature" not in n})


def other_attempt(request: WebhookRequest) -> WebhookRequest:
    head, _, tail = request.url.partition("attempt=")
    return replace(request, url=f"{head}attempt={uuid4()}{tail[36:]}")


TAMPERINGS: dict[str, Callable[[WebhookRequest], WebhookRequest]] = {
    "body changed": lambda r: replace(r, body=r.body.replace(b"initiated", b"completed")),
    "field added": lambda r: replace(r, body=r.body + b"&CallDuration=9"),
    "body removed": lambda r: replace(r, body=b""),
    "signature removed": without_proof,
    "another attempt": other_attempt,
    "another kind": lambda r: replace(r, url=r.url.replace("/status?", "/answer?")),
    "another host": lambda r: replace(r, url=r.url.replace("127.0.0.1", "example.com")),
    "query added": lambda r: replace(r, url=r.url + "&x=1"),
    "query removed": lambda r: replace(r, url=r.url.partition("?")[0]),
}


@pytest.mark.parametrize("tampering", TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_a_tampered_webhook_is_forged(
    line: Line, webhook: WebhookRequest, tampering: Callable[[WebhookRequest], WebhookRequest]
) -> None:
    assert isinstance(line.carrier.parse_webhook(tampering(webhook)), Forged)


def test_a_webhook_signed_by_another_account_is_forged(line: Line, webhook: WebhookRequest) -> None:
    other = line.another(account=SimulatedAccount(sid="AC2", auth_token="other"))
    assert isinstance(other.parse_webhook(webhook), Forged)


def test_a_webhook_of_long_ago_is_forged(line: Line, webhook: WebhookRequest) -> None:
    tomorrow = ManualClock(datetime.now(UTC) + timedelta(days=2))
    assert isinstance(line.another(clock=tomorrow).parse_webhook(webhook), Forged)


# --- documents: the carrier does what they say


async def follow(line: Line, document: Document) -> None:
    line.receiver.document = lambda _: document
    await line.accepted("+15005551601")
    await line.simulator.idle()


async def test_the_hang_up_document_ends_the_call(line: Line) -> None:
    await follow(line, line.carrier.hang_up_document())
    assert line.events()[-1].reason == "completed"
    assert not line.receiver.stream_messages


async def test_the_busy_document_ends_the_call_after_its_message(line: Line) -> None:
    await follow(line, line.carrier.busy_document("All agents are busy <now> & later."))
    assert line.events()[-1].reason == "completed"


async def test_the_answer_document_connects_the_agent_with_its_parameters(line: Line) -> None:
    parameters = {"attempt": "1", "token": 'a"b<c>&d é'}
    line.receiver.hang_up_after = 3
    await follow(line, line.carrier.answer_document(line.receiver.stream_url, parameters))
    start = next(message["start"] for message in line.receiver.stream_messages if message["event"] == "start")
    assert start["customParameters"] == parameters
    assert start["callSid"] == line.events()[0].call_id
    assert line.events()[-1].reason == "completed"


async def test_the_hold_document_makes_the_carrier_ask_again(line: Line) -> None:
    over = line.carrier.hang_up_document()
    line.receiver.document = lambda request: (
        over if len(line.events("answer")) > 1 else line.carrier.hold_document(1, request.url)
    )
    await line.accepted("+15005551601")
    await line.simulator.idle()
    assert len(line.events("answer")) == 2
