"""The document of a call without an agent, where the carrier requests again, and what a carrier's name alone gives."""

from urllib.parse import urlencode
from uuid import uuid4

import pytest

from trunkline.settings import load_settings
from trunkline.settings.reading import SettingsError
from trunkline.telephony.callbacks import (
    CallbackKeys,
    callback_url,
    fallback_of,
    is_fallback,
    signed_attempt,
    verify_callback,
)
from trunkline.telephony.carrier import AnswerFallback, CallbackTag, CallEvent, Forged, WebhookRequest
from trunkline.telephony.carrier_registry import CARRIERS
from trunkline.telephony.documents import documents_for, last_resorts, read_answer
from trunkline.telephony.forms import FORM

KEYS = CallbackKeys.from_secrets(["first secret"])
MESSAGE = "Nobody is here."


@pytest.mark.parametrize(
    ("carrier", "url", "said"),
    [
        ("twilio", "", f"<Response><Say>{MESSAGE}</Say><Hangup /></Response>"),
        ("twilio", "https://b.example/x", '<Redirect method="POST">https://b.example/x</Redirect>'),
        ("twilio", "wss://b.example/x", '<Connect><Stream url="wss://b.example/x" /></Connect>'),
        ("twilio", "tel:+14155550100", "<Dial>+14155550100</Dial>"),
        ("twilio", "sip:desk@b.example", "<Dial><Sip>sip:desk@b.example</Sip></Dial>"),
        ("plivo", "", f"<Response><Speak>{MESSAGE}</Speak><Hangup /></Response>"),
        ("plivo", "https://b.example/x", '<Redirect method="POST">https://b.example/x</Redirect>'),
        ("plivo", "wss://b.example/x", ">wss://b.example/x</Stream>"),
        ("plivo", "tel:+14155550100", "<Dial><Number>14155550100</Number></Dial>"),
        ("plivo", "sip:desk@b.example", "<Dial><User>sip:desk@b.example</User></Dial>"),
        ("exotel", "", f'{{"error":"{MESSAGE}"}}'),
        ("exotel", "wss://b.example/x", '{"url":"wss://b.example/x"}'),
        ("exotel", "tel:+14155550100", f'{{"error":"{MESSAGE}"}}'),
        ("vapi", "", f'{{"error":"{MESSAGE}"}}'),
        ("vapi", "https://b.example/x", f'{{"error":"{MESSAGE}"}}'),
        ("vapi", "tel:+14155550100", '{"destination":{"type":"number","number":"+14155550100"}}'),
        ("vapi", "sip:desk@b.example", '{"destination":{"type":"sip","sipUri":"sip:desk@b.example"}}'),
    ],
)
def test_each_carrier_follows_the_operators_fallback_as_far_as_it_can(
    carrier: str, url: str, said: str
) -> None:
    document = last_resorts(AnswerFallback(url, MESSAGE))[carrier]
    assert said in document.body
    assert document.status == (503 if carrier == "exotel" and not url.startswith("wss") else 200)


def test_every_carrier_has_documents_by_its_name_and_a_last_resort() -> None:
    assert set(last_resorts(AnswerFallback())) == set(CARRIERS)
    for name in CARRIERS:
        documents = documents_for(name)
        assert documents is not None
        assert documents.name == name
        held = documents.hold_document(1, "https://a/again").body
        assert ("https://a/again" in held) == documents.can_hold
    assert documents_for("nobody") is None


@pytest.mark.parametrize("carrier", ["twilio", "plivo"])
def test_the_answer_document_redirects_to_the_given_url_after_the_stream(carrier: str) -> None:
    documents = documents_for(carrier)
    assert documents is not None
    alone = documents.answer_document("wss://pod/ws", {"token": "t"}).body
    followed = documents.answer_document("wss://pod/ws", {"token": "t"}, "https://a/then?turn=2").body
    assert "Redirect" not in alone
    assert followed.index("Stream") < followed.index('<Redirect method="POST">https://a/then?turn=2')


def test_what_becomes_of_a_stream_is_reported_where_the_carrier_can() -> None:
    asked = {
        name: "https://a/stream" in documents.answer_document("wss://pod/ws", {}, "", "https://a/stream").body
        for name in CARRIERS
        if (documents := documents_for(name))
    }
    assert asked == {"twilio": True, "plivo": True, "exotel": False, "vapi": False}


def test_the_fallback_url_is_the_same_answer_at_another_base_and_marked() -> None:
    attempt = uuid4()
    url = callback_url("https://a.example/in", "twilio", "answer", attempt, KEYS, "second")
    fallback = fallback_of(url, "https://b.example/")
    assert fallback.startswith("https://b.example/webhooks/twilio/answer?")
    assert verify_callback(fallback, KEYS) == verify_callback(url, KEYS)
    assert (is_fallback(url), is_fallback(fallback), is_fallback(fallback + "#rc=1")) == (False, True, True)


def test_settings_take_what_a_carrier_can_follow_and_nothing_else() -> None:
    for url in ("https://b.example/x?y=1", "wss://b.example/x", "tel:+14155550100", "sip:desk@b.example"):
        settings = load_settings({"ANSWER_FALLBACK_URL": url, "TRUNKLINE_DATA_DIR": "/tmp"})
        assert settings.carrier.answer_fallback_url == url
    for url in ("b.example", "tel:4155550100", "sip:desk", "ftp://b.example", "https://"):
        with pytest.raises(SettingsError):
            load_settings({"ANSWER_FALLBACK_URL": url, "TRUNKLINE_DATA_DIR": "/tmp"})


def asked(carrier: str, fields: dict[str, str], tag: CallbackTag) -> WebhookRequest:
    url = callback_url("https://a", carrier, "answer", tag.attempt_id, KEYS)
    if carrier == "exotel":
        return WebhookRequest("GET", f"{url}&{urlencode(fields)}", {}, b"", tag)
    return WebhookRequest("POST", url, {"content-type": FORM}, urlencode(fields).encode(), tag)


def test_an_answer_request_of_an_unknown_account_is_read_by_our_own_signature() -> None:
    attempt = uuid4()
    said = {
        "twilio": {"CallSid": "CA1", "CallStatus": "in-progress", "To": "+1", "From": "+2"},
        "plivo": {"CallUUID": "CA1", "CallStatus": "in-progress"},
        "exotel": {"CallSid": "CA1", "CustomField": signed_attempt(attempt, "exotel", KEYS)},
    }
    for carrier, fields in said.items():
        tag = CallbackTag(carrier, "answer", None if carrier == "exotel" else attempt)
        event = read_answer(asked(carrier, fields, tag), tag, KEYS)
        assert isinstance(event, CallEvent)
        assert (event.call_id, event.kind, event.attempt_id) == ("CA1", "answered", attempt)


@pytest.mark.parametrize("custom", ["", f"{uuid4()}.made-up"])
def test_an_answer_that_proves_no_attempt_is_forged(custom: str) -> None:
    tag = CallbackTag("exotel", "answer", None)
    event = read_answer(asked("exotel", {"CallSid": "CA1", "CustomField": custom}, tag), tag, KEYS)
    assert isinstance(event, Forged)
    vapi = CallbackTag("vapi", "answer", uuid4())
    assert isinstance(read_answer(asked("vapi", {}, vapi), vapi, KEYS), Forged)
