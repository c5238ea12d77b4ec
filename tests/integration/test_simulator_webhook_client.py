"""The simulator's HTTP client: what a receiver may answer, and how."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.faults.silence import silent_address
from trunkline.http.connections import Exchange, HttpReply, NotSent, ReplyLost
from trunkline.telephony.simulator import webhooks as webhooks_module
from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.webhooks import (
    TWILIO,
    CallWebhooks,
    Letter,
    Outgoing,
    Timeouts,
    WebhookClient,
    Webhooks,
)
from trunkline.value import replace

USUAL, IMPATIENT = Timeouts(), Timeouts(read_s=0.05)


class Peer:
    def __init__(self, replies: list[bytes], *, closes: bool) -> None:
        self._replies = iter(replies)
        self._closes = closes
        self.connections = 0
        self.heads: list[bytes] = []
        self.asked = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(4)
                self.asked.release()
                writer.write(next(self._replies))
                if self._closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection is not given up while the test is held up."""
    monkeypatch.setattr(webhooks_module, "IDLE_MAX_S", 3600.0)


@asynccontextmanager
async def peer(*replies: bytes, closes: bool = False) -> AsyncIterator[tuple[Peer, WebhookClient, Outgoing]]:
    one = Peer(list(replies), closes=closes)
    listener = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    client = WebhookClient()
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/a?b=c#rc=5"
    yield one, client, Outgoing("POST", url, (("X-Test", "1"),), b"a=bc")
    client.close()
    listener.close()


def shown(answer: Exchange) -> tuple[int, bytes]:
    assert isinstance(answer, HttpReply), answer
    return answer.status, answer.body


async def test_a_connection_is_used_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    async with peer(reply, reply) as (one, client, request):
        assert [shown(await client.send(request, USUAL)) for _ in range(2)] == [(200, b"hi")] * 2
        assert one.connections == 1
        assert one.heads[0].startswith(b"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_a_connection_that_the_receiver_closes_is_not_used_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with peer(reply, reply, closes=True) as (one, client, request):
        assert [shown(await client.send(request, USUAL)) for _ in range(2)] == [(200, b"")] * 2
        assert one.connections == 2


async def test_many_at_once_each_have_a_connection() -> None:
    reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with peer(*[reply] * 20) as (one, client, request):
        answers = await asyncio.gather(*(client.send(request, USUAL) for _ in range(20)))
        assert [shown(answer) for answer in answers] == [(204, b"")] * 20
        assert 1 < one.connections <= 20


async def test_a_body_may_end_with_its_connection() -> None:
    async with peer(b"HTTP/1.0 200 OK\r\n\r\nto the end", closes=True) as (_, client, request):
        assert shown(await client.send(request, USUAL)) == (200, b"to the end")


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200", b"not HTTP\r\n\r\n"])
async def test_a_broken_reply_is_lost(reply: bytes) -> None:
    async with peer(reply, closes=True) as (_, client, request):
        assert isinstance(await client.send(request, USUAL), ReplyLost)


async def test_a_silent_receiver_is_a_lost_reply() -> None:
    async with peer(b"") as (_, client, request):
        assert isinstance(await client.send(request, IMPATIENT), ReplyLost)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://127.0.0.1:x/", "http://[", "http:///a", "a"])
async def test_an_unreachable_receiver_is_not_sent(url: str) -> None:
    assert isinstance(await WebhookClient().send(Outgoing("POST", url, (), b""), USUAL), NotSent)


async def test_a_header_that_cannot_be_sent_uses_up_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks_module, "CONNECTIONS_MAX", 1)
    async with peer(*[b"HTTP/1.1 204 No Content\r\n\r\n"] * 2) as (_, client, request):
        await client.send(request, USUAL)
        for _ in range(2):
            assert isinstance(await client.send(replace(request, headers=(("A", "\ud800"),)), USUAL), NotSent)
        assert shown(await client.send(request, USUAL)) == (204, b"")


@pytest.mark.parametrize(
    ("rest", "asked"), [("", "/"), ("#rc=5", "/"), ("?b=/c", "/?b=/c"), ("/a?#b?c", "/a?")]
)
async def test_the_request_target_is_the_urls_path_and_query(rest: str, asked: str) -> None:
    async with peer(b"HTTP/1.1 204 No Content\r\n\r\n") as (one, client, request):
        url = request.url.partition("/a")[0] + rest
        await client.send(replace(request, url=url), USUAL)
        assert one.heads[0].startswith(f"POST {asked} HTTP/1.1\r\n".encode())


async def test_a_connection_with_bytes_past_its_reply_is_not_used_again() -> None:
    reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with peer(reply + b"HTTP/1.1 500", reply) as (one, client, request):
        assert [shown(await client.send(request, USUAL)) for _ in range(2)] == [(204, b"")] * 2
        assert one.connections == 2


async def test_a_cancelled_request_closes_its_connection() -> None:
    reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with peer(reply, reply, reply) as (one, client, request):
        await client.send(request, USUAL)
        given_up = asyncio.ensure_future(client.send(request, USUAL))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert shown(await client.send(request, USUAL)) == (204, b"")
        assert one.connections == 2


async def test_a_request_cancelled_while_connecting_uses_up_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhooks_module, "CONNECTIONS_MAX", 1)
    async with peer(b"HTTP/1.1 204 No Content\r\n\r\n") as (_, client, request):
        with silent_address() as (host, port):
            silent = replace(request, url=f"http://{host}:{port}/")
            connecting = asyncio.ensure_future(client.send(silent, USUAL))
            await asyncio.sleep(0)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
        assert shown(await asyncio.wait_for(client.send(request, USUAL), 10)) == (204, b"")


async def test_the_webhook_client_bounds_its_concurrent_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks_module, "CONNECTIONS_MAX", 3)
    async with peer(*[b"HTTP/1.1 204 No Content\r\n\r\n"] * 20) as (one, client, request):
        answers = await asyncio.gather(*(client.send(request, USUAL) for _ in range(20)))
        assert [shown(answer) for answer in answers] == [(204, b"")] * 20
        assert one.connections <= 3


async def test_stopping_the_simulator_ends_an_unanswered_webhook() -> None:
    async with peer(b"HTTP/1.1 204 No Content\r\n\r\n", b"") as (one, client, request):
        activity = Activity()
        webhooks, letter = Webhooks(client, activity), Letter(request, TWILIO)
        webhooks.send(CallWebhooks(), letter, None, 0.0, last=False)
        await activity.idle()
        webhooks.send(CallWebhooks(), letter, None, 0.0, last=False)
        for _ in range(2):
            await one.asked.acquire()
        await activity.cancel_all()
        await activity.idle()
        assert one.connections == 1
        assert webhooks.counts == {"delivered": 1}
