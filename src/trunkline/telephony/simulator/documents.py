"""XML documents, as Twilio and Plivo take them."""

from xml.etree import ElementTree

BYTES_MAX = 64 * 1024


def read_xml(body: bytes) -> ElementTree.Element:
    """The `Response`, or ValueError."""
    if len(body) > BYTES_MAX or b"<!DOCTYPE" in body:
        raise ValueError("too long, or with a DOCTYPE")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - entities need a DOCTYPE, refused above
    except ElementTree.ParseError as error:
        raise ValueError("not XML") from error
    if root.tag != "Response":
        raise ValueError("no Response")
    return root
