"""What every carrier's webhooks must survive, what its documents must do, and how calls come in."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tests.support.telephony.carriers import FROM, Line
from trunkline.telephony.carrier import CallEvent, Document, Forged, WebhookRequest
from trunkline.telephony.simulator import SimulatedAccount
from trunkline.testing.clock import ManualClock
from trunkline.value import replace

# Talks until somebody hangs up.
TALKS_FOR_EVER = "+15005551601"

# --- webhooks that are not what they seem


@pytest.fixture
async def webhook(line: Line) -> WebhookRequest:
    """A true one, kept to be tampered with."""
    await line.accepted("+15005551101")
    await line.simulator.idle()
    assert isinstance(line.carrier.parse_webhook(line.receiver.requests[0]), CallEvent)
    return line.receiver.requests[0]


def without_proof(request: WebhookRequest) -> WebhookRequest:
    proofs = ("signature", "authorization")
    kept = {
        name: value for name, value in request.headers.items() if not any(word in name for word in proofs)
    }
    return replace(request, headers=kept)


def other_attempt(request: WebhookRequest) -> WebhookRequest:
    head, _, tail = request.url.partition("attempt=")
    return replace(request, url=f"{head}attempt={uuid4()}{tail[36:]}")


def other_last_byte(request: WebhookRequest) -> WebhookRequest:
    return replace(request, body=request.body[:-1] + bytes([request.body[-1] ^ 1]))


TAMPERINGS: dict[str, Callable[[WebhookRequest], WebhookRequest]] = {
    "body changed": other_last_byte,
    "body grown": lambda r: replace(r, body=r.body + b"&CallDuration=9"),
    "body removed": lambda r: replace(r, body=b""),
    "proof removed": without_proof,
    "another attempt": other_attempt,
    "another account": lambda r: replace(r, url=r.url.replace("?", "?account=other&")),
    "another kind": lambda r: replace(r, url=r.url.replace("/status?", "/answer?")),
    "another host": lambda r: replace(r, url=r.url.replace("127.0.0.1", "example.com")),
    "query added": lambda r: replace(r, url=r.url + "&x=1"),
    "query removed": lambda r: replace(r, url=r.url.partition("?")[0]),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_tampered_webhook_is_forged(line: Line, webhook: WebhookRequest, tampering: str) -> None:
    result = line.carrier.parse_webhook(TAMPERINGS[tampering](webhook))
    if tampering in line.trait.uncovered:
        # Not covered by this carrier's proof: then what is in the URL must still be what we put there.
        assert not isinstance(result, CallEvent) or result.attempt_id is not None
    else:
        assert isinstance(result, Forged)


def test_a_webhook_signed_by_another_account_is_forged(line: Line, webhook: WebhookRequest) -> None:
    other = line.another(account=SimulatedAccount(sid="AC2", auth_token="other", carrier=line.name))
    assert isinstance(other.parse_webhook(webhook), Forged)


def test_an_old_webhook_is_refused_or_has_the_dedupe_key_of_the_first(
    line: Line, webhook: WebhookRequest
) -> None:
    later = line.another(clock=ManualClock(datetime.now(UTC) + timedelta(days=2)))
    replayed, first = later.parse_webhook(webhook), line.carrier.parse_webhook(webhook)
    if line.trait.dated:
        assert isinstance(replayed, Forged)
    else:
        assert isinstance(replayed, CallEvent)
        assert isinstance(first, CallEvent)
        assert replayed.dedupe_key == first.dedupe_key


async def test_a_doubled_webhook_has_the_dedupe_key_of_the_first(line: Line) -> None:
    await line.accepted("+15005554101")  # every webhook is sent twice
    await line.simulator.idle()
    keys = [event.dedupe_key for event in line.events()]
    assert len(keys) == 2 * len(line.trait.told)
    assert len(set(keys)) == len(line.trait.told)


# --- documents: the carrier does what they say


async def follow(line: Line, document: Document) -> None:
    line.receiver.document = lambda _: document
    await line.accepted("+15005551601")
    await line.simulator.idle()


async def test_the_hang_up_document_ends_the_call(streaming: Line) -> None:
    await follow(streaming, streaming.carrier.hang_up_document())
    assert streaming.events()[-1].reason == "completed"
    assert not streaming.receiver.stream_messages


async def test_the_busy_document_ends_the_call_after_its_message(streaming: Line) -> None:
    await follow(streaming, streaming.carrier.busy_document("All agents are busy <now> & later."))
    assert streaming.events()[-1].reason == "completed"
    assert not streaming.receiver.stream_messages


async def test_the_answer_document_connects_the_agent_with_its_parameters(streaming: Line) -> None:
    parameters = {"attempt": "1", "token": 'a"b<c>&d é'}
    streaming.receiver.hang_up_after = 3
    await follow(streaming, streaming.carrier.answer_document(streaming.receiver.stream_url, parameters))
    assert streaming.stream_start() == (streaming.events()[0].call_id, parameters)
    assert streaming.events()[-1].reason == "completed"


async def test_the_carrier_requests_the_resume_url_after_the_stream_where_it_can(streaming: Line) -> None:
    carrier, stream_url = streaming.carrier, streaming.receiver.stream_url
    attempt = uuid4()
    then_url = streaming.url("resume", attempt)
    streaming.receiver.hang_up_after = 3
    streaming.receiver.document = lambda request: (
        carrier.hang_up_document()
        if "/resume?" in request.url
        else carrier.answer_document(stream_url, {}, then_url)
    )
    await streaming.accepted("+15005551601", attempt)
    await streaming.simulator.idle()
    asked = [(event.attempt_id, event.kind) for event in streaming.events("resume")]
    assert asked == ([] if streaming.name == "exotel" else [(attempt, "answered")])
    assert streaming.events()[-1].reason == "completed"


# Those that report what becomes of a stream, if the document asks for it.
REPORTING = ("twilio", "plivo")


def streamed(line: Line, attempt: UUID, stream_url: str = "") -> Callable[[WebhookRequest], Document]:
    """A document of whose stream the carrier is to report."""
    document = line.carrier.answer_document(
        stream_url or line.receiver.stream_url, {}, "", line.url("stream", attempt)
    )
    return lambda _: document


async def test_a_stream_that_began_and_ended_is_reported_where_the_carrier_can(streaming: Line) -> None:
    attempt = uuid4()
    streaming.receiver.document = streamed(streaming, attempt)
    streaming.receiver.hang_up_after = 3
    call_id = await streaming.accepted(TALKS_FOR_EVER, attempt)
    await streaming.simulator.idle()
    told = [(event.kind, event.attempt_id, event.call_id) for event in streaming.events("stream")]
    expected = ["stream_began", "stream_ended"] if streaming.name in REPORTING else []
    assert told == [(kind, attempt, call_id) for kind in expected]


async def test_the_end_of_a_stream_is_reported_when_the_person_hangs_up(streaming: Line) -> None:
    attempt = uuid4()
    streaming.receiver.document = streamed(streaming, attempt)
    call_id = await streaming.accepted(TALKS_FOR_EVER, attempt)
    await streaming.receiver.until(lambda receiver: len(receiver.stream_messages) > 1)
    streaming.simulator.end(call_id, "completed")
    await streaming.simulator.idle()
    told = [event.kind for event in streaming.events("stream")]
    assert told == (["stream_began", "stream_ended"] if streaming.name in REPORTING else [])


async def test_a_stream_that_could_not_be_opened_is_reported_where_the_carrier_can(
    streaming: Line, unused_tcp_port: int
) -> None:
    attempt = uuid4()
    streaming.receiver.document = streamed(streaming, attempt, f"ws://127.0.0.1:{unused_tcp_port}/stream")
    await streaming.accepted(TALKS_FOR_EVER, attempt)
    await streaming.simulator.idle()
    told = [event.kind for event in streaming.events("stream")]
    assert told == (["stream_failed"] if streaming.name in REPORTING else [])


async def test_a_stream_that_broke_began_before(streaming: Line) -> None:
    attempt = uuid4()
    streaming.receiver.document = streamed(streaming, attempt)
    streaming.receiver.hang_up_after, streaming.receiver.close_code = 3, 1011
    await streaming.accepted(TALKS_FOR_EVER, attempt)
    await streaming.simulator.idle()
    told = [event.kind for event in streaming.events("stream")]
    assert told == (["stream_began", "stream_failed"] if streaming.name in REPORTING else [])


async def test_nothing_is_reported_of_a_stream_unless_the_document_asks_for_it(streaming: Line) -> None:
    streaming.receiver.hang_up_after = 3
    await follow(streaming, streaming.carrier.answer_document(streaming.receiver.stream_url, {}))
    assert not [request for request in streaming.receiver.requests if "/stream?" in request.url]


async def test_a_tampered_report_of_a_stream_is_forged(streaming: Line) -> None:
    attempt = uuid4()
    streaming.receiver.document = streamed(streaming, attempt)
    streaming.receiver.hang_up_after = 3
    await streaming.accepted(TALKS_FOR_EVER, attempt)
    await streaming.simulator.idle()
    reports = [request for request in streaming.receiver.requests if "/stream?" in request.url]
    assert len(reports) == (2 if streaming.name in REPORTING else 0)
    for report in reports:
        tampered = [
            other_last_byte(report),
            without_proof(report),
            other_attempt(report),
            replace(report, url=report.url.replace("/stream?", "/status?")),
        ]
        assert [type(streaming.carrier.parse_webhook(one)) for one in tampered] == [Forged] * 4


async def test_a_doubled_report_of_a_stream_has_the_key_of_the_first(streaming: Line) -> None:
    attempt = uuid4()
    streaming.receiver.document = streamed(streaming, attempt)
    await streaming.accepted("+15005554101", attempt)  # every webhook is sent twice
    await streaming.simulator.idle()
    keys = [event.dedupe_key for event in streaming.events("stream")]
    assert (len(keys), len(set(keys))) == ((4, 2) if streaming.name in REPORTING else (0, 0))


async def test_the_hold_document_makes_the_carrier_request_again_where_it_can(streaming: Line) -> None:
    over = streaming.carrier.hang_up_document()
    streaming.receiver.document = lambda request: (
        over if len(streaming.events("answer")) > 1 else streaming.carrier.hold_document(1, request.url)
    )
    await streaming.accepted("+15005551601")
    await streaming.simulator.idle()
    assert len(streaming.events("answer")) == (1 if streaming.name == "exotel" else 2)


# --- calls that come in


async def test_an_inbound_webhook_has_both_numbers_and_its_call_gets_an_agent(line: Line) -> None:
    # The agent is who hangs up, so that it has heard something before, however slow the machine is.
    caller = "+15005551601" if line.carrier.streams else "+15005551501"
    line.receiver.hang_up_after = 2
    line.ring(from_=caller)
    await line.simulator.idle()
    (event,) = line.events("inbound")
    assert (event.direction, event.kind, event.attempt_id) == ("inbound", "ringing", None)
    assert (event.to, event.from_) == (FROM, caller)
    assert bool(line.receiver.stream_messages) == line.carrier.streams
    (dial,) = line.simulator.ledger.dials
    assert (dial.own_number, dial.direction) == (FROM, "inbound")
    end = line.events()[-1]
    assert (end.kind, end.direction, end.call_id, end.attempt_id) == ("ended", "inbound", event.call_id, None)


async def test_the_reject_document_ends_an_inbound_call_without_an_agent(line: Line) -> None:
    line.receiver.document = lambda _: line.carrier.reject_document()
    line.ring()
    await line.simulator.idle()
    assert not line.simulator.ledger.dials
    assert not line.receiver.stream_messages
    assert [event.kind for event in line.events()][-1] == "ended"


async def test_the_redirect_document_forwards_an_inbound_call_without_an_agent(line: Line) -> None:
    line.receiver.document = lambda _: line.carrier.redirect_document("+15005559999")
    line.ring(from_="+15005551501")
    await line.simulator.idle()
    assert not line.receiver.stream_messages
    assert not line.simulator.ledger.dials
