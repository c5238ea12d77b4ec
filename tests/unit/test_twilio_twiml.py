"""Our TwiML against the official SDK's: the same document, whatever is in it."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twilio.twiml.voice_response import Connect, VoiceResponse  # type: ignore[import-untyped]

from trunkline.telephony.carrier import Document
from trunkline.telephony.twilio import TwilioDocuments
from trunkline.telephony.xml_documents import ASK_AGAIN, SEND_AGAIN

TWIML = TwilioDocuments()

# What XML 1.0 can carry at all.
words = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xD7FF), max_size=20)


def same(ours: str, theirs: VoiceResponse) -> bool:
    return ElementTree.canonicalize(ours) == ElementTree.canonicalize(str(theirs))


@given(words, st.dictionaries(words, words, max_size=4))
def test_a_stream_reads_as_the_official_one(url: str, parameters: dict[str, str]) -> None:
    theirs = VoiceResponse()
    connect = Connect()
    stream = connect.stream(url=url)
    for name, value in parameters.items():
        stream.parameter(name=name, value=value)
    theirs.append(connect)
    assert same(TWIML.answer_document(url, parameters).body, theirs)


def test_a_stream_of_which_twilio_reports_reads_as_the_official_one() -> None:
    url, status_url = "wss://pod/ws", "https://example.com/stream?a=1&b=2"
    theirs = VoiceResponse()
    connect = Connect()
    connect.stream(url=url, status_callback=status_url + SEND_AGAIN, status_callback_method="POST")
    theirs.append(connect)
    assert same(TWIML.answer_document(url, {}, status_url=status_url).body, theirs)


@given(words)
def test_busy_reads_as_the_official_one(message: str) -> None:
    theirs = VoiceResponse()
    theirs.say(message)
    theirs.hangup()
    assert same(TWIML.busy_document(message).body, theirs)


def test_hang_up_and_hold_read_as_the_official_ones() -> None:
    over = VoiceResponse()
    over.hangup()
    assert same(TWIML.hang_up_document().body, over)
    waiting = VoiceResponse()
    waiting.pause(length=5)
    waiting.redirect("https://example.com/again?a=1&b=2" + ASK_AGAIN, method="POST")
    assert same(TWIML.hold_document(5, "https://example.com/again?a=1&b=2").body, waiting)


def test_markup_in_a_parameter_stays_a_value() -> None:
    document = TWIML.answer_document("wss://pod/ws", {"name": '"/><Hangup/><x y="'})
    root = ElementTree.fromstring(document.body)
    assert [element.tag for element in root.iter()] == ["Response", "Connect", "Stream", "Parameter"]


@pytest.mark.parametrize(
    "document", [TWIML.hang_up_document(), TWIML.busy_document("x"), TWIML.answer_document("wss://x", {})]
)
def test_documents_are_xml_with_status_200(document: Document) -> None:
    assert (document.content_type, document.status) == ("application/xml", 200)
