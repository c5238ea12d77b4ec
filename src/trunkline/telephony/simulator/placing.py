"""Handles a create request for every carrier: paces, limits and dials it, and replies correctly or by a fault."""

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

from trunkline.telephony.simulator.calls import QueueFullError, Request, SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.faults import UNDIALLED, ReplyFault
from trunkline.telephony.simulator.wire import CreateRequest, Wire


@dataclass(frozen=True, slots=True)
class Replies:
    """The replies of one carrier."""

    created: Callable[[SimulatedCall], web.Response]
    throttled: Callable[[int], web.Response]
    error: Callable[[], web.Response]
    queue_full: Callable[[], web.Response]
    too_many: Callable[[], web.Response]


async def place(
    calls: SimulatedCalls,
    request: web.Request,
    account: SimulatedAccount,
    order: CreateRequest,
    wire: Wire,
    replies: Replies,
) -> web.StreamResponse:
    wait_s = calls.wait_s(account)
    if wait_s:
        return replies.throttled(math.ceil(wait_s))
    if not calls.has_room(account):
        return replies.too_many()
    create = calls.request(account, order, wire)
    if create.fault in UNDIALLED:
        return _undialled(calls, request, create, replies)
    try:
        call = calls.place(create)
    except QueueFullError:
        return replies.queue_full()
    return await _reply(calls, request, create, call, replies)


def _undialled(
    calls: SimulatedCalls, request: web.Request, create: Request, replies: Replies
) -> web.StreamResponse:
    match create.fault:
        case ReplyFault.THROTTLED:
            return replies.throttled(calls.faults.retry_after_s)
        case ReplyFault.ERROR_UNDIALLED:
            return replies.error()
        case ReplyFault.REDIRECT_UNDIALLED:
            return web.Response(status=307, headers={"Location": request.path_qs})
        case _:
            return _reset(request)


async def _reply(
    calls: SimulatedCalls, request: web.Request, create: Request, call: SimulatedCall, replies: Replies
) -> web.StreamResponse:
    """The call is dialled, whatever the reply to the caller is."""
    match create.fault:
        case ReplyFault.SLOW:
            await asyncio.sleep(create.slow_s)
        case ReplyFault.WEBHOOK_FIRST if call.lane.first_delivered is not None:
            with suppress(TimeoutError):  # a webhook that is lost as well is never delivered
                async with asyncio.timeout(calls.faults.reply_lost_s):
                    await call.lane.first_delivered.wait()
        case ReplyFault.ERROR_AFTER_DIAL:
            return replies.error()
        case ReplyFault.GARBAGE_AFTER_DIAL:
            return web.Response(status=201, text="<html>It works!</html>", content_type="text/html")
        case ReplyFault.REPLY_LOST:
            await asyncio.sleep(calls.faults.reply_lost_s)
            return _reset(request)
        case ReplyFault.RESET_AFTER_DIAL:
            return _reset(request)
    return replies.created(call)


def _reset(request: web.Request) -> web.StreamResponse:
    """Cut the connection without a reply, with RST."""
    if request.transport is not None:
        connection: socket.socket = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response()
