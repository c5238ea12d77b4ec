"""Exotel's REST API for calls: connect to a flow, details of one call, details of many."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qsl, urlencode

from aiohttp import web

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.simulator.bodies import json_reply
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.durations import duration_s
from trunkline.telephony.simulator.exotel_language import ZONE, ExotelLanguage, local, status_of
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.placing import Replies, place
from trunkline.telephony.simulator.wire import CreateRequest, Event

Handler = Callable[[web.Request, SimulatedAccount], Awaitable[web.StreamResponse]]
PAGE_SIZE, PAGE_SIZE_MAX = 50, 100
CUSTOM_FIELD_MAX = 128
_EVENTS: Mapping[str, Event] = {"ringing": "ringing", "answered": "answered", "terminal": "ended"}


class ExotelWire:
    """`flows`: the URL from which the Voicebot applet of each flow requests its stream."""

    def __init__(
        self,
        calls: SimulatedCalls,
        accounts: tuple[SimulatedAccount, ...],
        flows: MutableMapping[str, str],
    ) -> None:
        self._calls = calls
        self._flows = flows
        self.language = ExotelLanguage()
        self._accounts = {
            account.sid: (account, _basic(account)) for account in accounts if account.carrier == "exotel"
        }
        self._replies = Replies(
            created=lambda call: json_reply({"Call": self._record(call)}),
            throttled=lambda wait_s: _error(429, "Too many requests", {"Retry-After": str(wait_s)}),
            error=lambda: _error(500, "Internal Server Error"),
            queue_full=lambda: _error(429, "Too many requests", {"Retry-After": "1"}),
            too_many=lambda: _error(429, "Too many calls", {"Retry-After": "10"}),
        )

    def routes(self) -> list[web.RouteDef]:
        root = "/v1/Accounts/{account}/Calls"
        return [
            web.post(f"{root}/connect.json", self._authenticated(self._create)),
            web.post(f"{root}/connect", self._authenticated(self._create)),
            web.get(
                "/v2_beta/Accounts/{account}/IncomingPhoneNumbers", self._authenticated(self._list_numbers)
            ),
            web.get(f"{root}.json", self._authenticated(self._list)),
            web.get(f"{root}/{{call}}.json", self._authenticated(self._fetch)),
        ]

    async def _list_numbers(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        """A page has one number, and the URL of the next one is at a host that clients must not use."""
        number = int(request.query.get("Page", "0"))
        rows = [{"sid": f"sid-{e164}", "phone_number": e164} for e164 in account.numbers[number : number + 1]]
        is_last = number + 1 >= len(account.numbers)
        following = None if is_last else f"http://another.example{request.path}?Page={number + 1}&PageSize=1"
        return json_reply({"incoming_phone_numbers": rows, "page": number, "next_page_uri": following})

    async def _create(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        order = self._read_order(parse_qsl(await request.text(), keep_blank_values=True), account)
        if isinstance(order, str):
            return _error(400, order)
        return await place(self._calls, request, account, order, self.language, self._replies)

    def _read_order(self, fields: list[tuple[str, str]], account: SimulatedAccount) -> CreateRequest | str:
        """An order, or what is wrong with it."""
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

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self._calls.by_sid.get(request.match_info["call"])
        if call is None or call.account is not account:
            return _error(404, "Not Found")
        return json_reply({"Call": self._record(call)})

    async def _list(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        if self._calls.faults.list_down:
            return web.Response(status=503, text="Service Unavailable")
        query = request.query
        try:
            size = min(int(query.get("PageSize", PAGE_SIZE)), PAGE_SIZE_MAX)
            since = _since(query.get("DateCreated", ""))
        except ValueError:
            return _error(400, "Invalid parameter")
        calls = [
            call
            for call in self._calls.newest_first(query.get("From"))
            if call.account is account
            and int(call.created_at) >= since
            and query.get("PhoneNumber") in (None, call.order.from_)
        ]
        first = next((n + 1 for n, call in enumerate(calls) if call.sid == query.get("After")), 0)
        page = calls[first : first + size]
        following = None
        if first + size < len(calls):
            following = f"{request.path}?{urlencode(dict(query) | {'After': page[-1].sid})}"
        metadata = {
            "Total": len(calls),
            "PageSize": size,
            "FirstPageUri": request.path_qs,
            "PrevPageUri": None,
            "NextPageUri": following,
        }
        return json_reply({"Metadata": metadata, "Calls": [self._record(call) for call in page]})

    def _record(self, call: SimulatedCall) -> dict[str, Any]:
        talked_s = duration_s(call)
        return {
            "Sid": call.sid,
            "ParentCallSid": None,
            "DateCreated": local(call.created_at),
            "DateUpdated": local(call.updated_at),
            "AccountSid": call.account.sid,
            "To": None,
            "From": call.order.to,
            "PhoneNumberSid": call.order.from_,
            "Status": status_of(call),
            "StartTime": local(call.created_at),
            "EndTime": local(call.updated_at) if call.state == "ended" else None,
            "Duration": str(talked_s) if talked_s else None,
            "Price": None,
            "Direction": "outbound-api" if call.order.direction == "outbound" else "inbound",
            "AnsweredBy": None,
            "Uri": f"/v1/Accounts/{call.account.sid}/Calls.json/{call.sid}",
            "RecordingUrl": None,
        }

    def _authenticated(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            account, expected = self._accounts.get(request.match_info["account"], (None, ""))
            given = request.headers.get("Authorization", "")
            if account is None or not compare_digest(given.encode(), expected.encode()):
                return _error(401, "Unauthorized")
            return await handler(request, account)

        return handle


def _since(text: str) -> int:
    begin = next((part.removeprefix("gte:") for part in text.split(";") if part.startswith("gte:")), "")
    return int(datetime.fromisoformat(begin).replace(tzinfo=ZONE).timestamp()) if begin else 0


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"RestException": {"Status": status, "Message": message}}
    return json_reply(body, status=status, headers=headers)


def _basic(account: SimulatedAccount) -> str:
    return "Basic " + b64encode(f"{account.api_key}:{account.auth_token}".encode()).decode()
