"""The carriers' webhooks: verify, append, acknowledge. The work follows in the mailbox.

Plain Starlette routes: they are the hottest of the platform. Nothing of a body is read before its signature was
checked; a forged request leaves no trace but a metric.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.hot_routes import HotRoute
from trunkline.clock import Clock
from trunkline.dispatch.calls import KIND, URGENT
from trunkline.mailbox.inbox import Inbox
from trunkline.store import attempts
from trunkline.store.attempts import Current
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import bind, get_logger, metrics
from trunkline.telephony.carrier import CallEvent, Carrier, Document, Forged, Unreadable, WebhookRequest
from trunkline.telephony.carriers import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

# A carrier's webhook is about 1 KB.
BODY_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stream:
    """Where the call's audio goes, and what the agent is told with it."""

    url: str
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class WebhookDeps:
    database: Database
    inbox: Inbox
    carriers: CarrierDirectory
    clock: Clock
    public_base_url: str
    # Gives the call a pod: its stream, "busy" when none is free, "ended" when the call is over already.
    find_stream: Callable[[str, UUID, str], Awaitable[Stream | str]]
    busy_message: str = "All our agents are busy. Please try again later."


class Webhooks:
    def __init__(self, deps: WebhookDeps):
        self._deps = deps

    def hot_routes(self) -> list[HotRoute]:
        return [
            HotRoute(
                "POST",
                "/webhooks/{carrier}/status",
                self.status,
                None,
                _operation("A call changed its state"),
            ),
            HotRoute(
                "POST", "/webhooks/{carrier}/answer", self.answer, None, _operation("A call was answered")
            ),
        ]

    async def status(self, request: Request) -> Response:
        """A call changed its state."""
        match await self._read(request):
            case Response() as refusal:
                return refusal
            case _, event:
                await self._append(event)
                return Response(status_code=204)

    async def answer(self, request: Request) -> Response:
        """Somebody picked up: what shall the carrier do with the call?"""
        match await self._read(request):
            case Response() as refusal:
                return refusal
            case carrier, event:
                await self._append(event)
                document = await self._document(carrier, event)
                return Response(document.body, document.status, media_type=document.content_type)

    async def _read(self, request: Request) -> "Response | tuple[Carrier, _Tagged]":
        """The carrier and its verified event, or the answer that refuses the request."""
        name = request.path_params["carrier"]
        try:
            carrier = self._deps.carriers.get(name)
        except CarrierConfigError:
            return Response(status_code=404)
        metrics.WEBHOOKS_RECEIVED.labels(name).inc()
        body = await _bounded_body(request)
        if body is None:
            return _refuse(name, "too_large", 413)
        match carrier.parse_webhook(self._as_seen(request, body)):
            case Forged():
                return _refuse(name, "forged", 403)
            case Unreadable(reason=reason):
                log.warning("webhook.unreadable", carrier=name, reason=reason)
                return _refuse(name, "unreadable", 202)
            case CallEvent(attempt_id=None):
                return _refuse(name, "no_attempt", 403)
            case CallEvent(attempt_id=UUID() as attempt_id) as event:
                return carrier, _Tagged(attempt_id, event)
            case other:
                raise TypeError(f"unexpected {type(other).__name__}")

    def _as_seen(self, request: Request, body: bytes) -> WebhookRequest:
        """Carriers sign the URL they were given, whatever proxies made of it."""
        query = f"?{request.url.query}" if request.url.query else ""
        url = f"{self._deps.public_base_url.rstrip('/')}{request.url.path}{query}"
        return WebhookRequest(request.method, url, dict(request.headers), body)

    async def _append(self, tagged: "_Tagged") -> None:
        event = tagged.event
        await self._deps.inbox.append(
            NewEvent(
                kind=KIND,
                key=str(tagged.attempt_id),
                dedupe_key=event.dedupe_key,
                type=event.kind,
                payload={
                    "kind": event.kind,
                    "call_id": event.call_id,
                    "at": (event.at or self._deps.clock.now()).isoformat(),
                    "reason": event.reason,
                    "duration_s": event.duration_s,
                    "raw": dict(event.raw),
                },
                urgent=event.kind in URGENT,
            )
        )

    async def _document(self, carrier: Carrier, tagged: "_Tagged") -> Document:
        """The answer gate: a call that was superseded is hung up; if the truth cannot be read, it connects."""
        call_id = tagged.event.call_id
        with bind(attempt_id=str(tagged.attempt_id)):
            current = await self._current(tagged.attempt_id)
            if current is not None and (current.is_over or not current.is_newest):
                log.warning("answer.superseded", call_id=call_id)
                return carrier.hang_up_document()
            merchant_id = current.merchant_id if current else ""
            match await self._deps.find_stream(call_id, tagged.attempt_id, merchant_id):
                case Stream(url=url, parameters=parameters):
                    return carrier.answer_document(url, parameters)
                case "ended":
                    return carrier.hang_up_document()
                case _:
                    log.warning("answer.no_pod", call_id=call_id)
                    return carrier.busy_document(self._deps.busy_message)

    async def _current(self, attempt_id: UUID) -> Current | None:
        try:
            async with self._deps.database.connection() as conn:
                return await attempts.current(conn, attempt_id)
        except UNAVAILABLE as error:
            log.error("answer.store_unavailable", error=str(error))
            return None


def _operation(summary: str) -> dict[str, Any]:
    return {
        "tags": ["webhooks"],
        "summary": summary,
        "description": "For carriers. Signed by the carrier; the attempt is named in the URL we gave it.",
        "parameters": [{"name": "carrier", "in": "path", "required": True, "schema": {"type": "string"}}],
        "responses": {
            "200": {"description": "What the carrier shall do with the call, in its own language."},
            "204": {"description": "Kept."},
            "403": {"description": "The signature does not fit."},
        },
    }


@dataclass(frozen=True, slots=True)
class _Tagged:
    """An event of an attempt that is ours."""

    attempt_id: UUID
    event: CallEvent


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX_BYTES:
            return None
    return bytes(body)


def _refuse(carrier: str, reason: str, status: int) -> Response:
    metrics.WEBHOOKS_REJECTED.labels(carrier, reason).inc()
    return Response(status_code=status)
