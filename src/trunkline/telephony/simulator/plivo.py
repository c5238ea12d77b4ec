"""Plivo, simulated: its REST API, where queued, live and ended calls have a view each, signed webhook forms, and Plivo
XML."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from secrets import randbelow
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import uuid4
from xml.etree.ElementTree import Element

import msgspec
from aiohttp import web

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.carrier import EndReason
from trunkline.telephony.forms import FORM
from trunkline.telephony.plivo_webhooks import signature_v2, signature_v3
from trunkline.telephony.simulator import webhooks
from trunkline.telephony.simulator.bodies import (
    VerbReaders,
    form_letter,
    json_reply,
    moment,
    read_verbs,
    text_of,
)
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.frames import PlivoFrames
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.rest import Refusals, Refused, RestApi
from trunkline.telephony.simulator.webhooks import Letter
from trunkline.telephony.simulator.wire import (
    END_STATUSES,
    CreateRequest,
    Event,
    Forward,
    HangUpOrder,
    Pause,
    Redirect,
    Say,
    StreamEvent,
    StreamOrder,
    Verb,
)

PAGE_SIZE_MAX = 20
# Records are in the console's time zone, which is not UTC.
ZONE = timezone(timedelta(hours=5, minutes=30))
_STREAM_EVENTS: Mapping[StreamEvent, str] = {
    "started": "StartStream",
    "stopped": "StopStream",
    "failed": "DroppedStream",
}
CAUSES: Mapping[EndReason, tuple[str, str, int]] = {
    "completed": ("NORMAL_CLEARING", "Normal Hangup", 4000),
    "busy": ("USER_BUSY", "Busy Line", 3010),
    "no_answer": ("NO_ANSWER", "No Answer", 3000),
    "failed": ("UNALLOCATED_NUMBER", "Invalid Destination Address", 2000),
    "canceled": ("ORIGINATOR_CANCEL", "Cancelled", 1000),
}
_VERBS: VerbReaders = {
    "Speak": lambda element: [Say(text_of(element))],
    "Wait": lambda element: [Pause(float(element.get("length", "1")))],
    "Redirect": lambda element: [Redirect(text_of(element))],
    "Hangup": lambda element: [HangUpOrder(unanswered=element.get("reason") in ("busy", "rejected"))],
    "Dial": lambda element: [Forward("".join(element.itertext()).strip())],
    "Stream": lambda element: [_stream(element)],
}


class SimulatedPlivo(RestApi):
    carrier = "plivo"
    end_statuses: ClassVar[Mapping[EndReason, str]] = {**END_STATUSES, "canceled": "cancel"}
    refusals = Refusals(
        unauthorized=Refused(401, "authentication failed"),
        not_found=Refused(404, "not found"),
        unreadable=Refused(400, "a parameter cannot be read"),
        throttled=Refused(429, "too many requests"),
        error=Refused(500, "internal error"),
        queue_full=Refused(400, "the queue is full"),
        too_many=Refused(400, "concurrent call limit reached"),
    )

    def routes(self) -> list[web.RouteDef]:
        root = "/v1/Account/{account}"
        return [
            web.post(f"{root}/Call/", self.authenticated(self.create_call)),
            web.get(f"{root}/Number/", self.authenticated(self._list_numbers)),
            web.get(f"{root}/Call/", self.authenticated(self.list_calls)),
            web.get(f"{root}/Call/{{call}}/", self.authenticated(self._fetch)),
            web.delete(f"{root}/Call/{{call}}/", self.authenticated(self._delete)),
            web.delete(f"{root}/Request/{{call}}/", self.authenticated(self._cancel)),
        ]

    async def _list_numbers(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        """A page has one number, so that clients have to follow the pages."""
        offset = int(request.query.get("offset", "0"))
        rows = [
            {"number": bare(e164), "voice_enabled": True} for e164 in account.numbers[offset : offset + 1]
        ]
        is_last = offset + 1 >= len(account.numbers)
        following = None if is_last else f"{request.path}?limit=1&offset={offset + 1}"
        meta = {"limit": 1, "offset": offset, "next": following, "total_count": len(account.numbers)}
        return _json({"meta": meta, "objects": rows})

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self.call_of(request, account)
        if call is None or _view(call) != request.query.get("status", ""):
            return self.refuse(self.refusals.not_found)
        return _json(_record(call) if call.state == "ended" else self._live(call))

    async def _delete(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        return self._hang_up(request, account, only_unanswered=False)

    async def _cancel(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        return self._hang_up(request, account, only_unanswered=True)

    def _hang_up(
        self, request: web.Request, account: SimulatedAccount, *, only_unanswered: bool
    ) -> web.StreamResponse:
        call = self.call_of(request, account)
        if call is None or call.state == "ended" or (only_unanswered and call.state == "answered"):
            return self.refuse(self.refusals.not_found)
        self._calls.hang_up(call, only_unanswered=only_unanswered)
        return web.Response(status=204)

    def created(self, call: SimulatedCall) -> web.Response:
        return _json({"message": "call fired", "request_uuid": call.sid}, 201)

    def error(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
        return _json({"error": error}, status, headers)

    def listed(self, request: web.Request, account: SimulatedAccount) -> web.Response:
        query = request.query
        size = min(int(query.get("limit", PAGE_SIZE_MAX)), PAGE_SIZE_MAX)
        first, ended_since = int(query.get("offset", "0")), _instant(query.get("end_time__gte"))
        status = query.get("status", "")
        calls = self.calls_of(account)
        # Queued calls have no filter; the others match by prefix, as at Plivo.
        if status != "queued":
            calls = [call for call in calls if _is_of_pair(call, query)]
        shown = [call for call in calls if _view(call) == status and call.updated_at >= ended_since]
        page = shown[first : first + size]
        if status:
            return _json({"calls": [call.sid for call in page]})
        following = None
        if first + size < len(shown):
            following = f"{request.path}?{urlencode({**query, 'offset': str(first + size)})}"
        meta = {
            "limit": size,
            "offset": first,
            "next": following,
            "previous": None,
            "total_count": len(shown),
        }
        return _json({"meta": meta, "objects": [_record(call) for call in page]})

    def _live(self, call: SimulatedCall) -> dict[str, Any]:
        return {
            "call_status": self.status_of(call),
            "call_uuid": call.sid,
            "caller_name": "",
            "direction": call.order.direction,
            "from": bare(call.order.from_),
            "request_uuid": call.sid,
            "session_start": f"{moment(call.created_at):%Y-%m-%d %H:%M:%S.%f}",
            "to": bare(call.order.to),
        }

    def read_order(self, body: bytes, account: SimulatedAccount) -> CreateRequest | str:
        try:
            form: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
            ring_timeout_s = float(form.get("ring_timeout", 120))
            time_limit_s = float(form.get("time_limit", 14_400))
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError, TypeError):
            return "the body cannot be read"
        to, from_ = f"+{bare(str(form.get('to', '')))}", f"+{bare(str(form.get('from', '')))}"
        answer_url = str(form.get("answer_url", ""))
        if to in REFUSALS or not to[1:].isdecimal() or not 8 <= len(to) <= 16:
            return f"to parameter is invalid: {to}"
        if not from_[1:].isdecimal():
            return "from parameter is invalid"
        if not answer_url.startswith(("http://", "https://")):
            return "answer_url parameter is invalid"
        urls: dict[Event, str] = {}
        if form.get("ring_url"):
            urls["ringing"] = str(form["ring_url"])
        urls["ended"] = str(form.get("hangup_url") or answer_url)
        return CreateRequest(
            to=to,
            from_=from_,
            answer_url=answer_url,
            fallback_url=str(form.get("fallback_url") or ""),
            answer_method=str(form.get("answer_method", "POST")).upper(),
            event_urls=urls,
            machine_url=str(form.get("machine_detection_url") or "") if form.get("machine_detection") else "",
            ring_timeout_s=ring_timeout_s,
            time_limit_s=time_limit_s,
            attempt=attempt_in(urls["ended"]) or attempt_in(answer_url),
        )

    # --- the wire of a call

    def new_call_id(self) -> str:
        return str(uuid4())

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        letters = [self._event(call, event, url)] if (url := call.order.event_urls.get(event)) else []
        if event == "answered" and call.order.machine_url:
            is_machine = str(call.fate.machine).lower()
            machine = {"CallUUID": call.sid, "Machine": is_machine, "Event": "MachineDetection"}
            letters.append(_signed(call, "POST", call.order.machine_url, machine))
        return letters

    def _event(self, call: SimulatedCall, event: Event, url: str) -> Letter:
        fields = self._about(call) | {"Event": "Hangup" if event == "ended" else "Ring"}
        if event == "ended" and call.reason:
            cause, name, code = CAUSES[call.reason]
            fields |= {
                "Duration": str(call.talked_s),
                "BillDuration": str(-(-call.talked_s // 60) * 60),
                "TotalCost": _cost(call),
                "HangupCause": cause,
                "HangupCauseName": name,
                "HangupCauseCode": str(code),
                "HangupSource": "Callee",
                "EndTime": f"{moment(call.updated_at):%Y-%m-%d %H:%M:%S}",
            }
        return _signed(call, "POST", url, fields)

    def stream_letters(self, call: SimulatedCall, stream: StreamOrder, event: StreamEvent) -> list[Letter]:
        """They name the call by its call id alone, and tell no status and no direction."""
        if not stream.status_url:
            return []
        fields = {
            "CallUUID": call.sid,
            "Event": _STREAM_EVENTS[event],
            "From": bare(call.order.from_),
            "To": bare(call.order.to),
            "ServiceURL": stream.url,
            "StreamID": stream.id,
        }
        return [_signed(call, stream.status_method, stream.status_url, fields)]

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        return _signed(call, call.order.answer_method, url, self._about(call) | {"Event": "StartApp"})

    def _about(self, call: SimulatedCall) -> dict[str, str]:
        order = call.order
        fields = {
            "CallUUID": call.sid,
            "CallStatus": self.status_of(call),
            "Direction": order.direction,
            "From": bare(order.from_),
            "To": bare(order.to),
            "SessionStart": f"{moment(call.created_at):%Y-%m-%d %H:%M:%S.%f}",
            "BillRate": "0.0055",
        }
        if not order.is_inbound:
            fields |= {"RequestUUID": call.sid, "ALegUUID": call.sid, "ALegRequestUUID": call.sid}
        return fields

    def read_document(self, body: bytes) -> list[Verb]:
        return read_verbs(body, _VERBS)

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> PlivoFrames:
        return PlivoFrames(call, stream)


def bare(number: str) -> str:
    """Plivo leaves the plus out of numbers."""
    return number.removeprefix("+")


def _signed(call: SimulatedCall, method: str, url: str, fields: Mapping[str, str]) -> Letter:
    """Sends both versions, as Plivo does."""
    token, nonce = call.account.auth_token, str(randbelow(10**20)).zfill(20)

    def headers(target: str, signed: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return (
            ("User-Agent", "Plivo"),
            ("Content-Type", FORM),
            ("X-Plivo-Signature-V2", signature_v2(token, target, nonce)),
            ("X-Plivo-Signature-V2-Nonce", nonce),
            ("X-Plivo-Signature-V3", signature_v3(token, method, target, list(signed.items()), nonce)),
            ("X-Plivo-Signature-V3-Nonce", nonce),
        )

    return form_letter(method, url, fields, headers, webhooks.PLIVO)


def _stream(element: Element) -> StreamOrder:
    return StreamOrder(
        text_of(element),
        id=str(uuid4()),
        status_url=element.get("statusCallbackUrl", ""),
        status_method=element.get("statusCallbackMethod", "POST"),
    )


def _view(call: SimulatedCall) -> str:
    """Which of the three lists shows it."""
    if call.state == "ended":
        return ""
    return "queued" if call.state in ("queued", "initiated") else "live"


def _is_of_pair(call: SimulatedCall, query: Mapping[str, str]) -> bool:
    to, from_ = query.get("to_number", ""), query.get("from_number", "")
    return bare(call.order.to).startswith(bare(to)) and bare(call.order.from_).startswith(bare(from_))


def _record(call: SimulatedCall) -> dict[str, Any]:
    assert call.reason is not None
    _, name, code = CAUSES[call.reason]
    answered_at = call.dial.answered_at if call.dial else None
    return {
        "answer_time": _local(answered_at) if answered_at else None,
        "bill_duration": call.talked_s,
        "billed_duration": -(-call.talked_s // 60) * 60,
        "call_direction": call.order.direction,
        "call_duration": call.talked_s,
        "call_uuid": call.sid,
        "end_time": _local(call.updated_at),
        "from_number": bare(call.order.from_),
        "hangup_cause_code": code,
        "hangup_cause_name": name,
        "hangup_source": "Callee",
        "initiation_time": _local(call.created_at),
        "parent_call_uuid": None,
        "resource_uri": f"/v1/Account/{call.account.sid}/Call/{call.sid}/",
        "to_number": bare(call.order.to),
        "total_amount": _cost(call),
        "total_rate": "0.00550",
    }


def _cost(call: SimulatedCall) -> str:
    return f"{0.01 * -(-call.talked_s // 60):.5f}"


def _instant(text: str | None) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if text else 0.0


def _local(instant: float) -> str:
    return f"{moment(instant).astimezone(ZONE).replace(microsecond=0).isoformat(sep=' ')}"


def _json(body: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return json_reply({"api_id": str(uuid4()), **body}, status, headers)
