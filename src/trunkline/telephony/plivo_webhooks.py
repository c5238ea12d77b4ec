"""Verifies a Plivo webhook, and parses it into a carrier-neutral event.

Signature V3 covers URL and fields: base64(HMAC-SHA256(token, base + "." + nonce)). The base of a GET is the URL with
its query sorted. That of a POST is the same URL, a `.` behind its query (a bare `?` when it has none), and every field
as name then value, sorted. V2 covers only the URL without its query.

A call made by API is identified by its request's id, which the create returned; `CallUUID` is an alias. Plivo's
webhooks have no sequence number and no time: two are equal if call and status are.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from trunkline.telephony.carrier import CallbackTag, CallEvent, Unreadable, WebhookRequest, WebhookResult
from trunkline.telephony.forms import (
    EventFields,
    Fields,
    Statuses,
    cost_of,
    fields_of,
    read_query,
    whole,
)
from trunkline.telephony.reply_rules import our_fault

# Plivo sends each twice: signed with the subaccount's token, and (Ma) with the main account's.
V3_HEADERS = ("x-plivo-signature-v3", "x-plivo-signature-ma-v3")
V3_NONCE = "x-plivo-signature-v3-nonce"
V2_HEADERS = ("x-plivo-signature-v2", "x-plivo-signature-ma-v2")
V2_NONCE = "x-plivo-signature-v2-nonce"

STATUSES = Statuses(
    live={"queued": "queued", "ringing": "ringing", "in-progress": "answered"},
    ended={
        "completed": "completed",
        "busy": "busy",
        "no-answer": "no_answer",
        "timeout": "no_answer",
        "failed": "failed",
        "cancel": "canceled",
    },
)
_FIELDS = EventFields(
    STATUSES,
    recording="RecordUrl",
    stream="Event",
    # What is slow, has played or was cleared streams.
    stream_kinds={
        "StartStream": "stream_began",
        "DegradedStream": "stream_began",
        "PlayedStream": "stream_began",
        "ClearedAudio": "stream_began",
        "DroppedStream": "stream_failed",
        "StopStream": "stream_ended",
    },
    marks={
        "recording": ("RecordingID",),
        "machine": ("Machine",),
        "stream": ("StreamID",),
        "status": ("CallStatus",),
    },
)
_ANSWERED_BY: Mapping[str, str] = {"true": "machine", "false": "human"}

# An allow-list: no phone number and no caller name is in it.
_SAFE_FIELDS = frozenset(
    {
        "CallUUID", "RequestUUID", "ALegRequestUUID", "ALegUUID", "CallStatus", "Direction", "Event", "Duration",
        "BillDuration", "HangupCause", "HangupCauseCode", "HangupCauseName", "HangupSource", "StartTime", "AnswerTime",
        "EndTime", "SessionStart", "Machine", "RecordUrl", "RecordingID", "RecordingDuration", "RecordingDurationMs",
        "STIRVerification", "StreamID",
    }
)  # fmt: skip


def signature_v3(auth_token: str, method: str, url: str, fields: Fields, nonce: str) -> str:
    return _proof(auth_token, f"{_base(url, fields if method == 'POST' else ())}.{nonce}")


def signature_v2(auth_token: str, url: str, nonce: str) -> str:
    return _proof(auth_token, _bare(url) + nonce)


def verified_fields(request: WebhookRequest, auth_tokens: Sequence[str]) -> Fields | None:
    """The fields of a request that Plivo signed with one of these tokens, else None.

    V2 counts only if there is no V3 at all: it does not cover the body.
    """
    is_post, headers = request.method == "POST", request.headers
    if request.body and not is_post:
        return None
    fields = () if is_post and not request.body else fields_of(request)
    if fields is None:
        return None
    given = _given(headers.get(name, "") for name in V3_HEADERS)
    if given:
        base = f"{_base(request.url, fields if is_post else ())}.{headers.get(V3_NONCE, '')}"
    else:
        given = _given(headers.get(name, "") for name in V2_HEADERS)
        base = _bare(request.url) + headers.get(V2_NONCE, "")
    expected = [_proof(token, base).encode() for token in auth_tokens]
    # Every pair is compared, so the time does not reveal which one fits.
    matches = [hmac.compare_digest(proof, signature) for proof in expected for signature in given]
    return fields if any(matches) else None


def _given(values: Iterable[str]) -> list[bytes]:
    """Each header may be a list, one signature per present token of the account."""
    return [text.strip().encode() for value in values for text in value.split(",") if text.strip()]


def _base(url: str, fields: Fields) -> str:
    query = "&".join([f"{name}={value}" for name, value in sorted(read_query(url))])
    if not fields:
        return _bare(url) + (f"?{query}" if query else "")
    signed = "".join([name + value for name, value in sorted(fields)])
    return f"{_bare(url)}?{query}{'.' if query else ''}{signed}"


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _proof(auth_token: str, signed: str) -> str:
    return b64encode(hmac.digest(auth_token.encode(), signed.encode("utf-8", "replace"), "sha256")).decode()


def e164(number: str) -> str:
    """Plivo leaves the plus out of numbers."""
    return f"+{number}" if number.isascii() and number.isdecimal() else number


def read_event(fields: Mapping[str, str], tag: CallbackTag) -> WebhookResult:
    names = [fields.get(name, "") for name in ("RequestUUID", "ALegRequestUUID", "CallUUID")]
    call_id, *others = list(dict.fromkeys(name for name in names if name)) or [""]
    if not call_id:
        return Unreadable("no CallUUID")
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
        alias_ids=tuple(others),
        is_leg_id=not any(names[:2]),
        cost=cost_of(fields.get("TotalCost")) if kind == "ended" else None,
        carrier_status=status,
        reason=STATUSES.ended.get(status),
        fault=our_fault("plivo", fields.get("HangupCauseCode")),
        duration_s=whole(fields.get("Duration")),
        answered_by=_ANSWERED_BY.get(fields.get("Machine", "").lower()),
        direction="inbound" if fields.get("Direction") == "inbound" else "outbound",
        to=e164(fields.get("To", "")),
        from_=e164(fields.get("From", "")),
        raw={name: value for name, value in fields.items() if name in _SAFE_FIELDS},
    )
