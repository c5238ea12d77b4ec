"""Twilio, simulated: its REST API for calls, signed webhook forms, and TwiML."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from secrets import token_hex
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode
from xml.etree.ElementTree import Element

from aiohttp import web

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.carrier import EndReason
from trunkline.telephony.forms import FORM, read_form
from trunkline.telephony.simulator import webhooks
from trunkline.telephony.simulator.bodies import VerbReaders, form_letter, json_reply, read_verbs, text_of
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.frames import TwilioFrames
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.rest import Refusals, Refused, RestApi, page_after
from trunkline.telephony.simulator.webhooks import Letter
from trunkline.telephony.simulator.wire import (
    STATUSES,
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
from trunkline.telephony.twilio_webhooks import signature

PRICE_PER_MINUTE = 0.0140
_PAGE_SIZE_DEFAULT, _PAGE_SIZE_MAX = 50, 1000
_MESSAGES: Mapping[str, str] = {
    "10004": "Call concurrency limit exceeded",
    "20001": "A parameter cannot be read",
    "20003": "Authenticate",
    "20404": "The requested resource was not found",
    "20429": "Too Many Requests",
    "20500": "Internal Server Error",
    "21201": "No 'To' number is specified",
    "21205": "Url is not a valid URL",
    "21211": "The 'To' number is not a valid phone number",
    "21212": "The 'From' number is not a valid phone number",
    "21213": "No 'From' number is specified",
    "21214": "The 'To' number cannot be reached",
    "21215": "Account not authorized to call the 'To' number",
    "21216": "Account not allowed to call the 'To' number",
    "21220": "Call is not in-progress. Cannot redirect.",
    "22005": "The call queue is full",
}
_EVENTS: Mapping[str, Event] = {
    "initiated": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "completed": "ended",
}
_STREAM_EVENTS: Mapping[StreamEvent, str] = {
    "started": "stream-started",
    "stopped": "stream-stopped",
    "failed": "stream-error",
}
_SIP_CODES: Mapping[EndReason, str] = {
    "completed": "200",
    "busy": "486",
    "no_answer": "487",
    "failed": "404",
    "canceled": "487",
}
_VERBS: VerbReaders = {
    "Say": lambda element: [Say(text_of(element))],
    "Pause": lambda element: [Pause(float(element.get("length", "1")))],
    "Redirect": lambda element: [Redirect(text_of(element))],
    "Hangup": lambda _: [HangUpOrder()],
    "Reject": lambda _: [HangUpOrder(unanswered=True)],
    "Dial": lambda element: [Forward(text_of(element))],
    "Connect": lambda element: [_stream(child) for child in element.iter("Stream")],
}


class SimulatedTwilio(RestApi):
    carrier = "twilio"
    statuses: ClassVar[Mapping[str, str]] = {**STATUSES, "initiated": "initiated"}
    refusals = Refusals(
        unauthorized=Refused(401, "20003"),
        not_found=Refused(404, "20404"),
        unreadable=Refused(400, "20001"),
        throttled=Refused(429, "20429"),
        error=Refused(500, "20500"),
        queue_full=Refused(400, "22005"),
        too_many=Refused(400, "10004"),
    )

    def routes(self) -> list[web.RouteDef]:
        account = "/2010-04-01/Accounts/{account}"
        root = f"{account}/Calls"
        return [
            web.post(f"{root}.json", self.authenticated(self.create_call)),
            web.get(f"{root}.json", self.authenticated(self.list_calls)),
            web.get(f"{root}/{{call}}.json", self.authenticated(self._fetch)),
            web.post(f"{root}/{{call}}.json", self.authenticated(self._update)),
            web.get(f"{account}/IncomingPhoneNumbers.json", self.authenticated(self._list_numbers)),
            web.get(f"{account}/Recordings/{{recording}}", self.authenticated(self._send_on)),
        ]

    async def _list_numbers(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        """A page has one number, so that clients have to follow the pages."""
        number = int(request.query.get("Page", "0"))
        rows = [
            {"phone_number": e164, "capabilities": {"voice": True, "sms": True}}
            for e164 in account.numbers[number : number + 1]
        ]
        is_last = number + 1 >= len(account.numbers)
        following = None if is_last else f"{request.path}?PageSize=1&Page={number + 1}&PageToken=PA{number}"
        return json_reply({"incoming_phone_numbers": rows, "page": number, "next_page_uri": following})

    async def _send_on(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        """Redirects to the recording's URL, as Twilio does for an account with protected media."""
        raise web.HTTPFound(f"/recordings/{request.match_info['recording']}.wav")

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self.call_of(request, account)
        return json_reply(self._resource(call)) if call else self.refuse(self.refusals.not_found)

    async def _update(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self.call_of(request, account)
        status = dict(parse_qsl(await request.text())).get("Status")
        if call is None:
            return self.refuse(self.refusals.not_found)
        if status not in ("canceled", "completed"):
            return self.refuse(self.refusals.unreadable)
        if call.state == "ended":
            return self.error(400, "21220")
        self._calls.hang_up(call, only_unanswered=status == "canceled")
        return json_reply(self._resource(call))

    def created(self, call: SimulatedCall) -> web.Response:
        return json_reply(self._resource(call), status=201)

    def error(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
        body = {
            "code": int(error),
            "message": _MESSAGES[error],
            "more_info": f"https://www.twilio.com/docs/errors/{error}",
            "status": status,
        }
        return json_reply(body, status=status, headers=headers)

    def listed(self, request: web.Request, account: SimulatedAccount) -> web.Response:
        query = request.query
        wanted = self._filter(query)
        size = min(max(int(query.get("PageSize", _PAGE_SIZE_DEFAULT)), 1), _PAGE_SIZE_MAX)
        number = int(query.get("Page", "0"))
        calls = [call for call in self.calls_of(account, query.get("To")) if wanted(call)]
        first, shown, token = page_after(calls, query.get("PageToken"), size)
        following = None
        if token:
            following = f"{request.path}?{urlencode({**query, 'Page': str(number + 1), 'PageToken': token})}"
        page = {
            "calls": [self._resource(call) for call in shown],
            "page": number,
            "page_size": size,
            "start": first,
            "end": first + len(shown) - 1 if shown else 0,
            "uri": request.path_qs,
            "first_page_uri": request.path_qs,
            "previous_page_uri": None,
            "next_page_uri": following,
        }
        return json_reply(page)

    def _filter(self, query: Mapping[str, str]) -> Callable[[SimulatedCall], bool]:
        from_, status = query.get("From"), query.get("Status")
        after, before = _instant(query.get("StartTime>")), _instant(query.get("StartTime<"))
        over_after, over_before = _instant(query.get("EndTime>")), _instant(query.get("EndTime<"))

        def wanted(call: SimulatedCall) -> bool:
            return (
                (not from_ or call.order.from_ == from_)
                and (not status or status == self._shown(call))
                # A call that was not dialled yet has no start time, so no filter by start time matches it.
                and _is_within(call.dial.started_at if call.dial else None, after, before)
                and _is_within(call.dial.ended_at if call.dial else None, over_after, over_before)
            )

        return wanted

    def read_order(self, body: bytes, account: SimulatedAccount) -> CreateRequest | str:
        fields = read_form(body) or ()
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
            return "20001"

    def _shown(self, call: SimulatedCall) -> str:
        """The REST API has no "initiated": until it rings, a dialled call is shown as queued."""
        return "queued" if call.state == "initiated" else self.status_of(call)

    def _resource(self, call: SimulatedCall) -> dict[str, Any]:
        dial, talked_s = call.dial, call.talked_s
        uri = f"/2010-04-01/Accounts/{call.account.sid}/Calls/{call.sid}"
        return {
            "sid": call.sid,
            "account_sid": call.account.sid,
            "to": call.order.to,
            "to_formatted": call.order.to,
            "from": call.order.from_,
            "from_formatted": call.order.from_,
            "status": self._shown(call),
            "direction": "inbound" if call.order.is_inbound else "outbound-api",
            "date_created": _rfc2822(call.created_at),
            "date_updated": _rfc2822(call.updated_at),
            "start_time": _rfc2822(dial.started_at) if dial else None,
            "end_time": _rfc2822(dial.ended_at) if dial and dial.ended_at else None,
            "duration": str(talked_s) if talked_s else None,
            "queue_time": str(call.queue_ms),
            "answered_by": None,
            "api_version": "2010-04-01",
            # At Twilio it appears minutes after the end, here at once.
            "price": f"-{PRICE_PER_MINUTE * -(-talked_s // 60):.5f}" if talked_s else None,
            "price_unit": "USD",
            "parent_call_sid": None,
            "phone_number_sid": None,
            "forwarded_from": None,
            "group_sid": None,
            "caller_name": None,
            "trunk_sid": None,
            "uri": f"{uri}.json",
            "subresource_uris": {"recordings": f"{uri}/Recordings.json"},
        }

    # --- the wire of a call

    def new_call_id(self) -> str:
        return f"CA{token_hex(16)}"

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        order = call.order
        letters = [self._status(call, event, url)] if (url := order.event_urls.get(event)) else []
        if event == "answered" and order.machine_url:
            machine = {"AnsweredBy": _answered_by(call), "MachineDetectionDuration": "4200"}
            letters.append(_signed(call, "POST", order.machine_url, _ids(call) | machine))
        if event == "ended" and order.recording_url and call.reason == "completed":
            letters.append(_signed(call, "POST", order.recording_url, self._recording(call)))
        return letters

    def _status(self, call: SimulatedCall, event: Event, url: str) -> Letter:
        fields = self._about(call) | {
            "CallbackSource": "call-progress-events",
            "SequenceNumber": str(call.sequence),
            "Timestamp": _rfc2822(call.updated_at),
        }
        if event == "ended" and call.reason:
            fields |= {
                "CallDuration": str(call.talked_s),
                "Duration": str(-(-call.talked_s // 60)),
                "SipResponseCode": _SIP_CODES[call.reason],
            }
        return _signed(call, call.order.status_method, url, fields)

    def _recording(self, call: SimulatedCall) -> dict[str, str]:
        sid = f"RE{call.sid[2:]}"
        return _ids(call) | {
            "RecordingSid": sid,
            "RecordingStatus": "completed",
            "RecordingUrl": f"{self.base_url}/2010-04-01/Accounts/{call.account.sid}/Recordings/{sid}",
            "RecordingDuration": str(call.talked_s),
        }

    def stream_letters(self, call: SimulatedCall, stream: StreamOrder, event: StreamEvent) -> list[Letter]:
        if not stream.status_url:
            return []
        fields = _ids(call) | {
            "StreamSid": stream.id,
            "StreamName": stream.id,
            "StreamEvent": _STREAM_EVENTS[event],
            "Timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        }
        if event == "failed":
            fields["StreamError"] = "31920: Stream - WebSocket - Handshake Error"
        return [_signed(call, stream.status_method, stream.status_url, fields)]

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        failed = {"ErrorCode": "11200", "ErrorUrl": failed_url.partition("#")[0]} if failed_url else {}
        return _signed(call, call.order.answer_method, url, self._about(call) | failed)

    def _about(self, call: SimulatedCall) -> dict[str, str]:
        order = call.order
        fields = {
            "AccountSid": call.account.sid,
            "ApiVersion": "2010-04-01",
            "CallSid": call.sid,
            "CallStatus": self.status_of(call),
            "Called": order.to,
            "Caller": order.from_,
            "Direction": "inbound" if order.is_inbound else "outbound-api",
            "From": order.from_,
            "To": order.to,
        }
        # Asynchronous detection has a webhook of its own.
        is_known = order.machine_detection and not order.machine_url
        if is_known and call.dial is not None and call.dial.answered_at is not None:
            fields["AnsweredBy"] = _answered_by(call)
        return fields

    def read_document(self, body: bytes) -> list[Verb]:
        return read_verbs(body, _VERBS)

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> TwilioFrames | None:
        """31920: query strings are not supported."""
        return None if "?" in stream.url else TwilioFrames(call, stream)

    def stream_headers(self, call: SimulatedCall, url: str) -> dict[str, str]:
        return {"X-Twilio-Signature": signature(call.account.auth_token, url)}


def _signed(call: SimulatedCall, method: str, url: str, fields: Mapping[str, str]) -> Letter:
    def headers(target: str, signed: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return (
            ("User-Agent", "TwilioProxy/1.1"),
            ("Accept", "*/*"),
            ("Content-Type", FORM),
            ("X-Twilio-Signature", signature(call.account.auth_token, target, signed.items())),
        )

    return form_letter(method, url, fields, headers, webhooks.TWILIO)


def _ids(call: SimulatedCall) -> dict[str, str]:
    return {"AccountSid": call.account.sid, "CallSid": call.sid}


def _answered_by(call: SimulatedCall) -> str:
    return "machine_start" if call.fate.machine else "human"


def _stream(element: Element) -> StreamOrder:
    parameters = {child.get("name", ""): child.get("value", "") for child in element.iter("Parameter")}
    return StreamOrder(
        element.get("url", ""),
        parameters,
        f"MZ{token_hex(16)}",
        element.get("statusCallback", ""),
        element.get("statusCallbackMethod", "POST"),
    )


def _error_in(form: Mapping[str, str], to: str, from_: str) -> str | None:
    if not to:
        return "21201"
    if not from_:
        return "21213"
    if to in REFUSALS:
        return str(REFUSALS[to])
    if not _is_number(to):
        return "21211"
    if not _is_number(from_):
        return "21212"
    if "Twiml" not in form and not form.get("Url", "").startswith(("http://", "https://")):
        return "21205"
    return None


def _is_number(text: str) -> bool:
    return text.startswith("+") and text[1:].isdecimal() and 8 <= len(text) <= 16


def _is_within(instant: float | None, after: float | None, before: float | None) -> bool:
    """Without an instant, only if there is no bound."""
    if instant is None:
        return after is None and before is None
    return (after is None or int(instant) >= after) and (before is None or int(instant) <= before)


def _instant(text: str | None) -> float | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _rfc2822(instant: float) -> str:
    return _second(int(instant))


@lru_cache(maxsize=1024)  # under load, many things happen in one second
def _second(instant: int) -> str:
    return formatdate(instant).replace("-0000", "+0000")
