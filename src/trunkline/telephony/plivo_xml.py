"""Plivo XML: the documents that tell Plivo what to do with a call."""

from collections.abc import Mapping
from urllib.parse import urlencode
from xml.etree.ElementTree import Element, SubElement, tostring

from trunkline.telephony.carrier import Document

CONTENT_TYPE = "application/xml"
# What the stream carries both ways: the same as at Twilio, so an agent hears one format.
AUDIO = "audio/x-mulaw;rate=8000"


def stream(url: str, parameters: Mapping[str, str], then_url: str = "") -> Document:
    """The URL is the element's text. Extra headers allow letters and digits only, so parameters go into the query. With
    `keepCallAlive` what follows waits for the end of the stream."""
    response = Element("Response")
    element = SubElement(response, "Stream", bidirectional="true", keepCallAlive="true", contentType=AUDIO)
    element.text = f"{url}?{urlencode(parameters)}" if parameters else url
    if then_url:
        SubElement(response, "Redirect", method="POST").text = then_url
    return _document(response)


def hold(wait_s: int, again_url: str) -> Document:
    response = Element("Response")
    SubElement(response, "Wait", length=str(wait_s))
    SubElement(response, "Redirect", method="POST").text = again_url
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


def _document(response: Element) -> Document:
    return Document(CONTENT_TYPE, tostring(response, encoding="unicode"))
