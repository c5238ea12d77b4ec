"""A client of an ASGI application in the same process: no socket, no server, no waiting."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Headers
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class AsgiClient:
    """Sends a key with every request, unless it is told to send another one, or `None`."""

    def __init__(self, app: ASGIApp, key: str | None = None):
        self._app = app
        self._key = key

    def with_key(self, key: str | None) -> "AsgiClient":
        return AsgiClient(self._app, key)

    async def get(self, path: str, query: Mapping[str, object] | None = None, **more: Any) -> Answer:
        return await self.request("GET", path, query=query, **more)

    async def post(self, path: str, json: object, **more: Any) -> Answer:
        return await self.request("POST", path, json=json, **more)

    async def patch(self, path: str, json: object, **more: Any) -> Answer:
        return await self.request("PATCH", path, json=json, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.request("DELETE", path, **more)

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        body: bytes | AsyncIterator[bytes] = b"",
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = {"host": "test"} | {name.lower(): value for name, value in (headers or {}).items()}
        if json is not None:
            body = msgspec.json.encode(json)
            sent.setdefault("content-type", "application/json")
        if self._key is not None:
            sent.setdefault("authorization", f"Bearer {self._key}")
        if isinstance(body, bytes):
            sent.setdefault("content-length", str(len(body)))
        exchange = _Exchange(body)
        await self._app(_scope(method, path, query, sent), exchange.receive, exchange.send)
        return exchange.answer()


def _scope(method: str, path: str, query: Mapping[str, object] | None, headers: Mapping[str, str]) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": urlencode(query or {}, doseq=True).encode(),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "state": {},
    }


class _Exchange:
    def __init__(self, body: bytes | AsyncIterator[bytes]):
        self._body = body
        self._is_sent = False
        self._is_answered = asyncio.Event()
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._received = b""

    async def receive(self) -> Message:
        if self._is_sent:
            # Like a client that keeps its connection open until it has been answered.
            await self._is_answered.wait()
            return {"type": "http.disconnect"}
        if isinstance(self._body, bytes):
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        chunk = await anext(self._body, None)
        self._is_sent = chunk is None
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message["headers"])
        else:
            self._received += message.get("body", b"")
            if not message.get("more_body", False):
                self._is_answered.set()

    def answer(self) -> Answer:
        return Answer(self._status, Headers(raw=self._headers), self._received)
