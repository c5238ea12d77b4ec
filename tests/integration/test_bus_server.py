"""Connections that are kept: a reply is never taken for another's, whatever the network does."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.exceptions import RedisError, ResponseError

from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from trunkline.bus import connection, mailbox_wakeups
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.scripts import Script
from trunkline.bus.server import SERVER_RUN_ID, Server
from trunkline.errors import BusUnavailable

ECHO = Script("echo", "#!lua\nreturn ARGV[1]", "3a8485c1393a4c5f62edc979750b8f5dde1d2de7")


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy.before(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def bus(proxy: TcpProxy, key_prefix: str) -> AsyncIterator[Bus]:
    bus = connection.connect(proxy.url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def secret(url: str) -> str:
    """What stands before the host, with its @."""
    return "".join(urlsplit(url).netloc.rpartition("@")[:2])


def one_server(url: str, *, timeout_s: float = 2.0, connections_max: int = 10) -> Server:
    return Server(url, timeout_s=timeout_s, connect_timeout_s=2.0, connections_max=connections_max)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listening:
    """Serves connections by `handler`, and waits for their ends when it is left."""

    def __init__(self, handler: Handler, start: Callable[[Handler], Awaitable[asyncio.Server]]):
        self._handler = handler
        self._start = start
        self._served: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> int:
        """The port, if it has one."""
        self._listener = await self._start(self._serve)
        name = self._listener.sockets[0].getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        await asyncio.gather(*self._served)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        with suppress(OSError):
            await self._handler(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def forward(
    target: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass bytes on in both directions until the client ends."""
    far_reader, far_writer = await asyncio.open_connection(*target)
    back = asyncio.create_task(copy(far_reader, writer))
    await copy(reader, far_writer)
    far_writer.close()
    await far_writer.wait_closed()
    await back


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)


