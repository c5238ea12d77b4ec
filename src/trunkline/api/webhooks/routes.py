"""The routes of webhooks: plain Starlette, because they are the hottest of the platform."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.hot_routes import Endpoint, HotRoute
from trunkline.api.webhooks.answers import Answers, FindStream
from trunkline.api.webhooks.reading import Heard, Reader
from trunkline.api.webhooks.seen import PublicView
from trunkline.clock import Clock
from trunkline.dispatch import reports
from trunkline.dispatch.calls import KIND, URGENT
from trunkline.dispatch.inbound import Inbound
from trunkline.errors import StoreUnavailable
from trunkline.mailbox.inbox import Inbox
from trunkline.store.database import Database
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import CallbackKind, Document
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

# "Kept, nothing to say." Exotel wants a 200 and no other.
_KEPT: Mapping[str, int] = {"exotel": 200}


@dataclass(frozen=True, slots=True)
class WebhookDeps:
    database: Database
    inbox: Inbox
    carriers: CarrierDirectory
    clock: Clock
    keys: CallbackKeys
    view: PublicView
    inbound: Inbound
    find_stream: FindStream


class Webhooks:
    def __init__(self, deps: WebhookDeps):
        self._reader = Reader(deps.carriers, deps.keys, deps.view)
        self._answers = Answers(deps.database, deps.inbound, deps.find_stream, deps.keys)
        self._inbox = deps.inbox
        self._clock = deps.clock

    def hot_routes(self) -> list[HotRoute]:
        return [
            _route("POST", "status", self.event, "A call changed its state"),
            _route("GET", "status", self.seen, "Which URL is seen here, for whoever can sign one"),
            _route("POST", "recording", self.event, "A recording is ready"),
            _route("POST", "machine", self.event, "Whether a machine answered"),
            _route("POST", "answer", self.answer, "A call was answered"),
            _route("GET", "answer", self.answer, "A call was answered (Exotel's applets ask with GET)"),
            _route("POST", "inbound", self.arrival, "A call comes in"),
            _route("GET", "inbound", self.arrival, "A call comes in (Exotel's applets ask with GET)"),
        ]

    async def event(self, request: Request) -> Response:
        """Something happened to a call: kept, then answered."""
        heard = await self._reader.read(request)
        if isinstance(heard, Response):
            return heard
        await self._append(heard)
        return Response(status_code=_KEPT.get(heard.carrier.name, 204))

    async def seen(self, request: Request) -> Response:
        """For the doctor: a carrier signs the URL that it was given, and we verify the one that we see."""
        found = self._reader.seen(request)
        return found if isinstance(found, Response) else _json(found)

    async def answer(self, request: Request) -> Response:
        """Somebody picked up: what shall the carrier do with the call? That it cannot be written down is no reason to
        leave them alone: their carrier tells of the call again at its end."""
        heard = await self._reader.read(request)
        if isinstance(heard, Response):
            return heard
        reply = await self._answers.to_answered(heard)
        try:
            await self._append(heard, no_agent=reply.no_agent)
        except StoreUnavailable as error:
            log.error("answer.not_kept", attempt_id=str(heard.attempt_id), error=str(error))
        return _told(reply.document)

    async def arrival(self, request: Request) -> Response:
        """Somebody calls us: what shall the carrier do with the call?"""
        heard = await self._reader.read(request)
        if isinstance(heard, Response):
            return heard
        return _told(await self._answers.to_arrived(heard))

    async def _append(self, heard: Heard, *, no_agent: bool = False) -> None:
        event = heard.event
        receipt = await self._inbox.append(
            NewEvent(
                kind=KIND,
                key=str(heard.attempt_id),
                dedupe_key=event.dedupe_key,
                type=event.kind,
                payload={
                    "kind": event.kind,
                    "call_id": event.call_id,
                    "at": (event.at or self._clock.now()).isoformat(),
                    "reason": event.reason,
                    "duration_s": event.duration_s,
                    "answered_by": event.answered_by,
                    **({"agent_joined": False} if no_agent else {}),
                    "raw": dict(event.raw),
                    **({"report": reports.as_payload(event.report)} if event.report else {}),
                },
                urgent=event.kind in URGENT,
            )
        )
        if not receipt.created:
            metrics.WEBHOOKS_REPEATED.labels(heard.carrier.name).inc()


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _told(document: Document) -> Response:
    return Response(document.body, document.status, media_type=document.content_type)


def _route(method: str, kind: CallbackKind, endpoint: Endpoint, summary: str) -> HotRoute:
    return HotRoute(method, f"/webhooks/{{carrier}}/{kind}", endpoint, None, _operation(summary))


def _operation(summary: str) -> dict[str, Any]:
    return {
        "tags": ["webhooks"],
        "summary": summary,
        "description": "For carriers. Signed by the carrier; the attempt is named in the URL we gave it.",
        "parameters": [{"name": "carrier", "in": "path", "required": True, "schema": {"type": "string"}}],
        "responses": {
            "200": {"description": "What the carrier shall do with the call, in its own language."},
            "202": {"description": "Believed, and not understood."},
            "204": {"description": "Kept."},
            "401": {"description": "The password is missing (Exotel)."},
            "403": {"description": "The signature does not fit, or the webhook is too old."},
            "413": {"description": "Larger than any webhook."},
            "503": {"description": "It cannot be kept now; send it again."},
        },
    }
