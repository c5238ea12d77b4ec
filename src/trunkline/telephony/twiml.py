"""TwiML: the documents that tell Twilio what to do with a call."""

from collections.abc import Mapping
from functools import lru_cache
from xml.etree.ElementTree import Element, SubElement, tostring

from trunkline.telephony.carrier import AnswerFallback, Document
from trunkline.telephony.retry_orders import ASK_AGAIN, SEND_AGAIN

CONTENT_TYPE = "application/xml"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'


class TwilioDocuments:
    name = "twilio"
    streams = True
    can_hold = True

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        then_url = then_url + ASK_AGAIN if then_url else ""
        return stream(stream_url, parameters, then_url, status_url + SEND_AGAIN if status_url else "")

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return hold(wait_s, again_url + ASK_AGAIN)

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
    """Connect the call to a socket, both ways. Twilio refuses a query string here (31920): use parameters.

    When the socket closes, or never opened, Twilio goes on with the next verb; without one it hangs up.
    """
    response = Element("Response")
    element = SubElement(SubElement(response, "Connect"), "Stream", url=url)
    if status_url:
        element.set("statusCallback", status_url)
        element.set("statusCallbackMethod", "POST")
    for name, value in parameters.items():
        SubElement(element, "Parameter", name=name, value=value)
    if then_url:
        SubElement(response, "Redirect", method="POST").text = then_url
    return _document(response)


def hold(wait_s: int, again_url: str) -> Document:
    response = Element("Response")
    SubElement(response, "Pause", length=str(wait_s))
    SubElement(response, "Redirect", method="POST").text = again_url
    return _document(response)


def ask(url: str) -> Document:
    """Continue with another document."""
    response = Element("Response")
    SubElement(response, "Redirect", method="POST").text = url
    return _document(response)


# The same document for every call that finds no free agent.
@lru_cache(maxsize=64)
def busy(message: str) -> Document:
    response = Element("Response")
    SubElement(response, "Say").text = message
    SubElement(response, "Hangup")
    return _document(response)


def hang_up() -> Document:
    response = Element("Response")
    SubElement(response, "Hangup")
    return _document(response)


def reject() -> Document:
    """Busy, and not billed: Twilio does not answer a call whose first verb is this one."""
    response = Element("Response")
    SubElement(response, "Reject", reason="busy")
    return _document(response)


def redirect(to: str) -> Document:
    response = Element("Response")
    SubElement(response, "Dial").text = to
    return _document(response)


def redirect_sip(uri: str) -> Document:
    response = Element("Response")
    SubElement(SubElement(response, "Dial"), "Sip").text = uri
    return _document(response)


def _document(response: Element) -> Document:
    return Document(CONTENT_TYPE, _DECLARATION + tostring(response, encoding="unicode"))
