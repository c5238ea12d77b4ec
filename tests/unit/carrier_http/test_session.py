"""The session against a server that misbehaves on purpose. What counts is how often it saw each request."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trunkline.http import connections as session_module
from trunkline.http.connections import (
    CarrierSession,
    Connection,
    Exchange,
    HttpReply,
    NotSent,
    Origin,
    ReplyLost,
    basic,
)
from trunkline.testing.clock import ManualClock

OK = b'HTTP/1.1 201 Created\r\nContent-Length: 13\r\n\r\n{"sid":"CA1"}'
Answer = Callable[["Server", asyncio.StreamWriter, int], Awaitable[None]]


class Server:
    """Reads whole requests and lets the test answer each, told which one it is on its connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.bytes_read = 0
        self.bodies: Counter[str] = Counter()
        self.heads: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.asked, self.left = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self.done = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        number = 0
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next((int(v) for n, v in _headers(head) if n == "content-length"), 0)
                body = await reader.readexactly(length)
                self.bytes_read += len(head) + length
                self.heads.append(head.decode())
                self.bodies[body.decode() or head.split(b" ")[0].decode()] += 1
                number += 1
                self.asked.release()
                await self._answer(self, writer, number)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.left.release()


def _headers(head: bytes) -> list[tuple[str, str]]:
    lines = [line.partition(":") for line in head.decode().split("\r\n")[1:] if ":" in line]
    return [(name.strip().lower(), value.strip()) for name, _, value in lines]


async def answer_ok(_server: Server, writer: asyncio.StreamWriter, _number: int) -> None:
    writer.write(OK)


async def never_answer(server: Server, _writer: asyncio.StreamWriter, _number: int) -> None:
    await server.done.wait()


async def answer_first(server: Server, writer: asyncio.StreamWriter, number: int) -> None:
    if number == 1:
        writer.write(OK)
    else:
        await server.done.wait()


async def close_at_second(_server: Server, writer: asyncio.StreamWriter, number: int) -> None:
    if number == 1:
        writer.write(OK)
    else:
        writer.close()


async def answer_and_close(_server: Server, writer: asyncio.StreamWriter, _number: int) -> None:
    """As a server does whose keep-alive time is over the moment it has answered."""
    writer.write(OK)
    writer.close()


def beneath(writer: asyncio.StreamWriter) -> socket.socket:
    """The same connection without the loop: what is done with it has happened when the call returns."""
    return socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))


def saying(reply: bytes) -> Answer:
    async def answer(_server: Server, writer: asyncio.StreamWriter, _number: int) -> None:
        writer.write(reply)
        writer.close()

    return answer


async def reset(_server: Server, writer: asyncio.StreamWriter, _number: int) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()


@asynccontextmanager
async def against(answer: Answer, **options: Any) -> AsyncIterator[tuple[Server, CarrierSession]]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/calls"
    session = CarrierSession(basic("user", "password"), **({"connect_timeout_s": 30.0} | options))
    try:
        yield server, session
    finally:
        await session.aclose()
        server.done.set()
        listener.close()


async def send(session: CarrierSession, url: str, body: str = "a=1", **options: Any) -> Exchange:
    return await session.post(url, "application/x-www-form-urlencoded", body.encode(), **options)


async def test_a_reply_is_read_with_status_body_and_headers() -> None:
    async with against(answer_ok) as (server, session):
        reply = await send(session, server.url)
    assert isinstance(reply, HttpReply)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (201, b'{"sid":"CA1"}', "13")


async def test_a_post_on_a_kept_alive_connection_that_closes_is_sent_once() -> None:
    async with against(close_at_second) as (server, session):
        assert isinstance(await send(session, server.url, "first"), HttpReply)
        assert isinstance(await send(session, server.url, "second"), ReplyLost)
        assert server.connections == 1  # it was the kept-alive one, and no other was tried
        assert server.bodies == {"first": 1, "second": 1}


