"""What needs only the name of a carrier, and no account, engine or state: writing its documents, and reading a request
for one whose account this process does not have and cannot read, because Postgres is away."""

from collections.abc import Mapping

from trunkline.telephony import exotel_webhooks, plivo_webhooks, twilio_webhooks
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import (
    AnswerFallback,
    CallbackTag,
    CallEvent,
    Document,
    Documents,
    Forged,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.exotel import ExotelDocuments
from trunkline.telephony.forms import fields_of
from trunkline.telephony.plivo import PlivoDocuments
from trunkline.telephony.twilio import TwilioDocuments
from trunkline.telephony.vapi import VapiDocuments

_BY_NAME: Mapping[str, Documents] = {
    documents.name: documents
    for documents in (TwilioDocuments(), PlivoDocuments(), ExotelDocuments(), VapiDocuments())
}


def documents_for(carrier: str) -> Documents | None:
    return _BY_NAME.get(carrier)


def last_resorts(fallback: AnswerFallback) -> Mapping[str, Document]:
    """By carrier, the document for an answered call when everything else failed: built when a process starts."""
    return {name: documents.fallback_document(fallback) for name, documents in _BY_NAME.items()}


def read_answer(request: WebhookRequest, tag: CallbackTag, keys: CallbackKeys) -> WebhookResult:
    """Parse a request to a verified answer URL, whose tag this is. The platform's own signature proves the URL, which
    was made for this attempt and no other. That is enough to respond with a document, so that the carrier does not hang
    up on the person; it is not enough to write anything."""
    fields = dict(fields_of(request) or ())
    match tag.carrier:
        case "twilio":
            event = twilio_webhooks.read_event(fields, tag)
        case "plivo":
            event = plivo_webhooks.read_event(fields, tag)
        case "exotel":
            event = exotel_webhooks.read_event(fields, tag, keys, exotel_webhooks.Locale())
        case _:
            return Forged("no answer URL is given to this carrier")
    if isinstance(event, CallEvent) and event.attempt_id is None:
        return Forged("without an attempt nothing is proven")
    return event
