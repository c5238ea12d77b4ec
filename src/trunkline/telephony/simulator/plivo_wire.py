"""Plivo's REST API for calls: create; queued, live and ended calls, each in a view of its own; delete and cancel."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import msgspec
from aiohttp import web

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.simulator.bodies import json_reply
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.durations import duration_s, moment
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.placing import Replies, place
from trunkline.telephony.simulator.plivo_language import CAUSES, PlivoLanguage, bare, status_of
from trunkline.telephony.simulator.wire import CreateRequest, Event

Handler = Callable[[web.Request, SimulatedAccount], Awaitable[web.StreamResponse]]
PAGE_SIZE_MAX = 20
# Records are in the console's time zone, which is not UTC.
ZONE = timezone(timedelta(hours=5, minutes=30))


class PlivoWire:
    def __init__(self, calls: SimulatedCalls, accounts: tuple[SimulatedAccount, ...]) -> None:
        self._calls = calls
        self.language = PlivoLanguage()
        self._accounts = {
            account.sid: (account, _basic(account)) for account in accounts if account.carrier == "plivo"
        }
        self._replies = Replies(
            created=lambda call: _json({"message": "call fired", "request_uuid": call.sid}, 201),
            throttled=lambda wait_s: _error(429, "too many requests", {"Retry-After": str(wait_s)}),
            error=lambda: _error(500, "internal error"),
            queue_full=lambda: _error(400, "the queue is full"),
            too_many=lambda: _error(400, "concurrent call limit reached"),
        )

    def routes(self) -> list[web.RouteDef]:
        root = "/v1/Account/{account}"
        return [
            web.post(f"{root}/Call/", self._authenticated(self._create)),
            web.get(f"{root}/Number/", self._authenticated(self._list_numbers)),
            web.get(f"{root}/Call/", self._authenticated(self._list)),
            web.get(f"{root}/Call/{{call}}/", self._authenticated(self._fetch)),
            web.delete(f"{root}/Call/{{call}}/", self._authenticated(self._delete)),
            web.delete(f"{root}/Request/{{call}}/", self._authenticated(self._cancel)),
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

    async def _create(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        order = _read_order(await request.read())
        if isinstance(order, str):
            return _error(400, order)
        return await place(self._calls, request, account, order, self.language, self._replies)

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self._call(request, account)
        if call is None or _view(call) != request.query.get("status", ""):
            return _error(404, "not found")
        return _json(self._record(call) if call.state == "ended" else _live(call))

    async def _delete(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        return self._hang_up(request, account, only_unanswered=False)

    async def _cancel(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        return self._hang_up(request, account, only_unanswered=True)

    def _hang_up(
        self, request: web.Request, account: SimulatedAccount, *, only_unanswered: bool
    ) -> web.StreamResponse:
        call = self._call(request, account)
        if call is None or call.state == "ended" or (only_unanswered and call.state == "answered"):
            return _error(404, "not found")
        self._calls.hang_up(call, only_unanswered=only_unanswered)
        return web.Response(status=204)

    async def _list(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        if self._calls.faults.list_down:
            return web.Response(status=503, text="Service Unavailable")
        query = request.query
        try:
            size = min(int(query.get("limit", PAGE_SIZE_MAX)), PAGE_SIZE_MAX)
            first = int(query.get("offset", "0"))
            ended_since = _instant(query.get("end_time__gte"))
        except ValueError:
            return _error(400, "a parameter cannot be read")
        status = query.get("status", "")
        calls = [call for call in self._calls.newest_first(None) if call.account is account]
        # Queued calls have no filter; the others match by prefix, as at Plivo.
        if status != "queued":
            calls = [call for call in calls if _is_of_pair(call, query)]
        shown = [call for call in calls if _view(call) == status and call.updated_at >= ended_since]
        page = shown[first : first + size]
        if status:
            return _json({"calls": [call.sid for call in page]})
        following = None
        if first + size < len(shown):
            following = f"{request.path}?{urlencode(dict(query) | {'offset': str(first + size)})}"
        meta = {
            "limit": size,
            "offset": first,
            "next": following,
            "previous": None,
            "total_count": len(shown),
        }
        return _json({"meta": meta, "objects": [self._record(call) for call in page]})

    def _record(self, call: SimulatedCall) -> dict[str, Any]:
        assert call.reason is not None
        _, name, code = CAUSES[call.reason]
        answered_at = call.dial.answered_at if call.dial else None
        talked_s = duration_s(call)
        return {
            "answer_time": _local(answered_at) if answered_at else None,
            "bill_duration": talked_s,
            "billed_duration": -(-talked_s // 60) * 60,
            "call_direction": call.order.direction,
            "call_duration": talked_s,
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
            "total_amount": f"{0.01 * -(-talked_s // 60):.5f}",
            "total_rate": "0.00550",
        }

    def _call(self, request: web.Request, account: SimulatedAccount) -> SimulatedCall | None:
        call = self._calls.by_sid.get(request.match_info["call"])
        return call if call and call.account is account else None

    def _authenticated(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            account, expected = self._accounts.get(request.match_info["account"], (None, ""))
            given = request.headers.get("Authorization", "")
            if account is None or not compare_digest(given.encode(), expected.encode()):
                return _error(401, "authentication failed")
            return await handler(request, account)

        return handle


def _view(call: SimulatedCall) -> str:
    """Which of the three lists shows it."""
    if call.state == "ended":
        return ""
    return "queued" if call.state in ("queued", "initiated") else "live"


def _is_of_pair(call: SimulatedCall, query: Mapping[str, str]) -> bool:
    to, from_ = query.get("to_number", ""), query.get("from_number", "")
    return bare(call.order.to).startswith(bare(to)) and bare(call.order.from_).startswith(bare(from_))


def _live(call: SimulatedCall) -> dict[str, Any]:
    return {
        "call_status": status_of(call),
        "call_uuid": call.sid,
        "caller_name": "",
        "direction": call.order.direction,
        "from": bare(call.order.from_),
        "request_uuid": call.sid,
        "session_start": f"{moment(call.created_at):%Y-%m-%d %H:%M:%S.%f}",
        "to": bare(call.order.to),
    }


def _read_order(body: bytes) -> CreateRequest | str:
    """An order, or what is wrong with it."""
    try:
        form: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        ring_timeout_s, time_limit_s = (
            float(form.get("ring_timeout", 120)),
            float(form.get("time_limit", 14_400)),
        )
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


def _instant(text: str | None) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if text else 0.0


def _local(instant: float) -> str:
    return f"{moment(instant).astimezone(ZONE).replace(microsecond=0).isoformat(sep=' ')}"


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return json_reply({"api_id": str(uuid4()), **body}, status=status)


def _error(status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return json_reply({"api_id": str(uuid4()), "error": error}, status=status, headers=headers)


def _basic(account: SimulatedAccount) -> str:
    return "Basic " + b64encode(f"{account.sid}:{account.auth_token}".encode()).decode()