async def test_posts_to_a_server_that_drops_idle_connections_are_sent_at_most_once() -> None:
    async with against(answer_and_close) as (server, session):
        results = [await send(session, server.url, f"order-{n}") for n in range(50)]
        assert max(server.bodies.values()) == 1
        answered = [n for n, result in enumerate(results) if isinstance(result, HttpReply)]
        assert all(server.bodies[f"order-{n}"] == 1 for n in answered)


@pytest.mark.parametrize("method", ["get", "delete"])
async def test_a_get_or_delete_on_a_closed_kept_alive_connection_is_sent_again_once(method: str) -> None:
    """What the two tests above would see if a POST were treated the same."""
    async with against(close_at_second) as (server, session):
        for _ in range(2):
            assert isinstance(await getattr(session, method)(server.url), HttpReply)
        assert server.bodies == {method.upper(): 3}


async def test_a_get_with_a_partial_reply_is_not_sent_again() -> None:
    async def says_a_little(_server: Server, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(OK if number == 1 else b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-")
        if number == 2:
            writer.close()

    async with against(says_a_little) as (server, session):
        assert isinstance(await session.get(server.url), HttpReply)
        assert isinstance(await session.get(server.url), ReplyLost)
        assert server.bodies == {"GET": 2}


async def test_a_half_closed_connection_is_not_used_for_a_post() -> None:
    async with against(answer_ok) as (server, session):
        await send(session, server.url, "first")
        with beneath(server.writers[0]) as connection:
            connection.shutdown(socket.SHUT_WR)
        assert isinstance(await send(session, server.url, "second"), HttpReply)
        assert server.connections == 2


async def test_a_late_reply_is_not_taken_for_the_next_requests() -> None:
    async with against(answer_ok) as (server, session):
        await send(session, server.url, "first")
        with beneath(server.writers[0]) as connection:
            connection.send(OK.replace(b"CA1", b"CA9"))
        reply = await send(session, server.url, "second")
        assert isinstance(reply, HttpReply)
        assert reply.body == b'{"sid":"CA1"}'


async def test_an_idle_connection_with_unsolicited_bytes_is_closed() -> None:
    async with against(answer_ok, keepalive_s=60) as (server, session):
        await send(session, server.url, "first")
        server.writers[0].write(OK)
        await asyncio.wait_for(server.left.acquire(), 10)


async def test_a_reply_past_the_total_timeout_is_lost() -> None:
    """On a connection that is there already: the time it takes to connect counts too."""
    async with against(answer_first) as (server, session):
        assert isinstance(await send(session, server.url, "first"), HttpReply)
        session._total_timeout_s = 0.2
        assert isinstance(await send(session, server.url), ReplyLost)
        for _ in range(2):
            await asyncio.wait_for(server.asked.acquire(), 10)
        assert server.bodies == {"first": 1, "a=1": 1}
        assert server.connections == 1


async def test_a_reset_after_sending_is_lost() -> None:
    async with against(reset) as (server, session):
        assert isinstance(await send(session, server.url), ReplyLost)
        assert server.bodies == {"a=1": 1}


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 201 Cre",
        b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{",
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
async def test_a_broken_reply_is_lost(reply: bytes) -> None:
    async with against(saying(reply)) as (server, session):
        assert isinstance(await send(session, server.url), ReplyLost)
        assert server.bodies == {"a=1": 1}


async def test_informational_responses_are_skipped_before_the_reply() -> None:
    early = b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"
    async with against(saying(early + OK)) as (server, session):
        reply = await send(session, server.url)
        assert isinstance(reply, HttpReply)
        assert (reply.status, reply.body) == (201, b'{"sid":"CA1"}')
        assert "x-early" not in reply.headers


async def test_a_reply_may_end_with_its_connection() -> None:
    async with against(saying(b"HTTP/1.1 201 Created\r\n\r\nwhole")) as (server, session):
        reply = await send(session, server.url)
        assert isinstance(reply, HttpReply)
        assert reply.body == b"whole"


async def test_another_protocol_is_lost() -> None:
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with against(saying(upgrade)) as (server, session):
        assert isinstance(await send(session, server.url), ReplyLost)


async def test_headers_without_end_are_lost() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-More: 1\r\n" * 200
    async with against(saying(endless), reply_bytes_max=1000) as (server, session):
        assert await send(session, server.url) == ReplyLost("reply too long")


async def test_an_extra_reply_is_not_taken_for_the_next_requests() -> None:
    async def twice(_server: Server, writer: asyncio.StreamWriter, _number: int) -> None:
        writer.write(OK + OK.replace(b"CA1", b"CA9"))

    async with against(twice) as (server, session):
        for name in ("first", "second"):
            reply = await send(session, server.url, name)
            assert isinstance(reply, HttpReply)
            assert reply.body == b'{"sid":"CA1"}'
        assert server.connections == 2


async def test_bytes_past_a_reply_do_not_change_it() -> None:
    first, second = (
        f"HTTP/1.1 429 X\r\nRetry-After: {n}\r\nContent-Length: 0\r\n\r\n".encode() for n in (2, 3600)
    )
    async with against(saying(first + second)) as (server, session):
        reply = await send(session, server.url)
        assert isinstance(reply, HttpReply)
        assert reply.headers["retry-after"] == "2"


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with against(never_answer) as (server, session):
        sending = asyncio.ensure_future(send(session, server.url, "first"))
        await server.asked.acquire()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        server.done.set()
        await asyncio.wait_for(server.left.acquire(), 10)


async def test_closing_the_session_closes_its_connections() -> None:
    async with against(answer_ok, keepalive_s=60) as (server, session):
        await send(session, server.url)
        await session.aclose()
        await asyncio.wait_for(server.left.acquire(), 10)


async def test_a_session_past_its_maximum_of_origins_closes_older_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "_ORIGINS_MAX", 2)
    async with against(answer_ok, keepalive_s=60) as (server, session):
        for name in ("http://", "HTTP://", "http://user:password@"):
            assert isinstance(await send(session, server.url.replace("http://", name)), HttpReply)
        assert server.connections == 3
        for _ in range(2):
            await asyncio.wait_for(server.left.acquire(), 10)
        assert all("Host: 127.0.0.1:" in head for head in server.heads)


async def test_a_request_carries_authorization_content_type_and_accept_encoding() -> None:
    async with against(answer_ok) as (server, session):
        await send(session, server.url)
        headers = dict(_headers(server.heads[0].encode()))
        assert headers["authorization"] == "Basic dXNlcjpwYXNzd29yZA=="
        assert headers["content-type"] == "application/x-www-form-urlencoded"
        assert headers["accept-encoding"] == "identity"  # nothing here unpacks a reply


async def test_a_connection_closed_by_its_header_is_not_used_again() -> None:
    async def closing(_server: Server, writer: asyncio.StreamWriter, _number: int) -> None:
        writer.write(OK.replace(b"Content-Length", b"Connection: close\r\nContent-Length"))

    async with against(closing) as (server, session):
        for _ in range(2):
            assert isinstance(await send(session, server.url), HttpReply)
        assert server.connections == 2


@pytest.mark.parametrize(("rest", "asked"), [("", "/calls?b=2+3"), ("?a=1", "/calls?a=1&b=2+3")])
async def test_query_parameters_are_appended_to_the_url(rest: str, asked: str) -> None:
    async with against(answer_ok) as (server, session):
        await session.get(server.url + rest, {"b": "2 3"})
        assert server.heads[0].startswith(f"GET {asked} HTTP/1.1\r\n")


async def test_headers_before_the_reply_without_end_are_lost() -> None:
    async with against(saying(b"HTTP/1.1 100 Continue\r\n\r\n" * 200), reply_bytes_max=1000) as (
        server,
        session,
    ):
        assert await send(session, server.url) == ReplyLost("reply too long")


async def test_a_reply_without_end_is_lost() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000
    async with against(saying(endless), reply_bytes_max=1000) as (server, session):
        assert isinstance(await send(session, server.url), ReplyLost)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    redirect = f"HTTP/1.1 {status} X\r\nLocation: /calls\r\nContent-Length: 0\r\n\r\n".encode()
    async with against(saying(redirect)) as (server, session):
        reply = await send(session, server.url)
        assert isinstance(reply, HttpReply)
        assert reply.status == status
        assert server.bodies == {"a=1": 1}


async def test_a_refused_connection_is_not_sent() -> None:
    async with against(answer_ok) as (_, session):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            result = await send(session, f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert isinstance(result, NotSent)
    assert result.reason == "not_connected"


async def test_a_host_without_address_is_not_sent() -> None:
    async with against(answer_ok) as (_, session):
        assert isinstance(await send(session, "http://no-such-host.invalid/"), NotSent)


async def test_a_handshake_that_never_ends_is_not_sent() -> None:
    async with against(never_answer, connect_timeout_s=0.2) as (server, session):
        result = await send(session, server.url.replace("http:", "https:"))
        assert isinstance(result, NotSent)
        assert not server.bodies


async def test_connecting_is_bounded_by_the_total_timeout() -> None:
    async with against(never_answer, connect_timeout_s=60, total_timeout_s=0.2) as (server, session):
        result = await send(session, server.url.replace("http:", "https:"))
        assert result == NotSent("not_connected", "TimeoutError")


async def test_any_exception_while_connecting_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> Connection:
        raise RuntimeError("as uvloop may")

    async with against(answer_ok) as (server, session):
        monkeypatch.setattr(Origin, "connected", fail)
        assert await send(session, server.url) == NotSent("not_connected", "RuntimeError")


async def test_a_connection_closed_at_once_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = Origin.connected

    async def closed(origin: Origin, timeout_s: float) -> Connection:
        connection = await connected(origin, timeout_s)
        connection.close()
        return connection

    async with against(answer_ok) as (server, session):
        monkeypatch.setattr(Origin, "connected", closed)
        assert await send(session, server.url) == NotSent("not_connected", "closed at once")


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\ud800"], ids=["empty part", "long part", "surrogate"])
async def test_an_invalid_host_name_is_not_sent(host: str) -> None:
    async with against(answer_ok) as (_, session):
        assert isinstance(await send(session, f"http://{host}/"), NotSent)
        assert isinstance(await session.get("http://127.0.0.1/", {"a": host * 1000}), NotSent)


async def test_a_handshake_that_fails_is_not_sent() -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.write(OK), "127.0.0.1", 0)
    session = CarrierSession(basic("user", "password"))
    result = await send(session, f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")
    await session.aclose()
    listener.close()
    assert isinstance(result, NotSent)


async def test_a_request_connected_after_its_deadline_is_not_sent() -> None:
    clock = ManualClock()
    clock.suspend(10)  # the machine slept: only the boot time clock knows
    async with against(answer_ok, clock=clock) as (server, session):
        result = await send(session, server.url, send_by_boottime_s=5.0)
        assert result == NotSent("not_sent_in_time", "connected after the deadline")
        assert (server.connections, server.bytes_read) == (1, 0)
        assert isinstance(await send(session, server.url, send_by_boottime_s=10.0), HttpReply)


async def test_a_reason_never_quotes_the_url() -> None:
    async with against(answer_ok) as (_, session):
        result = await send(session, "http://127.0.0.1:secret/")
    assert isinstance(result, NotSent)
    assert "secret" not in repr(result)


async def test_connections_set_tcp_user_timeout_and_linger_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = Origin._socket, list[socket.socket]()

    def watched(origin: Origin, address: Any) -> socket.socket:
        made.append(make(origin, address))
        return made[-1]

    monkeypatch.setattr(Origin, "_socket", watched)
    async with against(answer_ok) as (server, _):
        session = CarrierSession(basic("user", "password"), user_timeout_s=5.0)
        assert isinstance(await send(session, server.url), HttpReply)
        (used,) = made
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == b"\x01\0\0\0\0\0\0\0"
        await session.aclose()
