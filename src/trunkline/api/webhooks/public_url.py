"""Derives the URL that the carrier has. Carriers sign it, whatever proxies changed in the request.

PUBLIC_BASE_URL wins. Without it the forwarded host and scheme count if the proxy is trusted, else only those of the
request itself. Nothing here proves anything: no signature fits a wrong URL.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

Network = IPv4Network | IPv6Network

# Several proxies may each have added a value. More than these are not legitimate.
FORWARDED_MAX = 3
_NO_HOST = frozenset("/\\@?# ")


@dataclass(frozen=True, slots=True)
class PublicView:
    base_url: str | None = None
    trusted: Sequence[Network] = ()
    # Where carriers request the document of a call when they got none at `base_url`.
    fallback_base_url: str | None = None

    def urls(self, scope: Scope) -> list[str]:
        """The URLs that the request may have been sent to, the likeliest first."""
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        query = scope["query_string"].decode("latin-1")
        target = f"{path}?{query}" if query else path
        return [f"{base}{target}" for base in self._bases(scope)]

    def trusts(self, scope: Scope) -> bool:
        """Whether its forwarded host and scheme are trusted."""
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
        forwarded = [f"{scheme}://{host}" for scheme in schemes for host in hosts]
        return list(dict.fromkeys([*forwarded, own, *fallback]))

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
    """Each header may be a list. Values that cannot be part of a URL are dropped."""
    parts = [part.strip() for header in headers for part in header.split(",")]
    return [part for part in parts if part.isascii() and not set(part) & _NO_HOST and part][:FORWARDED_MAX]
