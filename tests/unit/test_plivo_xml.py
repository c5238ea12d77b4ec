"""Our documents against the official SDK's: the same elements, attributes and texts."""

from xml.etree import ElementTree

from plivo import plivoxml  # type: ignore[import-untyped]

from trunkline.telephony.plivo import PlivoDocuments

PLIVO_XML = PlivoDocuments()


def canonical(text: str) -> str:
    return ElementTree.canonicalize(text, strip_text=True)


def test_the_stream_document_equals_that_of_the_sdk() -> None:
    url = "wss://voice.example.com/ws/pod/a/1"
    wanted = plivoxml.ResponseElement().add(
        plivoxml.StreamElement(
            f"{url}?token=a%26b",
            bidirectional=True,
            keepCallAlive=True,
            contentType="audio/x-mulaw;rate=8000",
        )
    )
    assert canonical(PLIVO_XML.answer_document(url, {"token": "a&b"}).body) == canonical(wanted.to_string())


def test_a_stream_of_which_plivo_reports_is_the_sdks_stream() -> None:
    url, status_url = "wss://voice.example.com/ws/pod/a/1", "https://example.com/stream?a=1&b=2"
    wanted = plivoxml.ResponseElement().add(
        plivoxml.StreamElement(
            url,
            bidirectional=True,
            keepCallAlive=True,
            contentType="audio/x-mulaw;rate=8000",
            statusCallbackUrl=status_url,
            statusCallbackMethod="POST",
        )
    )
    assert canonical(PLIVO_XML.answer_document(url, {}, status_url=status_url).body) == canonical(
        wanted.to_string()
    )


def test_the_busy_document_speaks_and_hangs_up() -> None:
    wanted = plivoxml.ResponseElement()
    wanted.add_speak("All <agents> & more are busy")
    wanted.add_hangup()
    assert canonical(PLIVO_XML.busy_document("All <agents> & more are busy").body) == canonical(
        wanted.to_string()
    )


def test_the_hold_document_waits_and_redirects() -> None:
    wanted = plivoxml.ResponseElement()
    wanted.add_wait(length=5)
    wanted.add_redirect("https://example.com/a?b=1&c=2", method="POST")
    assert canonical(PLIVO_XML.hold_document(5, "https://example.com/a?b=1&c=2").body) == canonical(
        wanted.to_string()
    )


def test_the_hang_up_reject_and_redirect_documents_equal_those_of_the_sdk() -> None:
    ended, refused, sent_on = (
        plivoxml.ResponseElement(),
        plivoxml.ResponseElement(),
        plivoxml.ResponseElement(),
    )
    ended.add_hangup()
    refused.add_hangup(reason="busy")
    sent_on.add(plivoxml.DialElement().add(plivoxml.NumberElement("15005551001")))
    assert canonical(PLIVO_XML.hang_up_document().body) == canonical(ended.to_string())
    assert canonical(PLIVO_XML.reject_document().body) == canonical(refused.to_string())
    assert canonical(PLIVO_XML.redirect_document("+15005551001").body) == canonical(sent_on.to_string())
