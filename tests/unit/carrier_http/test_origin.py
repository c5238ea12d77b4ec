"""Origins: what a URL may be, who is connected to, and what is kept of it."""

import asyncio
import datetime
import gc
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.faults.silence import silent_address
from trunkline.http import connections as origin_module
from trunkline.http.connections import CarrierSession, Connection, HttpReply, NotSent, Origin, split

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def listening(
    tls: ssl.SSLContext | None = None, left: asyncio.Semaphore | None = None
) -> AsyncIterator[int]:
    """Answers every request, and tells when a client left. The port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            if left is not None:
                left.release()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("https://api.example.com", "https://api.example.com", "/"),
        ("https://api.example.com?a=/b", "https://api.example.com", "/?a=/b"),
        ("http://127.0.0.1:80/a/b?c=d#rc=5", "http://127.0.0.1:80", "/a/b?c=d"),
        ("http://[::1]:80/a", "http://[::1]:80", "/a"),
        ("http://h/a b", "http://h", "/a%20b"),
        ("http://h/é", "http://h", "/%C3%A9"),
        ("http://h/a\r\nX-Injected: 1", "http://h", "/a%0D%0AX-Injected:%201"),
        ("http://h/%20a?b=%26", "http://h", "/%20a?b=%26"),
        ('http://h/<>"{}|\\^`', "http://h", "/%3C%3E%22%7B%7D%7C%5C%5E%60"),
        ("HTTPS://h", "HTTPS://h", "/"),
    ],
)
def test_a_url_is_split_into_origin_and_request_target(url: str, origin: str, target: str) -> None:
    assert split(url) == (origin, target)


@pytest.mark.parametrize("url", ["", "a", "/a", "ftp://h/", "http://", "http:///a", "https://?a"])
def test_a_url_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL"):
        split(url)


@pytest.mark.parametrize("url", ["http://@/", "http://h:x/", "http://[/", "http://h:99999/"])
async def test_a_url_without_a_host_or_port_is_not_sent(url: str) -> None:
    assert isinstance(await CarrierSession(None).get(url), NotSent)


async def test_the_most_recently_used_connection_is_reused_first() -> None:
    async with listening() as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=60)
        first, second = await origin.connected(5), await origin.connected(5)
        origin.put_back(second)
        origin.put_back(first)
        assert origin.reused() is first
        assert origin.reused() is second
        assert origin.reused() is None
        first.close()
        second.close()


async def test_an_idle_connection_is_closed_after_idle_max_s() -> None:
    left = asyncio.Semaphore(0)
    async with listening(left=left) as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=0.02)
        origin.put_back(await origin.connected(5))
        await asyncio.wait_for(left.acquire(), 10)
        assert origin.reused() is None


async def test_every_idle_connection_is_closed_after_its_own_idle_max_s() -> None:
    left = asyncio.Semaphore(0)
    async with listening(left=left) as port:
        origin, loop = Origin(f"http://127.0.0.1:{port}", idle_max_s=0.1), asyncio.get_running_loop()
        first, second = await origin.connected(5), await origin.connected(5)
        origin.put_back(first)
        loop.call_later(0.05, origin.put_back, second)
        for _ in range(2):
            await asyncio.wait_for(left.acquire(), 10)


async def test_a_connection_idle_past_idle_max_s_is_not_reused() -> None:
    async with listening() as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=60)
        connection = await origin.connected(5)
        origin.put_back(connection)
        connection.idle_since_s -= 61
        assert origin.reused() is None


async def test_a_connection_with_a_cancelled_request_is_closed_not_kept() -> None:
    left = asyncio.Semaphore(0)
    async with listening(left=left) as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=60)
        connection = await origin.connected(5)
        reply = connection.exchange(b"GET / HTTP/1.1\r\n", asyncio.get_running_loop().time() + 60)
        reply.cancel()
        origin.put_back(connection)
        await asyncio.wait_for(left.acquire(), 10)
        assert origin.reused() is None


async def test_a_connection_returned_to_a_closed_origin_is_closed() -> None:
    left = asyncio.Semaphore(0)
    async with listening(left=left) as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=60)
        connection = await origin.connected(5)
        origin.close()
        origin.put_back(connection)
        await asyncio.wait_for(left.acquire(), 10)


class Names:
    """A name server of the test's: counts, and says what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, addresses: Sequence[tuple[str, int]]) -> None:
        self.addresses = addresses
        self.lookups = 0
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()
        monkeypatch.setattr(origin_module, "look_up", self._found)

    async def _found(self, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        self.lookups += 1
        self.asked.set()
        await self.answers.wait()
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in self.addresses]


