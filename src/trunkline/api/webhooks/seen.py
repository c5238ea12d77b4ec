"""Which URL the carrier was given. Carriers sign it, whatever proxies made of the request on its way here.

PUBLIC_BASE_URL wins. Without it, what a proxy says of host and scheme is believed if the proxy is one of ours, and from
anybody else only what the request itself says. Nothing here proves anything: a wrong URL is one that no signature fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

Network = IPv4Network | IPv6Network

# Several proxies may each have added a value. More than these are somebody's game.
FORWARDED_MAX = 3
_NO_HOST = frozenset("/\\@?# ")


@dataclass(frozen=True, slots=True)
class PublicView:
    base_url: str | None = None
    trusted: Sequence[Network] = ()
    # Where carriers ask for the answer to a call when they got none at `base_url`.
    fallback_base_url: str | None = None

    def urls(self, scope: Scope) -> list[str]:
        """The URLs that the request may have been sent to, the likeliest first."""
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        query = scope["query_string"].decode("latin-1")
        target = f"{path}?{query}" if query else path
        return [f"{base}{target}" for base in self._bases(scope)]

    def trusts(self, scope: Scope) -> bool:
        """Whether what it says of host and scheme is believed."""
        return self._is_trusted(scope.get("client"))

    def _bases(self, scope: Scope) -> list[str]:
        if self.base_url:
            bases = [self.base_url, self.fallback_base_url or self.base_url]
            return list(dict.fromkeys([base.rstrip("/") for base in bases]))
        headers = Headers(scope=scope)
        fallback = [self.fallback_base_url.rstrip("/")] if self.fallback_base_url else []
        own = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
        if not self._is_trusted(scope.get("client")):
            return [own, *fallback]
        schemes = _values(headers.getlist("x-forwarded-proto")) or [scope.get("scheme", "http")]
        hosts = _values(headers.getlist("x-forwarded-host")) or [headers.get("host", "")]
        told = [f"{scheme}://{host}" for scheme in schemes for host in hosts]
        return list(dict.fromkeys([*told, own, *fallback]))

    def _is_trusted(self, client: tuple[str, int] | None) -> bool:
        if not self.trusted or not client:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.trusted)


def _values(headers: Iterable[str]) -> list[str]:
    """Each header may be a list. What could not be part of a URL is left out."""
    parts = [part.strip() for header in headers for part in header.split(",")]
    return [part for part in parts if part.isascii() and not set(part) & _NO_HOST and part][:FORWARDED_MAX]
