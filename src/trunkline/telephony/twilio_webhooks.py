"""Verifies a Twilio webhook, and parses it into a carrier-neutral event.

X-Twilio-Signature is base64(HMAC-SHA1(auth token, URL + every POST field as name then value, sorted)). A JSON body is
covered by its SHA-256 in the signed query instead (`bodySHA256`).
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import sha256
from urllib.parse import urlsplit, urlunsplit

from trunkline.telephony.carrier import CallbackTag, CallEvent, Unreadable, WebhookRequest, WebhookResult
from trunkline.telephony.forms import FORM, Fields, media_type, read_form, read_query, whole
from trunkline.telephony.reply_rules import our_fault
from trunkline.telephony.webhook_events import EventFields, Statuses

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
    return _proof(auth_token, url + _joined(fields))


def verified_fields(request: WebhookRequest, auth_tokens: Sequence[str]) -> Fields | None:
    """The fields of a request that Twilio signed with one of these tokens, else None."""
    given = request.headers.get(HEADER, "").encode()
    fields = _post_fields(request)
    if not given or fields is None:
        return None
    signed = _joined(fields)
    for url in _with_and_without_port(request.url):
        for token in auth_tokens:
            if hmac.compare_digest(_proof(token, url + signed).encode(), given):
                return fields if request.method == "POST" else read_query(request.url)
    return None


def _joined(fields: Iterable[tuple[str, str]]) -> str:
    """A set of pairs, sorted: names in order, each name's values without repeats and in order."""
    return "".join([name + value for name, value in sorted(set(fields))])


def _proof(auth_token: str, signed: str) -> str:
    return b64encode(hmac.digest(auth_token.encode(), signed.encode(), "sha1")).decode()


def _post_fields(request: WebhookRequest) -> Fields | None:
    """The fields of the body that the signature covers. None: it does not cover the body, which cannot be trusted."""
    if request.method != "POST" or not request.body:
        return () if not request.body else None
    if media_type(request.headers.get("content-type", "")) == FORM:
        return read_form(request.body)
    digest = dict(read_query(request.url)).get("bodySHA256", "")
    covered = hmac.compare_digest(sha256(request.body).hexdigest().encode(), digest.lower().encode())
    return () if covered else None


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
    kind = _FIELDS.kind(fields, tag)
    if isinstance(kind, Unreadable):
        return kind
    status = fields.get("CallStatus", "")
    return CallEvent(
        call_id=call_id,
        kind=kind,
        callback=tag.kind,
        dedupe_key=_FIELDS.dedupe_key(call_id, kind, fields, tag),
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


def moment(text: object) -> datetime | None:
    return _moment(text) if isinstance(text, str) and text else None


@lru_cache(maxsize=64)
def _moment(text: str) -> datetime | None:
    """Twilio's dates are RFC 2822, in whole seconds, UTC. Events of one second have the same date. Those of streams are
    ISO 8601."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = read(text)
            break
        except ValueError:
            continue
    else:
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
