"""Responses to Vapi's request for the assistant of an inbound call."""

from collections.abc import Mapping

import msgspec

from trunkline.telephony.carrier import AnswerFallback, Document
from trunkline.telephony.forms import JSON


class VapiDocuments:
    name = "vapi"
    streams = False
    can_hold = False
    # The assistant of an account, which the carrier's name alone does not give.
    _assistant_id = ""

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """Names the assistant of an inbound call, with the parameters. There is no stream."""
        overrides = {"variableValues": dict(parameters), "metadata": dict(parameters)}
        return _json({"assistantId": self._assistant_id, "assistantOverrides": overrides})

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return self.busy_document("Please call again in a moment.")

    def busy_document(self, message: str) -> Document:
        """Vapi speaks the error and hangs up."""
        return _json({"error": message})

    def hang_up_document(self) -> Document:
        return self.busy_document("Goodbye.")

    def reject_document(self) -> Document:
        return self.busy_document("All lines are busy.")

    def redirect_document(self, to: str) -> Document:
        return _json({"destination": {"type": "number", "number": to}})

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        scheme, _, rest = fallback.url.partition(":")
        match scheme:
            case "tel":
                return self.redirect_document(rest)
            case "sip" | "sips":
                return _json({"destination": {"type": "sip", "sipUri": fallback.url}})
            case _:
                return self.busy_document(fallback.message)


def _json(value: object) -> Document:
    return Document(JSON, msgspec.json.encode(value).decode())
