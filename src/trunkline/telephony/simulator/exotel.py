"""Exotel, simulated: its REST API (connect to a flow, details of one call and of many), unsigned webhooks, and an
applet's JSON."""

from collections.abc import Mapping, MutableMapping
from datetime import datetime
from secrets import token_hex
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import msgspec
from aiohttp import web

from trunkline.http.connections import basic
from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.simulator import webhooks
from trunkline.telephony.simulator.bodies import json_reply, moment
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.frames import ExotelFrames
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.rest import Refusals, Refused, RestApi, page_after
from trunkline.telephony.simulator.webhooks import Letter, Outgoing, WebhookRetryRule
from trunkline.telephony.simulator.wire import CreateRequest, Event, StreamOrder, Verb

ZONE = ZoneInfo("Asia/Kolkata")
PAGE_SIZE, PAGE_SIZE_MAX = 50, 100
CUSTOM_FIELD_MAX = 128
_EVENTS: Mapping[str, Event] = {"ringing": "ringing", "answered": "answered", "terminal": "ended"}


class SimulatedExotel(RestApi):
    """`flows`: the URL from which the Voicebot applet of each flow requests its stream."""

    carrier = "exotel"
    # From the request on a call is in progress.
    statuses: ClassVar[Mapping[str, str]] = {
        "queued": "queued",
        "initiated": "in-progress",
        "ringing": "in-progress",
        "answered": "in-progress",
    }
    refusals = Refusals(
        unauthorized=Refused(401, "Unauthorized"),
        not_found=Refused(404, "Not Found"),
        unreadable=Refused(400, "Invalid parameter"),
        throttled=Refused(429, "Too many requests"),
        error=Refused(500, "Internal Server Error"),
        queue_full=Refused(429, "Too many requests", 1),
        too_many=Refused(429, "Too many calls", 10),
    )

    def __init__(
        self,
        calls: SimulatedCalls,
        accounts: tuple[SimulatedAccount, ...],
        flows: MutableMapping[str, str],
    ) -> None:
        super().__init__(calls, accounts)
        self._flows = flows

    def credentials(self, account: SimulatedAccount) -> tuple[str, str]:
        return account.sid, basic(account.api_key, account.auth_token)

    def routes(self) -> list[web.RouteDef]:
        root = "/v1/Accounts/{account}/Calls"
        numbers = "/v2_beta/Accounts/{account}/IncomingPhoneNumbers"
        return [
            web.post(f"{root}/connect.json", self.authenticated(self.create_call)),
            web.post(f"{root}/connect", self.authenticated(self.create_call)),
            web.get(numbers, self.authenticated(self._list_numbers)),
            web.get(f"{root}.json", self.authenticated(self.list_calls)),
            web.get(f"{root}/{{call}}.json", self.authenticated(self._fetch)),
        ]

    async def _list_numbers(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        """A page has one number, and the URL of the next one is at a host that clients must not use."""
        number = int(request.query.get("Page", "0"))
        rows = [{"sid": f"sid-{e164}", "phone_number": e164} for e164 in account.numbers[number : number + 1]]
        is_last = number + 1 >= len(account.numbers)
        following = None if is_last else f"http://another.example{request.path}?Page={number + 1}&PageSize=1"
        return json_reply({"incoming_phone_numbers": rows, "page": number, "next_page_uri": following})

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self.call_of(request, account)
        return json_reply({"Call": self._record(call)}) if call else self.refuse(self.refusals.not_found)

    def created(self, call: SimulatedCall) -> web.Response:
        return json_reply({"Call": self._record(call)})

    def error(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
        return json_reply({"RestException": {"Status": status, "Message": error}}, status, headers)

    def listed(self, request: web.Request, account: SimulatedAccount) -> web.Response:
        query = request.query
        size = min(int(query.get("PageSize", PAGE_SIZE)), PAGE_SIZE_MAX)
        since = _since(query.get("DateCreated", ""))
        calls = [
            call
            for call in self.calls_of(account, query.get("From"))
            if int(call.created_at) >= since and query.get("PhoneNumber") in (None, call.order.from_)
        ]
        _, page, token = page_after(calls, query.get("After"), size)
        metadata = {
            "Total": len(calls),
            "PageSize": size,
            "FirstPageUri": request.path_qs,
            "PrevPageUri": None,
            "NextPageUri": f"{request.path}?{urlencode({**query, 'After': token})}" if token else None,
        }
        return json_reply({"Metadata": metadata, "Calls": [self._record(call) for call in page]})

    def read_order(self, body: bytes, account: SimulatedAccount) -> CreateRequest | str:
        fields = parse_qsl(body.decode(), keep_blank_values=True)
        form = dict(fields)
        to, from_, kept = form.get("From", ""), form.get("CallerId", ""), form.get("CustomField", "")
        base, _, app_id = form.get("Url", "").rpartition("/")
        if to in REFUSALS or not to.removeprefix("+").isdecimal() or not from_:
            return "Mandatory parameter missing or invalid"
        if not base.endswith(f"/{account.sid}/exoml/start_voice") or app_id not in self._flows:
            return "Invalid parameter: Url"
        if len(kept) > CUSTOM_FIELD_MAX:
            return "Invalid parameter: CustomField"
        status_url = form.get("StatusCallback", "")
        named = [value for name, value in fields if name.startswith("StatusCallbackEvents")] or ["terminal"]
        try:
            return CreateRequest(
                to=to,
                from_=from_,
                answer_url=self._flows[app_id],
                answer_method="GET",
                event_urls={_EVENTS[name]: status_url for name in named if name in _EVENTS and status_url},
                ring_timeout_s=float(form.get("TimeOut", "60")),
                time_limit_s=min(float(form.get("TimeLimit", "14400")), 14_400.0),
                attempt=attempt_in(status_url),
                custom={"CustomField": kept},
            )
        except ValueError:
            return "Invalid parameter"

    def _record(self, call: SimulatedCall) -> dict[str, Any]:
        return {
            "Sid": call.sid,
            "ParentCallSid": None,
            "DateCreated": _local(call.created_at),
            "DateUpdated": _local(call.updated_at),
            "AccountSid": call.account.sid,
            "To": None,
            "From": call.order.to,
            "PhoneNumberSid": call.order.from_,
            "Status": self.status_of(call),
            "StartTime": _local(call.created_at),
            "EndTime": _local(call.updated_at) if call.state == "ended" else None,
            "Duration": str(call.talked_s) if call.talked_s else None,
            "Price": None,
            "Direction": "inbound" if call.order.is_inbound else "outbound-api",
            "AnsweredBy": None,
            "Uri": f"/v1/Accounts/{call.account.sid}/Calls.json/{call.sid}",
            "RecordingUrl": None,
        }

    # --- the wire of a call

    def new_call_id(self) -> str:
        return token_hex(16)

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        url = call.order.event_urls.get(event)
        return [_sent("POST", url, self._about(call, event), webhooks.EXOTEL)] if url else []

    def _about(self, call: SimulatedCall, event: Event) -> dict[str, Any]:
        order = call.order
        return {
            "CallSid": call.sid,
            "EventType": "terminal" if event == "ended" else event,
            "DateCreated": _local(call.created_at),
            "DateUpdated": _local(call.updated_at),
            "Status": self.status_of(call),
            "To": order.to if order.is_inbound else None,
            "From": order.person,
            "PhoneNumberSid": order.own_number,
            "StartTime": _local(call.created_at),
            "EndTime": _local(call.updated_at) if event == "ended" else None,
            "Direction": "inbound" if order.is_inbound else "outbound-api",
            "ConversationDuration": 0,
            "CustomField": order.custom.get("CustomField", ""),
            "RecordingUrl": None,
            "Legs": [{"OnCallDuration": call.talked_s, "Status": self.status_of(call), "AnsweredBy": "NA"}],
        }

    def is_refusal(self, status: int) -> bool:
        return status == 503

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        """The Voicebot applet requests the stream's URL with a GET."""
        order = call.order
        query = {
            "CallSid": call.sid,
            "CallFrom": order.person,
            "CallTo": order.own_number,
            "Direction": "incoming" if order.is_inbound else "outbound-api",
            "Created": _local(call.created_at),
            "CustomField": str(order.custom.get("CustomField", "")),
        }
        return _sent("GET", f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", None, webhooks.NEVER)

    def read_document(self, body: bytes) -> list[Verb]:
        try:
            url = msgspec.json.decode(body, type=dict[str, str])["url"]
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as error:
            raise ValueError("no URL of a stream") from error
        return [StreamOrder(url)]

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> ExotelFrames:
        return ExotelFrames(call, stream)


def _sent(method: str, url: str, body: dict[str, Any] | None, rule: WebhookRetryRule) -> Letter:
    """User name and password in the URL become a header, as in HTTP clients."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    headers = [("User-Agent", "Exotel"), ("Content-Type", "application/json")]
    if userinfo:
        user, _, password = userinfo.partition(":")
        headers.append(("Authorization", basic(user, password)))
    target = urlunsplit(parts._replace(netloc=host))
    content = msgspec.json.encode(body) if body is not None else b""
    return Letter(Outgoing(method, target, tuple(headers), content), rule)


def _local(instant: float) -> str:
    return f"{moment(instant).astimezone(ZONE):%Y-%m-%d %H:%M:%S}"


def _since(text: str) -> int:
    begin = next((part.removeprefix("gte:") for part in text.split(";") if part.startswith("gte:")), "")
    return int(datetime.fromisoformat(begin).replace(tzinfo=ZONE).timestamp()) if begin else 0
