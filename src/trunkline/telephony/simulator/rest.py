"""What the simulated REST APIs share: who may use them, a create request that is paced, limited, dialled and answered
correctly or by a fault, and lists that can be down."""

import asyncio
import math
import socket
import struct
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import ClassVar, NamedTuple

from aiohttp import web

from trunkline.http.connections import basic
from trunkline.telephony.simulator.calls import QueueFullError, Request, SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import CarrierName, SimulatedAccount
from trunkline.telephony.simulator.faults import UNDIALLED, ReplyFault
from trunkline.telephony.simulator.wire import CreateRequest, Wire

Handler = Callable[[web.Request, SimulatedAccount], Awaitable[web.StreamResponse]]


class Refused(NamedTuple):
    """A refusal in the carrier's words."""

    status: int
    error: str
    retry_after_s: int | None = None


class Refusals(NamedTuple):
    unauthorized: Refused
    not_found: Refused
    # A parameter of a list.
    unreadable: Refused
    throttled: Refused
    error: Refused
    queue_full: Refused
    too_many: Refused


class RestApi(Wire):
    """One carrier: its REST API, and the wire of the calls that were ordered there."""

    carrier: ClassVar[CarrierName]
    refusals: ClassVar[Refusals]

    def __init__(self, calls: SimulatedCalls, accounts: tuple[SimulatedAccount, ...]) -> None:
        self._calls = calls
        # Of several with the same credentials the first one counts.
        own = [account for account in reversed(accounts) if account.carrier == self.carrier]
        self._accounts = {self.credentials(account): account for account in own}
        # Of recordings and of calls' control URLs: set when the simulator listens.
        self.base_url = ""

    def credentials(self, account: SimulatedAccount) -> tuple[str, str]:
        """The account in a request's path, and its Authorization header."""
        return account.sid, basic(account.sid, account.auth_token)

    @abstractmethod
    def routes(self) -> list[web.RouteDef]: ...

    @abstractmethod
    def error(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response: ...

    @abstractmethod
    def read_order(self, body: bytes, account: SimulatedAccount) -> CreateRequest | str:
        """An order, or what is wrong with it."""

    @abstractmethod
    def created(self, call: SimulatedCall) -> web.Response: ...

    @abstractmethod
    def listed(self, request: web.Request, account: SimulatedAccount) -> web.Response:
        """A page of the account's calls; ValueError for a parameter that cannot be read."""

    def refuse(self, refused: Refused, wait_s: int | None = None) -> web.Response:
        wait_s = refused.retry_after_s if wait_s is None else wait_s
        return self.error(
            refused.status, refused.error, None if wait_s is None else {"Retry-After": str(wait_s)}
        )

    def authenticated(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            given = request.match_info.get("account", ""), request.headers.get("Authorization", "")
            account = self._accounts.get(given)
            return await handler(request, account) if account else self.refuse(self.refusals.unauthorized)

        return handle

    def call_of(self, request: web.Request, account: SimulatedAccount) -> SimulatedCall | None:
        call = self._calls.by_sid.get(request.match_info["call"])
        return call if call and call.account is account else None

    def calls_of(self, account: SimulatedAccount, to: str | None = None) -> list[SimulatedCall]:
        return [call for call in self._calls.newest_first(to) if call.account is account]

    async def list_calls(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        if self._calls.faults.list_down:
            return web.Response(status=503, text="Service Unavailable")
        try:
            return self.listed(request, account)
        except ValueError:
            return self.refuse(self.refusals.unreadable)

    async def create_call(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        order = self.read_order(await request.read(), account)
        if isinstance(order, str):
            return self.error(400, order)
        wait_s = self._calls.wait_s(account)
        if wait_s:
            return self.refuse(self.refusals.throttled, math.ceil(wait_s))
        if not self._calls.has_room(account):
            return self.refuse(self.refusals.too_many)
        create = self._calls.request(account, order, self)
        if create.fault in UNDIALLED:
            return self._undialled(request, create)
        try:
            call = self._calls.place(create)
        except QueueFullError:
            return self.refuse(self.refusals.queue_full)
        return await self._reply(request, create, call)

    def _undialled(self, request: web.Request, create: Request) -> web.StreamResponse:
        match create.fault:
            case ReplyFault.THROTTLED:
                return self.refuse(self.refusals.throttled, self._calls.faults.retry_after_s)
            case ReplyFault.ERROR_UNDIALLED:
                return self.refuse(self.refusals.error)
            case ReplyFault.REDIRECT_UNDIALLED:
                return web.Response(status=307, headers={"Location": request.path_qs})
            case _:
                return _reset(request)

    async def _reply(self, request: web.Request, create: Request, call: SimulatedCall) -> web.StreamResponse:
        """The call is dialled, whatever the reply to the caller is."""
        faults = self._calls.faults
        match create.fault:
            case ReplyFault.SLOW:
                await asyncio.sleep(create.slow_s)
            case ReplyFault.WEBHOOK_FIRST if call.lane.first_delivered is not None:
                with suppress(TimeoutError):  # a webhook that is lost as well is never delivered
                    async with asyncio.timeout(faults.reply_lost_s):
                        await call.lane.first_delivered.wait()
            case ReplyFault.ERROR_AFTER_DIAL:
                return self.refuse(self.refusals.error)
            case ReplyFault.GARBAGE_AFTER_DIAL:
                return web.Response(status=201, text="<html>It works!</html>", content_type="text/html")
            case ReplyFault.REPLY_LOST:
                await asyncio.sleep(faults.reply_lost_s)
                return _reset(request)
            case ReplyFault.RESET_AFTER_DIAL:
                return _reset(request)
        return self.created(call)


def page_after(
    calls: list[SimulatedCall], token: str | None, size: int
) -> tuple[int, list[SimulatedCall], str | None]:
    """Pages continue behind the last call shown, so new calls push none out of the list. Returns where the page begins,
    its calls, and the token of the next one."""
    first = next((n + 1 for n, call in enumerate(calls) if call.sid == token), 0)
    shown = calls[first : first + size]
    return first, shown, shown[-1].sid if first + size < len(calls) else None


def _reset(request: web.Request) -> web.StreamResponse:
    """Cut the connection without a reply, with RST."""
    if request.transport is not None:
        connection: socket.socket = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response()
