"""Twilio's create form, read and refused as Twilio does."""

from collections.abc import Mapping

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.forms import Fields
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.wire import CreateRequest, Event

_EVENTS: Mapping[str, Event] = {
    "initiated": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "completed": "ended",
}


def read_order(fields: Fields) -> CreateRequest | int:
    """An order, or the code of the error in it."""
    form = dict(fields)
    to, from_ = form.get("To", ""), form.get("From", "")
    error = _error_in(form, to, from_)
    if error:
        return error
    # A repeated field per event. Unknown events are ignored, so events joined by spaces subscribe to nothing.
    named = [value for name, value in fields if name == "StatusCallbackEvent"] or ["completed"]
    answer_url, status_url = form.get("Url", ""), form.get("StatusCallback", "")
    try:
        return CreateRequest(
            to=to,
            from_=from_,
            answer_url=answer_url,
            fallback_url=form.get("FallbackUrl", ""),
            inline_document=form.get("Twiml", "").encode(),
            answer_method=form.get("Method", "POST").upper(),
            status_method=form.get("StatusCallbackMethod", "POST").upper(),
            event_urls={_EVENTS[name]: status_url for name in named if name in _EVENTS and status_url},
            machine_url=form.get("AsyncAmdStatusCallback", ""),
            recording_url=form.get("RecordingStatusCallback", "") if form.get("Record") == "true" else "",
            ring_timeout_s=min(float(form.get("Timeout", "60")), 600.0),
            time_limit_s=float(form.get("TimeLimit", "14400")),
            machine_detection="MachineDetection" in form,
            attempt=attempt_in(status_url) or attempt_in(answer_url),
        )
    except ValueError:
        return 20001


def _error_in(form: Mapping[str, str], to: str, from_: str) -> int | None:
    if not to:
        return 21201
    if not from_:
        return 21213
    if to in REFUSALS:
        return REFUSALS[to]
    if not _is_number(to):
        return 21211
    if not _is_number(from_):
        return 21212
    if "Twiml" not in form and not form.get("Url", "").startswith(("http://", "https://")):
        return 21205
    return None


def _is_number(text: str) -> bool:
    return text.startswith("+") and text[1:].isdecimal() and 8 <= len(text) <= 16
