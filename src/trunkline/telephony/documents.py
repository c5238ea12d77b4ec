"""The documents of each carrier, by its name alone: writing one needs no account, no engine and no state."""

from collections.abc import Mapping

from trunkline.telephony.carrier import AnswerFallback, Document, Documents
from trunkline.telephony.exotel import ExotelDocuments
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
