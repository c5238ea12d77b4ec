"""Every carrier, when somebody answers: it asks again and elsewhere as it was ordered, waits where it is told to, and
its ledger shows who had an agent, who waited, and what it was told."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from tests.support.telephony.carriers import Line, open_line
from trunkline.telephony.callbacks import is_fallback
from trunkline.telephony.carrier import Accepted, AnswerFallback, Document, WebhookRequest
from trunkline.telephony.simulator import Behaviour, SimulatorConfig
from trunkline.telephony.simulator.answered_calls import AnsweredCall, bad_answers, without_agent
from trunkline.telephony.simulator.config import CarrierName

STREAMING: tuple[CarrierName, ...] = ("twilio", "plivo", "exotel")
# Those that ask again, and elsewhere.
ASKING: tuple[CarrierName, ...] = ("twilio", "plivo")
BROKEN = Document("text/plain", "Internal Server Error", status=500)
PERSON, TALKS_FOR_EVER = "+15005551001", "+15005551601"
CONFIG = SimulatorConfig(time_scale=0.005, media_interval_s=0.02)


@pytest.fixture(params=STREAMING)
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with open_line(request.param, CONFIG) as line:
        yield line


@pytest.fixture(params=ASKING)
async def asking(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with open_line(request.param, CONFIG) as line:
        yield line


async def answered(line: Line, fallback_base_url: str = "") -> AnsweredCall:
    result = await line.carrier.place(line.order(TALKS_FOR_EVER, fallback_base_url=fallback_base_url))
    assert isinstance(result, Accepted)
    await line.simulator.idle()
    (call,) = line.simulator.ledger.answered
    return call


def in_turn(*documents: Document) -> Callable[[WebhookRequest], Document]:
    """One after the other, and the last one from then on."""
    waiting = list(documents)
    return lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def stream(line: Line) -> Document:
    line.receiver.hang_up_after = 2
    return line.carrier.answer_document(line.receiver.stream_url, {})


async def test_a_call_that_reaches_its_agent_is_shown_with_its_document_and_stream(line: Line) -> None:
    line.receiver.document = in_turn(stream(line))
    call = await answered(line)
    (document,), (opened,) = call.documents, call.streams
    assert (document.kind, document.statuses, document.said, document.bad) == ("answer", [200], "stream", 0)
    assert (opened.ended, opened.url) == ("by_agent", line.receiver.stream_url)
    assert call.agent_at is not None
    assert call.waited_s is not None
    assert not call.is_without_agent
    assert (call.carrier, call.direction, call.ended_by) == (line.name, "outbound", "carrier")


async def test_a_failed_answer_request_is_retried_as_the_url_orders(asking: Line) -> None:
    asking.receiver.document = in_turn(BROKEN, BROKEN, stream(asking))
    call = await answered(asking)
    assert [one.statuses for one in call.documents] == [[500, 500, 200]]
    assert bad_answers([call]) == 2
    assert call.agent_at is not None


async def test_after_failed_retries_the_fallback_url_connects_the_same_call(
    asking: Line,
) -> None:
    given = stream(asking)
    asking.receiver.document = lambda request: given if is_fallback(request.url) else BROKEN
    call = await answered(asking, asking.receiver.base_url)
    first, second = call.documents
    assert (first.statuses, first.is_fallback) == ([500, 500, 500], False)
    assert (second.statuses, second.is_fallback, second.said) == ([200], True, "stream")
    assert call.agent_at is not None
    asked = [asking.carrier.parse_webhook(request) for request in asking.receiver.requests]
    assert {event.attempt_id for event in asked if getattr(event, "callback", "") == "answer"} == {  # type: ignore[union-attr]
        event.attempt_id
        for event in asking.events()  # the same attempt: whoever answers gives the same pod
    }


async def test_an_unreadable_document_makes_the_carrier_request_the_fallback_url(asking: Line) -> None:
    given = stream(asking)
    nonsense = Document("application/xml", "<Response><Stream", status=200)
    asking.receiver.document = lambda request: given if is_fallback(request.url) else nonsense
    call = await answered(asking, asking.receiver.base_url)
    assert [(one.statuses, one.bad, one.said) for one in call.documents] == [
        ([200], 1, "nothing"),
        ([200], 0, "stream"),
    ]


async def test_an_unreachable_answer_url_makes_the_carrier_request_the_fallback_url(asking: Line) -> None:
    asking.receiver.document = in_turn(stream(asking))
    order = asking.order(TALKS_FOR_EVER, fallback_base_url=asking.receiver.base_url)
    nobody = order.answer_url.replace(asking.receiver.base_url, "http://127.0.0.1:1")
    fields = {name: getattr(order, name) for name in order.__struct_fields__}
    assert isinstance(await asking.carrier.place(type(order)(**(fields | {"answer_url": nobody}))), Accepted)
    await asking.simulator.idle()
    (call,) = asking.simulator.ledger.answered
    assert [one.statuses for one in call.documents] == [[0, 0, 0], [200]]
    assert bad_answers([call]) == 0, "who does not answer gives no bad answer"
    assert call.agent_at is not None


async def test_exotel_takes_a_503_as_a_document_and_a_500_as_a_bad_answer() -> None:
    async with open_line("exotel", CONFIG) as line:
        line.receiver.document = in_turn(line.carrier.busy_document("busy"), BROKEN)
        for _ in range(2):
            await line.accepted(TALKS_FOR_EVER)
            await line.simulator.idle()
        refused, broken = line.simulator.ledger.answered
        assert (refused.documents[0].statuses, bad_answers([refused])) == ([503], 0)
        assert (broken.documents[0].statuses, bad_answers([broken])) == ([500], 1)
        assert without_agent([refused, broken]) == [refused, broken]


async def test_a_call_on_hold_requests_its_document_again_until_an_agent_is_free(asking: Line) -> None:
    given = stream(asking)

    def answer(request: WebhookRequest) -> Document:
        asks = sum("/answer" in one.url for one in asking.receiver.requests)
        return asking.carrier.hold_document(1, request.url) if asks <= 3 else given

    asking.receiver.document = answer
    call = await answered(asking)
    assert [one.said for one in call.documents] == ["hold", "hold", "hold", "stream"]
    assert call.agent_at is not None
    assert not call.is_without_agent


async def test_a_person_on_hold_who_hangs_up_counts_as_without_an_agent(asking: Line) -> None:
    people = Behaviour(1, 0, 0, 0, talk_s=(60.0, 60.0), silence_s=(0.02, 0.03))
    config = replace(CONFIG, behaviour=people, patience_s=3600.0)
    async with open_line(asking.name, config) as line:
        line.receiver.document = lambda request: line.carrier.hold_document(1, request.url)
        await line.accepted("+12025550100")
        await line.simulator.idle()
        (call,) = line.simulator.ledger.answered
        assert (call.is_without_agent, call.ended_by, call.streams) == (True, "person", [])
        assert without_agent([call]) == [call]


async def test_a_held_caller_gets_an_agent_and_occupies_a_channel(asking: Line) -> None:
    given = stream(asking)
    asking.receiver.document = lambda request: (
        given
        if sum("/inbound" in one.url for one in asking.receiver.requests) > 1
        else asking.carrier.hold_document(1, request.url)
    )
    asking.ring()
    await asking.simulator.idle()
    (call,), (dial,) = asking.simulator.ledger.answered, asking.simulator.ledger.dials
    assert (call.direction, [one.said for one in call.documents]) == ("inbound", ["hold", "stream"])
    assert (dial.direction, call.is_without_agent) == ("inbound", False)


async def test_a_lost_stream_makes_the_carrier_request_the_resume_url_for_another_agent(
    asking: Line,
) -> None:
    then_url = asking.url("resume")
    asking.receiver.hang_up_after, asking.receiver.close_code = 2, 1011
    over = asking.carrier.answer_document(asking.receiver.stream_url, {}, then_url)

    def answer(request: WebhookRequest) -> Document:
        if "/resume" in request.url:
            asking.receiver.close_code = 1000
        return over if "/answer" in request.url else stream(asking)

    asking.receiver.document = answer
    call = await answered(asking)
    assert [one.ended for one in call.streams] == ["lost", "by_agent"]
    assert [one.kind for one in call.documents] == ["answer", "resume"]
    assert not call.was_dropped


async def test_a_call_whose_agent_was_lost_without_a_resume_url_is_without_an_agent(line: Line) -> None:
    line.receiver.hang_up_after, line.receiver.close_code = 2, 1011
    call = await answered(line)
    assert [one.ended for one in call.streams] == ["lost"]
    assert (call.was_dropped, call.is_without_agent) == (False, True), "it never said a word"


async def test_a_call_whose_stream_the_pod_refused_is_without_an_agent(line: Line) -> None:
    line.receiver.hang_up_after, line.receiver.close_code = 2, 1008
    call = await answered(line)
    assert [(one.ended, one.code) for one in call.streams] == [("refused", 1008)]
    assert call.is_without_agent


@pytest.mark.parametrize("url", ["tel:+14155550199", "wss:"])
async def test_every_carrier_follows_the_operators_fallback_as_far_as_it_can(line: Line, url: str) -> None:
    """Exotel can stream and nothing else; the others dial too."""
    target = line.receiver.stream_url if url == "wss:" else url
    line.receiver.hang_up_after = 2
    line.receiver.document = in_turn(line.carrier.fallback_document(AnswerFallback(target, "Nobody.")))
    if url == "wss:":
        assert (await answered(line)).agent_at is not None
        return
    assert isinstance(await line.carrier.place(line.order(PERSON)), Accepted)
    await line.simulator.idle()
    (call,) = line.simulator.ledger.answered
    assert (call.forwarded_at is not None) == (line.name != "exotel")
    assert call.is_without_agent == (line.name == "exotel")
    assert bad_answers([call]) == 0