def certificate(folder: Path) -> Path:
    """A key and a certificate for localhost, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "valkey.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


async def echo(bus: Bus) -> bool:
    word = uuid4().hex
    return bool(await bus.run(ECHO, [bus.keys.dialer_wakeups], [word]) == word)


async def test_connection_closed_by_the_server_is_replaced_before_its_next_command(proxy: TcpProxy) -> None:
    server = one_server(proxy.url)
    assert await server.ask("ECHO", "before") == "before"
    proxy.cut(reset=False)
    await eventually(lambda: not proxy.ends)
    assert await server.ask("ECHO", "after") == "after"
    await server.close()


async def test_connection_with_unsolicited_bytes_is_not_used_again() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"server\r\n")
        writer.write(b"$10\r\nrun_id:abc\r\n")
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n+nobody asked\r\n")
        await reader.read()

    async with Listening(serve, lambda handler: asyncio.start_server(handler, "127.0.0.1", 0)) as port:
        server = one_server(f"redis://127.0.0.1:{port}")
        assert [await server.ask("PING"), await server.ask("PING")] == ["PONG", "PONG"]
        assert connections == 2
        await server.close()


async def test_reply_after_the_time_limit_is_not_taken_for_the_next_command(proxy: TcpProxy) -> None:
    server = one_server(proxy.url, timeout_s=0.2)
    assert await server.ask("ECHO", "first") == "first"
    proxy.black_hole(to_server=False)
    with pytest.raises(RedisError, match=r"no answer within 0\.2 s"):
        await server.ask("ECHO", "too late")
    await proxy.heal()
    assert await server.ask("ECHO", "last") == "last"
    await server.close()


async def test_reply_to_a_cancelled_command_is_not_taken_for_the_next_command(proxy: TcpProxy) -> None:
    server = one_server(proxy.url)
    assert await server.ask("ECHO", "first") == "first"
    proxy.black_hole(to_server=False)
    asked = asyncio.create_task(server.ask("ECHO", "given up"))
    await proxy.saw_reply()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await proxy.heal()
    assert await server.ask("ECHO", "last") == "last"
    await server.close()


async def test_failing_command_fails_no_other_of_its_exchange(redis_url: str) -> None:
    server = one_server(redis_url)
    replies = await server.exchange([("ECHO", "a"), ("NO-SUCH-COMMAND",), ("ECHO", "b")])
    assert replies[0] == "a"
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == "b"
    await server.close()


async def test_unreachable_server_raises_bus_unavailable(proxy: TcpProxy, bus: Bus) -> None:
    proxy.refuse()
    with pytest.raises(BusUnavailable, match="Valkey did not run echo: no connection"):
        await echo(bus)
    await proxy.accept()
    assert await echo(bus)


async def test_pool_of_one_has_room_for_scripts_and_plain_commands(redis_url: str, key_prefix: str) -> None:
    bus = connection.connect(redis_url, Keys(prefix=key_prefix), pool_size=1)
    assert await echo(bus)
    assert await bus.read(bus.client.exists(bus.keys.dialer_wakeups)) == 0
    assert await echo(bus)
    await bus.close()


async def test_many_commands_at_a_time_have_a_connection_each(redis_url: str) -> None:
    server = one_server(redis_url)
    words = [uuid4().hex for _ in range(8)]
    assert await asyncio.gather(*(server.ask("ECHO", word) for word in words)) == words
    await server.close()


async def test_more_exchanges_than_connections_are_refused_not_queued(redis_url: str) -> None:
    server = one_server(redis_url, connections_max=1)
    key = uuid4().hex
    waiting = asyncio.create_task(server.ask("BLPOP", key, 5))
    await asyncio.sleep(0)
    with pytest.raises(RedisError, match="all 1 connections are in use"):
        await server.ask("ECHO", "no room")
    await server.close()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_url_with_password_database_and_name_is_greeted_with_them(redis_url: str) -> None:
    plain = one_server(redis_url)
    password, user = uuid4().hex, f"user-{uuid4().hex}"
    await plain.ask("ACL", "SETUSER", user, "on", f">{password}", "~*", "+@all")
    host, port = address(redis_url)
    server = one_server(f"redis://{user}:{password}@{host}:{port}/3?client_name=a-name")
    info = await server.ask("CLIENT", "INFO")
    assert {"db=3", "name=a-name", f"user={user}", "resp=2"} <= set(info.split())
    wrong = one_server(f"redis://{user}:wrong@{host}:{port}")
    with pytest.raises(ResponseError, match="WRONGPASS"):
        await wrong.ask("ECHO", "nobody")
    await plain.ask("ACL", "DELUSER", user)
    await server.close()
    await plain.close()


async def test_unix_url_reaches_the_socket_it_names(redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "valkey.sock"
    passing_on = partial(forward, address(redis_url))
    async with Listening(passing_on, lambda handler: asyncio.start_unix_server(handler, path)):
        server = one_server(f"unix://{secret(redis_url)}{path}")
        assert await server.ask("ECHO", "by the socket") == "by the socket"
        await server.close()


async def test_rediss_url_speaks_tls_and_checks_the_certificate(redis_url: str, tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate(tmp_path))
    passing_on = partial(forward, address(redis_url))
    async with Listening(
        passing_on, lambda handler: asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
    ) as port:
        url = f"rediss://{secret(redis_url)}localhost:{port}"
        server = one_server(f"{url}?ssl_ca_certs={tmp_path / 'valkey.pem'}")
        assert await server.ask("ECHO", "in secret") == "in secret"
        await server.close()
        with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
            await one_server(url).ask("ECHO", "to a stranger")


def test_url_of_another_scheme_is_refused_when_the_bus_is_made() -> None:
    with pytest.raises(BusUnavailable, match="REDIS_URL cannot be used"):
        connection.connect("http://localhost", Keys())


async def test_mailbox_wakeups_are_received_once_on_one_server_and_a_cluster(
    valkey_cluster: Any, redis_url: str
) -> None:
    for url, is_cluster in ((redis_url, False), (valkey_cluster[0], True)):
        bus = connection.connect(url, Keys(prefix=uuid4().hex), cluster=is_cluster)
        assert (
            await mailbox_wakeups.receive(bus, "k", "w", count=9, timeout_s=0) == mailbox_wakeups.Wakeups()
        ), "makes the group"
        await mailbox_wakeups.send(bus, "k", ["a", "b", "a"])
        heard = await mailbox_wakeups.receive(bus, "k", "w", count=9, timeout_s=1)
        assert heard.keys == ("a", "b")
        assert len(heard.ids) == 3
        assert (
            await mailbox_wakeups.receive(bus, "k", "w", count=9, timeout_s=0.01) == mailbox_wakeups.Wakeups()
        )
        await bus.close()


async def test_command_gets_the_run_id_of_the_server_that_runs_it(redis_url: str) -> None:
    server = one_server(redis_url)
    info = await server.ask("INFO", "server")
    assert f"run_id:{await server.ask('ECHO', SERVER_RUN_ID)}\r" in info
    await server.close()


async def test_run_id_of_another_process_is_used_from_its_first_command_on(valkey_cluster: Any) -> None:
    """Behind the same address another process answers: as after a restart, with the connection broken in between."""
    node, other = valkey_cluster[0], valkey_cluster[1]
    async with TcpProxy.before(node) as proxy:
        server = one_server(proxy.url)
        first = await server.ask("ECHO", SERVER_RUN_ID)
        proxy.upstream = address(other)
        proxy.cut(reset=False)
        await eventually(lambda: not proxy.ends)
        second = await server.ask("ECHO", SERVER_RUN_ID)
        assert f"run_id:{second}\r" in await server.ask("INFO", "server")
        assert first != second
        await server.close()


async def test_whatever_a_reset_connection_raises_is_unavailable(proxy: TcpProxy, key_prefix: str) -> None:
    """uvloop, which processes of the platform run on, raises RuntimeError where asyncio's own loop raises OSError."""
    proxys_loop = asyncio.get_running_loop()

    async def cut() -> None:
        proxy.cut()
        await eventually(lambda: not proxy.ends)

    async def read_after_cuts() -> None:
        bus = connection.connect(proxy.url, Keys(prefix=key_prefix))
        try:
            for _ in range(10):
                with suppress(BusUnavailable):
                    await bus.read(bus.client.get("anything"))
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(cut(), proxys_loop))
                with suppress(BusUnavailable):
                    await bus.read(bus.client.get("anything"))
            await eventually(lambda: answers(bus))
        finally:
            await bus.close()

    async def answers(bus: Bus) -> bool:
        with suppress(BusUnavailable):
            return await bus.read(bus.client.get("anything")) is None
        return False

    await asyncio.to_thread(uvloop.run, read_after_cuts())
