"""TwiML: the documents that tell Twilio what to do with a call."""

from collections.abc import Mapping
from functools import lru_cache
from xml.etree.ElementTree import Element, SubElement, tostring

from trunkline.telephony.carrier import Document

CONTENT_TYPE = "application/xml"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'


def stream(url: str, parameters: Mapping[str, str], then_url: str = "") -> Document:
    """Connect the call to a socket, both ways. Twilio refuses a query string here (31920): use parameters. Whoever
    closes the socket, the next verb follows; without one the call is over."""
    response = Element("Response")
    element = SubElement(SubElement(response, "Connect"), "Stream", url=url)
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


# The same words for every call that finds nobody free.
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


def _document(response: Element) -> Document:
    return Document(CONTENT_TYPE, _DECLARATION + tostring(response, encoding="unicode"))
