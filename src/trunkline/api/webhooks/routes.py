"""The routes of webhooks: plain Starlette, because they are the hottest of the platform.

A status event is stored before it is acknowledged. A request for a document is different, because a person waits on the
phone: the response is a document within `ANSWER_S`, whatever is away or hangs, and its event is written afterwards.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from msgspec.structs import asdict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trunkline.api.raw_routes import Endpoint, RawRoute, json_response
from trunkline.api.webhooks.answers import Answers, document_response
from trunkline.api.webhooks.late_events import LateEvents
from trunkline.api.webhooks.reading import VerifiedWebhook, WebhookReader
from trunkline.clock import Clock
from trunkline.dispatch import agent_reports
from trunkline.dispatch.calls import KIND, URGENT
from trunkline.errors import StoreUnavailable
from trunkline.in_time import in_time
from trunkline.mailbox.inbox import Inbox
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import bind, get_logger, metrics
from trunkline.telephony.carrier import CallbackKind
from trunkline.telephony.carrier_registry import CARRIERS
from trunkline.telephony.documents import last_resorts

log = get_logger(__name__)

# The status of an acknowledgement, 204 by default. Exotel accepts only 200.
_KEPT: Mapping[str, int] = {"exotel": 200}
# Within this time a carrier gets its document. The person hears silence until then.
ANSWER_S = 1.2


class WebhookRoutes:
    """Events of answers are written after the response; a test may wait for them at `late_events`."""

    def __init__(
        self,
        reader: WebhookReader,
        answers: Answers,
        inbox: Inbox,
        late_events: LateEvents,
        clock: Clock,
        answer_s: float = ANSWER_S,
    ):
        self._reader = reader
        self._answers = answers
        self._inbox = inbox
        self._late_events = late_events
        self._clock = clock
        self._answer_s = answer_s
        self._last_resorts = last_resorts(answers.fallback)

    def raw_routes(self) -> list[RawRoute]:
        return [
            _route("POST", "status", self.event, "Status of a call"),
            _route("GET", "status", self.seen, "Show the URL that this server sees, for a signed request"),
            _route("POST", "recording", self.event, "A recording is ready"),
            _route("POST", "machine", self.event, "Whether a machine answered"),
            _route("POST", "stream", self.event, "The stream of a call began, failed or ended"),
            _route("POST", "answer", self.document, "A call was answered"),
            _route("GET", "answer", self.document, "A call was answered (Exotel's applets use GET)"),
            _route("POST", "resume", self.document, "The stream of a call has closed, and the call goes on"),
            _route("POST", "inbound", self.document, "A call comes in"),
            _route("GET", "inbound", self.document, "A call comes in (Exotel's applets use GET)"),
        ]

    async def event(self, request: Request) -> Response:
        """A status of a call: stored, then acknowledged."""
        webhook = await self._reader.read(request)
        if isinstance(webhook, Response):
            return webhook
        event = self._event(webhook)
        try:
            receipt = await self._inbox.append(event)
        except StoreUnavailable:
            # The response asks the carrier for a retry, which it may not send: so this process writes it later too.
            self._late_events.put(webhook.carrier.name, event)
            raise
        if not receipt.created:
            metrics.WEBHOOKS_REPEATED.labels(webhook.carrier.name).inc()
        return Response(status_code=_KEPT.get(webhook.carrier.name, 204))

    async def seen(self, request: Request) -> Response:
        """For the doctor: a carrier signs the URL that it has, and the API verifies the one that it sees."""
        found = self._reader.seen(request)
        return found if isinstance(found, Response) else json_response(200, found)

    async def document(self, request: Request) -> Response:
        """The document for a call that was answered, whose stream has closed, or that comes in."""
        try:
            return await in_time(self._answer_s, self._document(request))
        except ClientDisconnect:
            raise
        except Exception as error:
            log.error(
                "answer.last_resort",
                carrier=request.path_params["carrier"],
                error=str(error) or type(error).__name__,
                exc_info=error,
            )
        return self._last_resort(request)

    async def _document(self, request: Request) -> Response:
        webhook = await self._reader.read(request)
        if isinstance(webhook, Response):
            if webhook.status_code < 400:  # truly from the carrier, which waits for a document
                return self._last_resort(request)
            _got(request.path_params["carrier"], "refused")
            return webhook
        with bind(attempt_id=str(webhook.attempt_id)):
            reply = await self._answers.reply(webhook)
        if webhook.tag.kind == "answer" and webhook.is_proven:
            self._late_events.put(webhook.carrier.name, self._event(webhook, agent_joined=reply.agent_joined))
        _got(webhook.carrier.name, "document" if webhook.is_proven else "unproven")
        return document_response(reply.document)

    def _last_resort(self, request: Request) -> Response:
        """A document built when the process started. Only for a URL with a valid signature."""
        carrier = request.path_params["carrier"]
        document, tag = self._last_resorts.get(carrier), self._reader.tag(request)
        if document is None or tag is None:
            return Response(status_code=403)
        _got(carrier, "last_resort")
        if tag.attempt_id is not None and tag.kind == "answer":
            self._late_events.put(carrier, _without_stream(tag.attempt_id, bool(self._answers.fallback.url)))
        return document_response(document)

    def _event(self, webhook: VerifiedWebhook, *, agent_joined: bool | None = None) -> NewEvent:
        event, no_agent = webhook.event, agent_joined is False
        return NewEvent(
            kind=KIND,
            key=str(webhook.attempt_id),
            # A call that was held and then got no agent has two answer events, and the second has more information.
            dedupe_key=f"{event.dedupe_key}:no_agent" if no_agent else event.dedupe_key,
            type=event.kind,
            payload={
                "kind": event.kind,
                "call_id": event.call_id,
                **({"other_ids": list(event.alias_ids)} if event.alias_ids else {}),
                **({"is_leg_id": True} if event.is_leg_id else {}),
                "at": (event.at or self._clock.now()).isoformat(),
                **({} if event.at else {"is_our_clock": True}),
                "reason": event.reason,
                **({"fault": event.fault} if event.fault else {}),
                "duration_s": event.duration_s,
                "answered_by": event.answered_by,
                **({"agent_joined": agent_joined} if agent_joined is not None else {}),
                "raw": dict(event.raw),
                **({"report": agent_reports.as_payload(event.report)} if event.report else {}),
                **({"cost": asdict(event.cost)} if event.cost else {}),
            },
            urgent=event.kind in URGENT,
        )


def _without_stream(attempt_id: UUID, is_elsewhere: bool) -> NewEvent:
    """The call got the last-resort document: an apology is no agent, and the operator's own URL is an external one."""
    return NewEvent(
        kind=KIND,
        key=str(attempt_id),
        dedupe_key="last_resort",
        type="document",
        payload={"kind": "document", "agent_joined": is_elsewhere},
    )


def _got(carrier: str, what: str) -> None:
    metrics.ANSWERS.labels(carrier if carrier in CARRIERS else "unknown", what).inc()


def _route(method: str, kind: CallbackKind, endpoint: Endpoint, summary: str) -> RawRoute:
    return RawRoute(method, f"/webhooks/{{carrier}}/{kind}", endpoint, None, _operation(summary))


def _operation(summary: str) -> dict[str, Any]:
    return {
        "tags": ["webhooks"],
        "summary": summary,
        "description": "For carriers. Signed by the carrier; the URL, which the platform gave it, names the attempt.",
        "parameters": [{"name": "carrier", "in": "path", "required": True, "schema": {"type": "string"}}],
        "responses": {
            "200": {"description": "What the carrier is to do with the call, in its own language."},
            "202": {"description": "The signature is valid; the content is not understood."},
            "204": {"description": "Stored."},
            "401": {"description": "The password is missing (Exotel)."},
            "403": {"description": "The signature does not fit, or the webhook is too old."},
            "413": {"description": "Larger than any webhook."},
            "503": {"description": "It cannot be stored now; send it again."},
        },
    }
