"""An answer webhook whose account this process does not have and cannot read, because Postgres is away.

The platform's own signature proves the URL, which was made for this attempt and no other. That is enough to respond
with a document, so that the carrier does not hang up on the person; it is not enough to write anything.
"""

from collections.abc import Mapping

from trunkline.telephony.callbacks import CallbackKeys, verified_attempt
from trunkline.telephony.carrier import CallbackTag, CallEvent, Forged, WebhookRequest, WebhookResult
from trunkline.telephony.exotel_webhooks import Locale
from trunkline.telephony.exotel_webhooks import read_event as read_exotel
from trunkline.telephony.forms import read_fields, read_query
from trunkline.telephony.plivo_webhooks import read_event as read_plivo
from trunkline.telephony.twilio_webhooks import read_event as read_twilio
from trunkline.value import replace


def read_answer(request: WebhookRequest, tag: CallbackTag, keys: CallbackKeys) -> WebhookResult:
    """Parse a request to a verified answer URL. `tag` is that of the URL."""
    fields = _fields(request)
    match tag.carrier:
        case "twilio":
            event = read_twilio(fields, tag)
        case "plivo":
            event = read_plivo(fields, tag)
        case "exotel":
            known = verified_attempt(fields.get("CustomField", ""), "exotel", keys)
            attempt_id = tag.attempt_id or (known.attempt_id if known else None)
            event = read_exotel(fields, tag, attempt_id, Locale())
            if isinstance(event, CallEvent) and known and known.attempt_id == attempt_id:
                event = replace(event, agent=known.agent)
        case _:
            return Forged("no answer URL is given to this carrier")
    if isinstance(event, CallEvent) and event.attempt_id is None:
        return Forged("without an attempt nothing is proven")
    return event


def _fields(request: WebhookRequest) -> Mapping[str, str]:
    if request.method != "POST":
        return dict(read_query(request.url))
    return dict(read_fields(request.headers.get("content-type", ""), request.body) or ())
