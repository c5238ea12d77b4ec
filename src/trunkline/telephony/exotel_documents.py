"""Responses to Exotel's Voicebot applet: the URL of a stream, or 503, and then the flow takes its other branch.

It is the only carrier that gets a 5xx: it has no document that holds, speaks or hangs up.
"""

from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from trunkline.telephony.carrier import AnswerFallback, Document
from trunkline.telephony.forms import JSON


class ExotelDocuments:
    name = "exotel"
    streams = True
    can_hold = False

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """Up to three parameters and 256 characters reach the stream, in the query of its URL. After the stream the
        account's flow goes on with its next applet, without a request to the platform. Exotel reports no streams."""
        return _stream(f"{stream_url}?{urlencode(parameters)}" if parameters else stream_url)

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return _unavailable("please hold")

    def busy_document(self, message: str) -> Document:
        return _unavailable(message)

    def hang_up_document(self) -> Document:
        return _unavailable("over")

    def reject_document(self) -> Document:
        return _unavailable("busy")

    def redirect_document(self, to: str) -> Document:
        return _unavailable("busy")

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        is_stream = fallback.url.startswith(("wss:", "ws:"))
        return _stream(fallback.url) if is_stream else _unavailable(fallback.message)


def _stream(url: str) -> Document:
    return Document(JSON, msgspec.json.encode({"url": url}).decode())


def _unavailable(message: str) -> Document:
    """The applet takes the flow's other branch on anything but a 200."""
    return Document(JSON, msgspec.json.encode({"error": message}).decode(), status=503)
