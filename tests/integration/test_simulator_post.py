"""The simulator's HTTP client: what a receiver may answer, and how."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from trunkline.telephony.simulator.post import Answer, NoAnswer, Outgoing, Poster, Timeouts

USUAL, IMPATIENT = Timeouts(), Timeouts(read_s=0.05)


class Peer:
    def __init__(self, replies: list[bytes], *, closes: bool) -> None:
        self._replies = iter(replies)
        self._closes = closes
        self.connections = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(4)
                writer.write(next(self._replies))
                if self._closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def peer(*replies: bytes, closes: bool = False) -> AsyncIterator[tuple[Peer, Poster, Outgoing]]:
    one = Peer(list(replies), closes=closes)
    listener = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    poster = Poster()
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/a?b=c#rc=5"
    yield one, poster, Outgoing("POST", url, (("X-Test", "1"),), b"a=bc")
    poster.close()
    listener.close()


async def test_a_connection_is_used_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    async with peer(reply, reply) as (one, poster, request):
        assert [await poster.send(request, USUAL) for _ in range(2)] == [Answer(200, b"hi")] * 2
        assert one.connections == 1
        assert one.heads[0].startswith(b"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_a_connection_that_the_receiver_closes_is_not_used_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with peer(reply, reply, closes=True) as (one, poster, request):
        assert [await poster.send(request, USUAL) for _ in range(2)] == [Answer(200, b"")] * 2
        assert one.connections == 2


async def test_many_at_once_each_have_a_connection() -> None:
    reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with peer(*[reply] * 20) as (one, poster, request):
        answers = await asyncio.gather(*(poster.send(request, USUAL) for _ in range(20)))
        assert answers == [Answer(204, b"")] * 20
        assert 1 < one.connections <= 20


async def test_a_body_may_end_with_its_connection() -> None:
    async with peer(b"HTTP/1.0 200 OK\r\n\r\nto the end", closes=True) as (_, poster, request):
        assert await poster.send(request, USUAL) == Answer(200, b"to the end")


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200", b"not HTTP\r\n\r\n"])
async def test_a_broken_answer_is_none(reply: bytes) -> None:
    async with peer(reply, closes=True) as (_, poster, request):
        assert await poster.send(request, USUAL) == NoAnswer("read")


async def test_silence_is_no_answer() -> None:
    async with peer(b"") as (_, poster, request):
        assert await poster.send(request, IMPATIENT) == NoAnswer("read")


async def test_nobody_there_is_no_connection() -> None:
    poster = Poster()
    assert await poster.send(Outgoing("POST", "http://127.0.0.1:9/", (), b""), USUAL) == NoAnswer("connect")
    assert await poster.send(Outgoing("POST", "http://127.0.0.1:x/", (), b""), USUAL) == NoAnswer("connect")
