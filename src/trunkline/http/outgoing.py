"""HTTP requests to hosts of tenants: to public addresses only, without redirects, with bounded time and size.

A tenant chooses the URL of a webhook. It must not give access to the platform's network (SSRF): not by a private
address, a name that resolves to one, a name that resolves differently the second time, or an IPv4 address inside an
IPv6 one. So the connection uses the very addresses that were checked, and redirects are not followed.
"""

import socket
from contextlib import AbstractAsyncContextManager
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_exceptions import ClientConnectorDNSError
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from trunkline import __version__

TOTAL_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 500

# What a request can fail with. A name that resolves to a private address is among them: see `was_refused`.
FAILURES: tuple[type[BaseException], ...] = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
URL_MAX = 2000

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_DOCUMENTATION = IPv6Network("3fff::/20")
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(OSError):
    """This address is not allowed for webhooks. An OSError, because a resolver may raise that."""


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet."""
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    inner = _inner(address)
    if inner is not None:
        return is_public(str(inner))
    return address.is_global and address in _GLOBAL_UNICAST and address not in _DOCUMENTATION


def check_url(text: str, *, allow_insecure: bool = False) -> str | None:
    """The problem of a webhook's URL, if there is one. Names are resolved and checked when it is used."""
    if len(text) > URL_MAX:
        return f"The URL has more than {URL_MAX} characters."
    try:
        url = URL(text)
        _ = url.port
    except ValueError:
        return "This is not a URL."
    if url.scheme != "https" and not (allow_insecure and url.scheme == "http"):
        return "The URL must begin with https://."
    if not url.host:
        return "The URL names no host."
    if url.user is not None or url.password is not None:
        return "The URL must not hold a user or a password."
    if not allow_insecure and _is_address(url.host) and not is_public(url.host):
        return "The URL names an address that is not public."
    return None


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses. One private address among public ones refuses the name: the next attempt
    might use it."""

    def __init__(self, inner: AbstractResolver | None = None, *, allow_insecure: bool = False):
        self._inner = inner or ThreadedResolver()
        self._allow_insecure = allow_insecure

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if not self._allow_insecure:
            for result in found:
                if not is_public(result["host"]):
                    raise AddressRefused(f"{host} resolves to an address that is not public")
        return found

    async def close(self) -> None:
        await self._inner.close()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address to which a packet for this IPv6 address would be delivered in the end."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class Outgoing:
    """One per process. The session is made at first use, inside the running loop."""

    def __init__(self, *, allow_insecure: bool = False, resolver: PublicResolver | None = None):
        self.allow_insecure = allow_insecure
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Use it as `async with`. Raises one of `FAILURES`, also before anything is sent."""
        problem = check_url(url, allow_insecure=self.allow_insecure)
        if problem is not None:
            raise AddressRefused(problem)
        return self._opened().request(
            method,
            URL(url, encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=total_timeout_s, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S
            ),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            resolver = self._resolver or PublicResolver(allow_insecure=self.allow_insecure)
            self._session = aiohttp.ClientSession(
                # No DNS cache: every connection uses the addresses that were just checked.
                connector=aiohttp.TCPConnector(
                    resolver=resolver, use_dns_cache=False, limit=CONNECTIONS_MAX, limit_per_host=10
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"Trunkline/{__version__}"},
                # A compressed response could be a zip bomb, and only its beginning is read.
                auto_decompress=False,
            )
        return self._session


def was_refused(error: BaseException) -> bool:
    cause = error.os_error if isinstance(error, ClientConnectorDNSError) else error
    return isinstance(cause, AddressRefused) or isinstance(error.__cause__, AddressRefused)
