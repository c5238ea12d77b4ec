"""Requests to the API: one key, one timeout, and typed errors."""

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from trunkline import __version__
from trunkline.client.errors import ApiError, Unreachable, api_error

# Statuses of a proxy or of an API that fails: the request may not have taken effect.
TRANSIENT = frozenset({502, 503, 504})


class Transport:
    def __init__(self, base_url: str, api_key: str, timeout_s: float):
        if not base_url.startswith(("http://", "https://")):
            raise ValueError("base_url must begin with http:// or https://")
        self._base_url = base_url.rstrip("/")
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "User-Agent": f"trunkline-client/{__version__}",
        }
        self._timeout = ClientTimeout(total=timeout_s)
        self._session: ClientSession | None = None

    async def get(self, path: str, params: dict[str, str | int] | None = None) -> Any:
        return await self.ask("GET", path, params=params)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        return await self.ask("POST", path, json=body)

    async def put(self, path: str, body: dict[str, Any]) -> Any:
        return await self.ask("PUT", path, json=body)

    async def patch(self, path: str, body: dict[str, Any]) -> Any:
        return await self.ask("PATCH", path, json=body)

    async def delete(self, path: str, params: dict[str, str | int] | None = None) -> Any:
        """None if the response has no body."""
        return await self.ask("DELETE", path, params=params)

    async def upload(
        self,
        path: str,
        body: AsyncIterable[bytes],
        content_type: str,
        params: dict[str, str | int],
        timeout_s: float,
    ) -> Any:
        """A body of any size, streamed."""
        return await self.ask(
            "POST",
            path,
            data=body,
            params=params,
            headers={"Content-Type": content_type},
            timeout=ClientTimeout(total=timeout_s),
        )

    async def download(self, path: str, timeout_s: float) -> AsyncIterator[bytes]:
        """A response of any size, streamed."""
        url, timeout = self._base_url + path, ClientTimeout(total=timeout_s)
        try:
            async with self._open().get(url, allow_redirects=False, timeout=timeout) as response:
                if response.status != 200:
                    request_id = response.headers.get("X-Request-ID", "")
                    _read(response.status, await response.text(errors="replace"), request_id)
                async for piece in response.content.iter_any():
                    yield piece
        except (ClientError, OSError) as error:
            raise Unreachable(f"GET {url}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> ClientSession:
        if self._session is None or self._session.closed:
            self._session = ClientSession(headers=self._headers, timeout=self._timeout)
        return self._session

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Sent once: only the caller knows whether a request may be retried."""
        url = self._base_url + path
        try:
            # A redirect would carry the key to another host, and turn a POST into a GET.
            async with self._open().request(method, url, allow_redirects=False, **options) as response:
                status, text = response.status, await response.text(errors="replace")
                request_id = response.headers.get("X-Request-ID", "")
        except (ClientError, OSError) as error:
            raise Unreachable(f"{method} {url}: {str(error) or type(error).__name__}") from error
        return _read(status, text, request_id)


def _read(status: int, text: str, request_id: str) -> Any:
    if status == 204:
        return None
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not 200 <= status < 300:
        raise api_error(status, body, request_id)
    if body is None:
        raise Unreachable(f"answered with status {status} and something that is not JSON")
    return body


def is_transient(error: ApiError | Unreachable) -> bool:
    return isinstance(error, Unreachable) or error.status in TRANSIENT
