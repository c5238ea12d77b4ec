"""Origins: what a URL may be, who is connected to, and what is kept of it."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trunkline.telephony import origin as origin_module
from trunkline.telephony.exchange import NotSent, Reply
from trunkline.telephony.origin import Origin, split
from trunkline.telephony.session import CarrierSession

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def listening(
    tls: ssl.SSLContext | None = None, left: asyncio.Event | None = None
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
                left.set()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    yield listener.sockets[0].getsockname()[1]
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
    ],
)
def test_a_url_is_an_origin_and_what_to_ask_for(url: str, origin: str, target: str) -> None:
    assert split(url) == (origin, target)


@pytest.mark.parametrize("url", ["", "a", "/a", "ftp://h/", "http://", "http:///a", "https://?a"])
def test_what_is_no_url_of_an_http_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL"):
        split(url)


@pytest.mark.parametrize("url", ["http://@/", "http://h:x/", "http://[/", "http://h:99999/"])
async def test_a_url_without_a_host_or_port_is_not_sent(url: str) -> None:
    assert isinstance(await CarrierSession(None).get(url), NotSent)


async def test_the_last_used_connection_is_used_first() -> None:
    async with listening() as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=60)
        first, second = await origin.connected(5), await origin.connected(5)
        origin.keep(second)
        origin.keep(first)
        assert origin.reused() is first
        assert origin.reused() is second
        assert origin.reused() is None
        first.close()
        second.close()


async def test_a_connection_that_is_idle_for_too_long_is_closed_without_being_asked_for() -> None:
    left = asyncio.Event()
    async with listening(left=left) as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=0.02)
        origin.keep(await origin.connected(5))
        await asyncio.wait_for(left.wait(), 10)
        assert origin.reused() is None


async def test_one_that_was_given_up_in_the_middle_is_closed() -> None:
    async with listening() as port:
        origin = Origin(f"http://127.0.0.1:{port}", idle_max_s=60)
        connection = await origin.connected(5)
        reply = connection.exchange(b"GET / HTTP/1.1\r\n", asyncio.get_running_loop().time() + 60)
        reply.cancel()
        origin.keep(connection)
        assert origin.reused() is None
        assert not connection.is_free


class Names:
    """A name server of the test's: counts, and says what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, addresses: Sequence[tuple[str, int]]) -> None:
        self.addresses = addresses
        self.lookups = 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._found)

    async def _found(self, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        self.lookups += 1
        await asyncio.sleep(0)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in self.addresses]


async def test_those_who_connect_together_look_a_name_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        names = Names(monkeypatch, [("127.0.0.1", port)])
        origin = Origin("http://carrier.test", idle_max_s=60)
        connections = await asyncio.gather(*(origin.connected(5) for _ in range(5)))
        connections.append(await origin.connected(5))
        assert names.lookups == 1
        for connection in connections:
            connection.close()


async def test_a_name_is_looked_up_again_after_it_was_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        names = Names(monkeypatch, [])
        origin = Origin("http://carrier.test", idle_max_s=60)
        with pytest.raises(OSError, match="not known"):
            await origin.connected(5)
        names.addresses = [("127.0.0.1", port)]
        (await origin.connected(5)).close()


async def test_a_name_is_looked_up_again_after_nobody_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_name_is_looked_up_again_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_module, "NAMES_KEPT_S", 0.0)
    async with listening() as port:
        names = Names(monkeypatch, [("127.0.0.1", port)])
        origin = Origin("http://carrier.test", idle_max_s=60)
        for _ in range(2):
            (await origin.connected(5)).close()
        assert names.lookups == 2


async def test_an_address_at_which_nobody_is_does_not_hide_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            Names(monkeypatch, [unused.getsockname(), ("127.0.0.1", port)])
            origin = Origin("http://carrier.test", idle_max_s=60)
            (await origin.connected(5)).close()


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


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_trusted", [True, False])
def test_https_is_spoken_with_those_whose_certificate_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, is_trusted: bool
) -> None:
    path = certificate(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(path)
    if is_trusted:
        monkeypatch.setattr(origin_module, "tls", lambda: ssl.create_default_context(cafile=str(path)))

    async def scenario() -> None:
        async with listening(server) as port:
            session = CarrierSession(None)
            replies = [await session.get(f"https://127.0.0.1:{port}/") for _ in range(2)]
            assert all(isinstance(reply, Reply if is_trusted else NotSent) for reply in replies)
            await session.aclose()

    run(scenario())
