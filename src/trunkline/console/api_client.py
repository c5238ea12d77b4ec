"""Requests to the API inside the process: the same routes, checks and responses as over the network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunkline.api.auth import API_ROOT
from trunkline.api.principal import Principal

Query = Mapping[str, object]


@dataclass(slots=True)
class ApiRefused(Exception):
    """The API refused the request, or failed: the message is for people."""

    status: int
    code: str
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_outage(self) -> bool:
        return self.status >= 500

    @property
    def sentence(self) -> str:
        """The message with the problem of each field."""
        return " ".join(f"{name}: {problem}" for name, problem in self.fields.items()) or self.message


class ApiClient:
    """Sends requests for one principal, under the id of the console's own request."""

    def __init__(self, api: ASGIApp, who: Principal, request_id: str):
        self._api = api
        self._who = who
        self._request_id = request_id

    async def get(self, path: str, query: Query | None = None) -> Any:
        return await self.ask("GET", path, query=query)

    async def post(self, path: str, body: object = None) -> Any:
        return await self.ask("POST", path, body=body)

    async def put(self, path: str, body: object) -> Any:
        return await self.ask("PUT", path, body=body)

    async def patch(self, path: str, body: object) -> Any:
        return await self.ask("PATCH", path, body=body)

    async def delete(self, path: str, query: Query | None = None) -> Any:
        return await self.ask("DELETE", path, query=query)

    async def ask(self, method: str, path: str, *, query: Query | None = None, body: object = None) -> Any:
        content = b"" if body is None else msgspec.json.encode(body)

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        return await self.send(method, path, receive, "application/json", query=query)

    async def send(
        self, method: str, path: str, receive: Receive, content_type: str, *, query: Query | None = None
    ) -> Any:
        """With a body that may still be arriving. The decoded response, or `ApiRefused`."""
        status, content = 0, bytearray()

        async def take(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                content.extend(message.get("body", b""))

        await self._api(self._scope(method, f"{API_ROOT}{path}", query, content_type), receive, take)
        reply = msgspec.json.decode(content) if content else {}
        if status < 400:
            return reply
        raise ApiRefused(
            status,
            reply.get("code", "refused"),
            reply.get("error", f"The API answered {status}."),
            {problem["field"]: problem["error"] for problem in reply.get("fields", [])},
        )

    async def pass_on(self, path: str, receive: Receive, send: Send) -> None:
        """Stream a response to the browser: a file."""
        scope = self._scope("GET", f"{API_ROOT}{path}", None, "application/json")
        await self._api(scope, receive, send)

    def _scope(self, method: str, path: str, query: Query | None, content_type: str) -> Scope:
        given = {name: _text(value) for name, value in (query or {}).items() if value not in (None, "", [])}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            # Unescaped, as a server does before it matches routes.
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": urlencode(given, doseq=True).encode(),
            "root_path": "",
            "headers": [
                (b"host", b"console"),
                (b"content-type", content_type.encode("latin-1", "replace")),
                (b"x-request-id", self._request_id.encode()),
            ],
            "client": None,
            "server": None,
            # Verified by the session. Only code of this process can write here.
            "state": {"principal": self._who},
        }


def segment(text: object) -> str:
    """One segment of a path, with slashes escaped."""
    return quote(str(text), safe="")


def _text(value: object) -> str | list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
