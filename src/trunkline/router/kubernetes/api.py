"""Requests to the cluster's API server, each with a deadline."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from trunkline.errors import TrunklineError
from trunkline.settings import Settings

# The JSON of a pod is some tens of KB; a longer line is no pod.
LINE_MAX_BYTES = 4 * 1024 * 1024


class ClusterUnavailable(TrunklineError):
    """The API server did not answer, or with an unexpected reply. The request may or may not have taken effect."""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of the API server. The token's file is read for every request: the cluster renews it."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> "ClusterAddress":
        router = settings.router
        host = f"https://{router.cluster_host or 'kubernetes.default.svc'}:{router.cluster_port}"
        token, ca = router.cluster_token_file, router.cluster_ca_file
        return cls(router.cluster_url or host, token if token.exists() else None, ca if ca.exists() else None)


class ClusterApi:
    def __init__(self, address: ClusterAddress, *, timeout_s: float = 5.0):
        self._address = address
        self._timeout_s = timeout_s
        self._session: ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> ApiResponse:
        data = None if body is None else json.dumps(body)
        headers = self._headers() | ({"Content-Type": content_type} if data else {})
        url = self._address.url + path
        try:
            async with self._opened().request(
                method,
                url,
                params=query,
                data=data,
                headers=headers,
                timeout=ClientTimeout(total=self._timeout_s),
            ) as response:
                return ApiResponse(response.status, await response.json(content_type=None) or {})
        except (ClientError, OSError, ValueError) as error:
            raise ClusterUnavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error

    async def watch(
        self, path: str, query: Mapping[str, str], *, lasts_s: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Events until the server ends the watch, after `lasts_s`. On a dead connection it fails soon after that."""
        params = {**query, "watch": "true", "timeoutSeconds": str(max(1, round(lasts_s)))}
        deadline = ClientTimeout(total=lasts_s + self._timeout_s, sock_connect=self._timeout_s)
        try:
            async with self._opened().get(
                self._address.url + path, params=params, headers=self._headers(), timeout=deadline
            ) as response:
                if response.status != 200:
                    yield {"type": "ERROR", "object": {"code": response.status}}
                    return
                pending = b""
                try:
                    async for chunk in response.content.iter_any():
                        *lines, pending = (pending + chunk).split(b"\n")
                        if len(pending) > LINE_MAX_BYTES:
                            raise ClusterUnavailable(f"watch {path}: an endless line")
                        for line in lines:
                            if line.strip():
                                yield json.loads(line)
                finally:
                    # Not at its end: closed, it would wait half a minute for a silent server to confirm that in TLS.
                    if response.connection is not None and response.connection.transport is not None:
                        response.connection.transport.abort()
        except (ClientError, OSError, ValueError) as error:
            raise ClusterUnavailable(f"watch {path}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> ClientSession:
        if self._session is None:
            ca = self._address.ca_file
            context = ssl.create_default_context(cafile=str(ca)) if ca else True
            self._session = ClientSession(connector=TCPConnector(ssl=context))
        return self._session

    def _headers(self) -> dict[str, str]:
        file = self._address.token_file
        if file is None:
            return {}
        return {"Authorization": f"Bearer {file.read_text(encoding='utf-8').strip()}"}
