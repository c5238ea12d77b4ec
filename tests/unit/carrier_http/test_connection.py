"""One connection without a network: what it does to its transport, and what its transport reports."""

import asyncio
from typing import Any, cast

import pytest

from trunkline.http.connections import Connection, Exchange, HttpReply, ReplyLost

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Transport:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_extra_info(self, _name: str) -> Any:
        return self

    def fileno(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


def asked(
    until_s: float | None = None,
) -> "tuple[Connection, Transport, asyncio.Future[HttpReply | ReplyLost]]":
    connection, transport = Connection(), Transport()
    connection.connection_made(cast(asyncio.Transport, transport))  # all of one that is used
    return connection, transport, connection.exchange(b"", until_s or asyncio.get_running_loop().time() + 60)


async def test_the_timeout_of_an_earlier_request_does_not_end_a_later_one() -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    connection, _, first = asked(until_s=loop.time() + 0.02)
    connection.data_received(OK)
    second = connection.exchange(b"", loop.time() + 60)
    loop.call_at(loop.time() + 0.03, over.set)  # timers fire in their order
    await over.wait()
    connection.data_received(OK)
    assert [type(reply) for reply in await asyncio.gather(first, second)] == [HttpReply, HttpReply]


async def test_closing_a_connection_in_use_aborts_it_without_flushing() -> None:
    connection, transport, reply = asked()
    connection.close()
    assert transport.calls == ["is_closing", "write", "abort"]
    assert isinstance(await reply, ReplyLost)


@pytest.mark.parametrize(("error", "kind"), [(None, HttpReply), (ConnectionResetError(), ReplyLost)])
async def test_a_reply_without_a_length_ends_with_a_clean_close_only(
    error: Exception | None, kind: type[Exchange]
) -> None:
    connection, _, reply = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nall or a part")
    connection.connection_lost(error)
    assert isinstance(await reply, kind)
