"""Twilio's REST API for calls: create, fetch, list, update."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qsl, urlencode

from aiohttp import web

from trunkline.telephony.forms import read_form
from trunkline.telephony.simulator.bodies import json_reply
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.placing import Replies, place
from trunkline.telephony.simulator.twilio_language import TwilioLanguage
from trunkline.telephony.simulator.twilio_orders import read_order
from trunkline.telephony.simulator.twilio_records import call_filter, resource

_MESSAGES: Mapping[int, str] = {
    10004: "Call concurrency limit exceeded",
    20001: "A parameter cannot be read",
    20003: "Authenticate",
    20404: "The requested resource was not found",
    20429: "Too Many Requests",
    21201: "No 'To' number is specified",
    21205: "Url is not a valid URL",
    21211: "The 'To' number is not a valid phone number",
    21212: "The 'From' number is not a valid phone number",
    21213: "No 'From' number is specified",
    21214: "The 'To' number cannot be reached",
    21215: "Account not authorized to call the 'To' number",
    21216: "Account not allowed to call the 'To' number",
    21220: "Call is not in-progress. Cannot redirect.",
    22005: "The call queue is full",
}
_PAGE_SIZE_DEFAULT, _PAGE_SIZE_MAX = 50, 1000

Handler = Callable[[web.Request, SimulatedAccount], Awaitable[web.StreamResponse]]


class TwilioWire:
    def __init__(self, calls: SimulatedCalls, accounts: tuple[SimulatedAccount, ...]) -> None:
        self._calls = calls
        self.language = TwilioLanguage()
        self._accounts = {
            account.sid: (account, _basic(account)) for account in accounts if account.carrier == "twilio"
        }
        self._replies = Replies(
            created=lambda call: json_reply(resource(call), status=201),
            throttled=lambda wait_s: _refusal(429, 20429, headers={"Retry-After": str(wait_s)}),
            error=lambda: json_reply({"code": 20500, "message": "Internal Server Error"}, status=500),
            queue_full=lambda: _refusal(400, 22005),
            too_many=lambda: _refusal(400, 10004),
        )

    def routes(self) -> list[web.RouteDef]:
        account = "/2010-04-01/Accounts/{account}"
        root = f"{account}/Calls"
        return [
            web.post(f"{root}.json", self._authenticated(self._create)),
            web.get(f"{root}.json", self._authenticated(self._list)),
            web.get(f"{root}/{{call}}.json", self._authenticated(self._fetch)),
            web.post(f"{root}/{{call}}.json", self._authenticated(self._update)),
            web.get(f"{account}/IncomingPhoneNumbers.json", self._authenticated(self._list_numbers)),
            web.get(f"{account}/Recordings/{{recording}}", self._authenticated(self._send_on)),
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

    async def _create(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        order = read_order(read_form(await request.read()) or ())
        if isinstance(order, int):
            return _refusal(400, order)
        return await place(self._calls, request, account, order, self.language, self._replies)

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self._call(request, account)
        return json_reply(resource(call)) if call else _refusal(404, 20404)

    async def _update(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self._call(request, account)
        status = dict(parse_qsl(await request.text())).get("Status")
        if call is None:
            return _refusal(404, 20404)
        if status not in ("canceled", "completed"):
            return _refusal(400, 20001)
        if call.state == "ended":
            return _refusal(400, 21220)
        self._calls.hang_up(call, only_unanswered=status == "canceled")
        return json_reply(resource(call))

    async def _list(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        if self._calls.faults.list_down:
            return web.Response(status=503, text="Service Unavailable")
        query = request.query
        try:
            wanted = call_filter(query)
            size = min(max(int(query.get("PageSize", _PAGE_SIZE_DEFAULT)), 1), _PAGE_SIZE_MAX)
            number = int(query.get("Page", "0"))
        except ValueError:
            return _refusal(400, 20001)
        calls = self._calls.newest_first(query.get("To"))
        matching = [call for call in calls if call.account is account and wanted(call)]
        return json_reply(self._page(request, matching, number, size))

    def _page(
        self, request: web.Request, calls: list[SimulatedCall], number: int, size: int
    ) -> dict[str, Any]:
        """Pages continue behind the last call shown, so new calls push none out of the list."""
        token = request.query.get("PageToken", "")
        first = next((i + 1 for i, call in enumerate(calls) if call.sid == token), 0)
        shown = calls[first : first + size]
        following = None
        if first + size < len(calls):
            query = dict(request.query) | {"Page": str(number + 1), "PageToken": shown[-1].sid}
            following = f"{request.path}?{urlencode(query)}"
        return {
            "calls": [resource(call) for call in shown],
            "page": number,
            "page_size": size,
            "start": first,
            "end": first + len(shown) - 1 if shown else 0,
            "uri": request.path_qs,
            "first_page_uri": request.path_qs,
            "previous_page_uri": None,
            "next_page_uri": following,
        }

    def _call(self, request: web.Request, account: SimulatedAccount) -> SimulatedCall | None:
        call = self._calls.by_sid.get(request.match_info["call"])
        return call if call and call.account is account else None

    def _authenticated(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            account, expected = self._accounts.get(request.match_info["account"], (None, ""))
            given = request.headers.get("Authorization", "")
            if account is None or not compare_digest(given.encode(), expected.encode()):
                return _refusal(401, 20003)
            return await handler(request, account)

        return handle


def _refusal(status: int, code: int, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {
        "code": code,
        "message": _MESSAGES[code],
        "more_info": f"https://www.twilio.com/docs/errors/{code}",
        "status": status,
    }
    return json_reply(body, status=status, headers=headers)


def _basic(account: SimulatedAccount) -> str:
    return "Basic " + b64encode(f"{account.sid}:{account.auth_token}".encode()).decode()
