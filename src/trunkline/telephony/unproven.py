"""An answer webhook whose account this process does not have and cannot read, because Postgres is away.

The platform's own signature proves the URL, which was made for this attempt and no other. That is enough to respond
with a document, so that the carrier does not hang up on the person; it is not enough to write anything.
"""

from trunkline.telephony import exotel_webhooks, plivo_webhooks, twilio_webhooks
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import CallbackTag, CallEvent, Forged, WebhookRequest, WebhookResult
from trunkline.telephony.webhook_events import fields_of


def read_answer(request: WebhookRequest, tag: CallbackTag, keys: CallbackKeys) -> WebhookResult:
    """Parse a request to a verified answer URL. `tag` is that of the URL."""
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
