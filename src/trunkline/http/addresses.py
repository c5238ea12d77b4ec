"""Which addresses a tenant's webhook may use: those of the public internet, and none inside the platform's network.

A tenant chooses the URL of a webhook. It must not give access to the platform's network (SSRF): not by a private
address, a name that resolves to one, a name that resolves differently the second time, or an IPv4 address inside an
IPv6 one. So the connection uses the very addresses that were checked, and redirects are not followed.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

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
