"""The documents of each carrier, by its name alone: no account, no engine and no memory is needed to say something to a
carrier that it understands."""

from collections.abc import Mapping

from trunkline.telephony.carrier import AnswerFallback, Document, Documents
from trunkline.telephony.exotel_documents import ExotelDocuments
from trunkline.telephony.plivo_xml import PlivoDocuments
from trunkline.telephony.twiml import TwilioDocuments
from trunkline.telephony.vapi_documents import VapiDocuments

_BY_NAME: Mapping[str, Documents] = {
    one.name: one for one in (TwilioDocuments(), PlivoDocuments(), ExotelDocuments(), VapiDocuments())
}


def documents_for(carrier: str) -> Documents | None:
    return _BY_NAME.get(carrier)


def last_resorts(fallback: AnswerFallback) -> Mapping[str, Document]:
    """By carrier, what an answered call is told when nothing else could be found out: built when a process starts."""
    return {name: one.fallback_document(fallback) for name, one in _BY_NAME.items()}
