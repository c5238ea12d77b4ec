"""HTTP requests to hosts of tenants: to public addresses only, without redirects, with bounded time and size."""

from contextlib import AbstractAsyncContextManager

import aiohttp
from aiohttp.client_exceptions import ClientConnectorDNSError
from yarl import URL

from trunkline import __version__
from trunkline.http.addresses import AddressRefused, PublicResolver, check_url

TOTAL_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 500

# What a request can fail with. A name that resolves to a private address is among them: see `was_refused`.
FAILURES: tuple[type[BaseException], ...] = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


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
