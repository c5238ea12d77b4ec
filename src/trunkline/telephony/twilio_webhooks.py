"""Verifies a Twilio webhook, and parses it into a carrier-neutral event.

X-Twilio-Signature is base64(HMAC-SHA1(auth token, URL + every POST field as name then value, sorted)). A JSON body is
covered by its SHA-256 in the signed query instead (`bodySHA256`).
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import sha256
from urllib.parse import urlsplit, urlunsplit

from trunkline.telephony.carrier import CallbackTag, CallEvent, Unreadable, WebhookRequest, WebhookResult
from trunkline.telephony.forms import (
    FORM,
    EventFields,
    Fields,
    Statuses,
    media_type,
    read_form,
    read_query,
    whole,
)
from trunkline.telephony.reply_rules import our_fault

HEADER = "x-twilio-signature"
STATUSES = Statuses(
    live={"queued": "queued", "initiated": "queued", "ringing": "ringing", "in-progress": "answered"},
    ended={
        "completed": "completed",
        "busy": "busy",
        "no-answer": "no_answer",
        "failed": "failed",
        "canceled": "canceled",
    },
)
_FIELDS = EventFields(
    STATUSES,
    recording="RecordingStatus",
    stream="StreamEvent",
    stream_kinds={
        "stream-started": "stream_began",
        "stream-error": "stream_failed",
        "stream-stopped": "stream_ended",
    },
    # The signature covers no time stamp, so two webhooks are equal if call, event and sequence number are.
    marks={
        "recording": ("RecordingSid", "RecordingStatus"),
        "machine": ("AnsweredBy",),
        "stream": ("StreamSid",),
        "status": ("CallStatus", "SequenceNumber"),
    },
)

# An allow-list: no phone number, no caller name, no place is in it.
_SAFE_FIELDS = frozenset(
    {
        "CallSid", "CallStatus", "CallbackSource", "SequenceNumber", "Timestamp", "Direction", "ApiVersion",
        "CallDuration", "Duration", "SipResponseCode", "ErrorCode", "QueueTime", "AnsweredBy",
        "MachineDetectionDuration", "RecordingSid", "RecordingStatus", "RecordingDuration", "RecordingUrl",
        "StreamSid", "StreamEvent", "StreamError",
    }
)  # fmt: skip


def signature(auth_token: str, url: str, fields: Iterable[tuple[str, str]] = ()) -> str:
    """Names in order, each name's values without repeats and in order."""
    signed = url + "".join([name + value for name, value in sorted(set(fields))])
    return b64encode(hmac.digest(auth_token.encode(), signed.encode(), "sha1")).decode()


def verified_fields(request: WebhookRequest, auth_tokens: Sequence[str]) -> Fields | None:
    """The fields of a request that Twilio signed with one of these tokens, else None."""
    given = request.headers.get(HEADER, "").encode()
    fields: Fields | None = ()
    if request.body and media_type(request.headers.get("content-type", "")) == FORM:
        fields = read_form(request.body)
    elif request.body:
        digest = dict(read_query(request.url)).get("bodySHA256", "").lower().encode()
        fields = () if hmac.compare_digest(sha256(request.body).hexdigest().encode(), digest) else None
    # A body that the signature does not cover cannot be trusted.
    if not given or fields is None or (request.body and request.method != "POST"):
        return None
    for url in _with_and_without_port(request.url):
        for token in auth_tokens:
            if hmac.compare_digest(signature(token, url, fields).encode(), given):
                return fields if request.method == "POST" else read_query(request.url)
    return None


def _with_and_without_port(url: str) -> Iterator[str]:
    """Twilio signs the URL sometimes with and sometimes without the port: both are tried, the usual one first."""
    yield url
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return
    default = 443 if parts.scheme in ("https", "wss") else 80
    netloc = parts.netloc.removesuffix(f":{port}") if port else f"{parts.netloc}:{default}"
    yield urlunsplit(parts._replace(netloc=netloc))


def read_event(fields: Mapping[str, str], tag: CallbackTag) -> WebhookResult:
    call_id = fields.get("CallSid", "")
    if not call_id:
        return Unreadable("no CallSid")
    identified = _FIELDS.identify(call_id, fields, tag)
    if isinstance(identified, Unreadable):
        return identified
    kind, dedupe_key = identified
    status = fields.get("CallStatus", "")
    return CallEvent(
        call_id=call_id,
        kind=kind,
        callback=tag.kind,
        dedupe_key=dedupe_key,
        attempt_id=tag.attempt_id,
        sequence=whole(fields.get("SequenceNumber")),
        carrier_status=status,
        reason=STATUSES.ended.get(status),
        fault=our_fault("twilio", fields.get("ErrorCode")),
        duration_s=whole(fields.get("CallDuration")),
        answered_by=fields.get("AnsweredBy") or None,
        direction="inbound" if fields.get("Direction") == "inbound" else "outbound",
        to=fields.get("To", ""),
        from_=fields.get("From", ""),
        at=moment(fields.get("Timestamp")),
        raw={name: value for name, value in fields.items() if name in _SAFE_FIELDS},
    )


@lru_cache(maxsize=64)
def moment(text: str | None) -> datetime | None:
    """Twilio's dates are RFC 2822, in whole seconds, UTC. Events of one second have the same date. Those of streams are
    ISO 8601."""
    for read in (parsedate_to_datetime, datetime.fromisoformat) if text else ():
        with suppress(ValueError):
            date = read(str(text))
            return date.replace(tzinfo=UTC) if date.tzinfo is None else date
    return None