async def test_concurrent_connects_resolve_a_host_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        names = Names(monkeypatch, [("127.0.0.1", port)])
        origin = Origin("http://carrier.test", idle_max_s=60)
        connections = await asyncio.gather(*(origin.connected(5) for _ in range(5)))
        connections.append(await origin.connected(5))
        assert names.lookups == 1
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("what", ["another leaves", "the origin is closed"])
async def test_a_shared_lookup_continues_when_one_waiter_leaves_or_the_origin_closes(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with listening() as port:
        names = Names(monkeypatch, [("127.0.0.1", port)])
        names.answers.clear()
        origin = Origin("http://carrier.test", idle_max_s=60)
        leaving, staying = (asyncio.ensure_future(origin.connected(5)) for _ in range(2))
        await names.asked.wait()
        leaving.cancel() if what == "another leaves" else origin.close()
        names.answers.set()
        (await staying).close()
        [left] = await asyncio.gather(leaving, return_exceptions=True)
        if isinstance(left, Connection):
            left.close()


async def test_a_failed_lookup_without_waiters_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    names = Names(monkeypatch, [])
    names.answers.clear()
    origin = Origin("http://carrier.test", idle_max_s=60)
    with pytest.raises(TimeoutError):
        await origin.connected(0.01)
    names.answers.set()
    lookup = origin._lookup
    assert lookup is not None
    await asyncio.wait([lookup])
    del lookup, origin
    gc.collect()
    assert told == []


async def test_a_host_name_is_resolved_again_after_it_was_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        names = Names(monkeypatch, [])
        origin = Origin("http://carrier.test", idle_max_s=60)
        with pytest.raises(OSError, match="not known"):
            await origin.connected(5)
        names.addresses = [("127.0.0.1", port)]
        (await origin.connected(5)).close()


async def test_a_host_name_is_resolved_again_after_a_refused_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening() as port:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            names = Names(monkeypatch, [unused.getsockname()])
            origin = Origin("http://carrier.test", idle_max_s=60)
            with pytest.raises(OSError, match=r"."):
                await origin.connected(5)
        names.addresses = [("127.0.0.1", port)]
        (await origin.connected(5)).close()
        assert names.lookups == 2


async def test_a_host_name_is_resolved_again_after_its_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_module, "NAMES_KEPT_S", 0.0)
    async with listening() as port:
        names = Names(monkeypatch, [("127.0.0.1", port)])
        origin = Origin("http://carrier.test", idle_max_s=60)
        for _ in range(2):
            (await origin.connected(5)).close()
        assert names.lookups == 2


async def test_a_refused_address_is_followed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            Names(monkeypatch, [unused.getsockname(), ("127.0.0.1", port)])
            origin = Origin("http://carrier.test", idle_max_s=60)
            (await origin.connected(5)).close()


async def test_a_silent_address_is_followed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_module, "NEXT_ADDRESS_S", 0.01)
    async with listening() as port:
        with silent_address() as silent:
            Names(monkeypatch, [silent, ("127.0.0.1", port)])
            (await Origin("http://carrier.test", idle_max_s=60).connected(10)).close()


def certificate(directory: Path) -> Path:
    """Of 127.0.0.1, by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "carrier")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = directory / "carrier.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_https_needs_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    path = certificate(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(path)
    if is_trusted:
        monkeypatch.setattr(origin_module, "tls", lambda: ssl.create_default_context(cafile=str(path)))
    async with listening(server) as port:
        session = CarrierSession(None)
        replies = [await session.get(f"https://127.0.0.1:{port}/") for _ in range(2)]
        assert all(isinstance(reply, HttpReply if is_trusted else NotSent) for reply in replies)
        await session.aclose()
