"""Plivo XML: the documents that tell Plivo what to do with a call."""

from collections.abc import Mapping
from urllib.parse import urlencode
from xml.etree.ElementTree import Element, SubElement, tostring

from trunkline.telephony.carrier import AnswerFallback, Document

CONTENT_TYPE = "application/xml"
# The audio format in both directions: the same as at Twilio, so agents need one format.
AUDIO = "audio/x-mulaw;rate=8000"


class PlivoDocuments:
    """Plivo takes retry orders only in certain URLs. Those of documents are not among them, so they have none."""

    name = "plivo"
    streams = True
    can_hold = True

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        return stream(stream_url, parameters, then_url, status_url)

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return hold(wait_s, again_url)

    def busy_document(self, message: str) -> Document:
        return busy(message)

    def hang_up_document(self) -> Document:
        return hang_up()

    def reject_document(self) -> Document:
        return reject()

    def redirect_document(self, to: str) -> Document:
        return redirect(to)

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        scheme, _, rest = fallback.url.partition(":")
        match scheme:
            case "https" | "http":
                return ask(fallback.url)
            case "wss" | "ws":
                return stream(fallback.url, {})
            case "tel":
                return redirect(rest)
            case "sip" | "sips":
                return redirect_sip(fallback.url)
            case _:
                return busy(fallback.message)


def stream(url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = "") -> Document:
    """The URL is the element's text. Extra headers allow letters and digits only, so parameters go into the query.

    Because the call is kept alive, Plivo goes on with the next element when the stream ends.
    """
    response = Element("Response")
    element = SubElement(response, "Stream", bidirectional="true", keepCallAlive="true", contentType=AUDIO)
    if status_url:
        element.set("statusCallbackUrl", status_url)
        element.set("statusCallbackMethod", "POST")
    element.text = f"{url}?{urlencode(parameters)}" if parameters else url
    if then_url:
        SubElement(response, "Redirect", method="POST").text = then_url
    return _document(response)


def hold(wait_s: int, again_url: str) -> Document:
    response = Element("Response")
    SubElement(response, "Wait", length=str(wait_s))
    SubElement(response, "Redirect", method="POST").text = again_url
    return _document(response)


def ask(url: str) -> Document:
    """Continue with another document."""
    response = Element("Response")
    SubElement(response, "Redirect", method="POST").text = url
    return _document(response)


def busy(message: str) -> Document:
    response = Element("Response")
    SubElement(response, "Speak").text = message
    SubElement(response, "Hangup")
    return _document(response)


def hang_up() -> Document:
    response = Element("Response")
    SubElement(response, "Hangup")
    return _document(response)


def reject() -> Document:
    response = Element("Response")
    SubElement(response, "Hangup", reason="busy")
    return _document(response)


def redirect(to: str) -> Document:
    response = Element("Response")
    SubElement(SubElement(response, "Dial"), "Number").text = to.lstrip("+")
    return _document(response)


def redirect_sip(uri: str) -> Document:
    response = Element("Response")
    SubElement(SubElement(response, "Dial"), "User").text = uri
    return _document(response)


def _document(response: Element) -> Document:
    return Document(CONTENT_TYPE, tostring(response, encoding="unicode"))
