"""The routes of webhooks: plain Starlette, because they are the hottest of the platform.

`WebhookReader` makes a verified event of a request, or a refusal that leaves no trace but a metric. The URL's signature
is checked before a byte of the body is awaited; the carrier's own signature before the body is parsed. A refusal does
not reveal which of the two was wrong.

Carriers sign the URL that they have, whatever proxies changed in the request. PUBLIC_BASE_URL wins. Without it the
forwarded host and scheme count if the proxy is trusted, else only those of the request itself. Nothing there proves
anything: no signature fits a wrong URL.

A status event is stored before it is acknowledged. A request for a document is different, because a person waits on the
phone: the response is a document within `ANSWER_S`, whatever is away or hangs, and its event is written afterwards.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from msgspec.structs import asdict
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from trunkline.api.raw_routes import Endpoint, Part, RawRoute, json_response, operation, said
from trunkline.api.webhooks.answers import Answers, LateEvents, VerifiedWebhook, document_response
from trunkline.clock import Clock
from trunkline.dispatch import agent_reports
from trunkline.dispatch.calls import KIND, URGENT
from trunkline.dispatch.inbound import inbound_attempt_id
from trunkline.errors import StoreUnavailable
from trunkline.http.body import bounded_body
from trunkline.in_time import in_time
from trunkline.mailbox.inbox import Inbox
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import bind, get_logger, metrics
from trunkline.telephony.accounts import AccountRefresher
from trunkline.telephony.callbacks import CallbackKeys, is_fallback, verify_callback
from trunkline.telephony.carrier import (
    CallbackKind,
    CallbackTag,
    CallEvent,
    Documents,
    Forged,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CARRIERS
from trunkline.telephony.directory import CarrierDirectory
from trunkline.telephony.documents import documents_for, last_resorts, read_answer
from trunkline.value import replace

log = get_logger(__name__)

# A form of Twilio is about 1 KB, a report of Vapi with its transcript may be hundreds.
BODY_MAX_BYTES = 1024 * 1024
# Kinds whose URLs carry the attempt: the platform's signature in them is for one call.
_OF_ONE_CALL: frozenset[CallbackKind] = frozenset({"answer", "resume"})
# Several proxies may each have added a value. More than these are not legitimate.
FORWARDED_MAX = 3
_NO_HOST = frozenset("/\\@?# ")
# The status of an acknowledgement, 204 by default. Exotel accepts only 200.
_KEPT: Mapping[str, int] = {"exotel": 200}
# Within this time a carrier gets its document. The person hears silence until then.
ANSWER_S = 1.2
# Finding a counter by its labels costs as much as verifying a signature.
_received = cache(metrics.WEBHOOKS_RECEIVED.labels)

Network = IPv4Network | IPv6Network


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
        headers = Headers(scope=scope)
        bases = [self.base_url or f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"]
        if self.trusted and not self.base_url and self.trusts(scope):
            schemes = _values(headers.getlist("x-forwarded-proto")) or [scope.get("scheme", "http")]
            hosts = _values(headers.getlist("x-forwarded-host")) or [headers.get("host", "")]
            bases = [*(f"{scheme}://{host}" for scheme in schemes for host in hosts), *bases]
        if self.fallback_base_url:
            bases.append(self.fallback_base_url)
        return [f"{base}{target}" for base in dict.fromkeys([base.rstrip("/") for base in bases])]

    def trusts(self, scope: Scope) -> bool:
        """Whether its forwarded host and scheme are trusted."""
        client: tuple[str, int] | None = scope.get("client")
        try:
            address = ip_address(client[0] if client else "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.trusted)


class Judged(NamedTuple):
    """Whose request it is, None for an unknown account; the request as it was sent; the verdict; and whether the
    accounts could not be read again before it was refused."""

    carrier: Documents | None
    sent: WebhookRequest
    result: WebhookResult
    is_unrefreshed: bool = False


@dataclass(frozen=True, slots=True)
class WebhookReader:
    carriers: CarrierDirectory
    keys: CallbackKeys
    view: PublicView
    refresher: AccountRefresher | None = None

    async def read(self, request: Request) -> VerifiedWebhook | Response:
        asked_at_s = asyncio.get_running_loop().time()
        urls = self.view.urls(request.scope)
        tag = verify_callback(urls[0], self.keys)
        if isinstance(tag, Forged):
            return refuse(_known(request), "forged", 403)
        _received(tag.carrier).inc()
        if is_fallback(urls[0]):
            metrics.ANSWER_FALLBACKS.labels(tag.carrier).inc()
        body = await bounded_body(request, BODY_MAX_BYTES)
        if body is None:
            return refuse(tag.carrier, "too_large", 413)
        carrier, sent, result, is_unrefreshed = await self.judge(request, urls, body, tag)
        is_proven = carrier is not None
        if carrier is None and is_unrefreshed and tag.kind in _OF_ONE_CALL:
            # An answered call still gets its document: its URL is proof enough for that, and for nothing else.
            carrier, result = documents_for(tag.carrier), read_answer(sent, tag, self.keys)
        if carrier is None:
            return refuse(tag.carrier, "no_account", 403)
        match result:
            case Forged(status=status):
                return refuse(carrier.name, "forged", status)
            case Unreadable(reason=reason):
                log.warning("webhook.unreadable", carrier=carrier.name, reason=reason)
                return refuse(carrier.name, "unreadable", 202)
            case CallEvent() as event:
                attempt_id = event.attempt_id or inbound_attempt_id(carrier.name, event.call_id)
                if not is_proven:
                    log.warning("webhook.account_unknown", carrier=tag.carrier, attempt_id=str(attempt_id))
                base_url = sent.url.partition("/webhooks/")[0]
                return VerifiedWebhook(carrier, tag, event, attempt_id, base_url, asked_at_s, is_proven)

    async def judge(self, request: Request, urls: Sequence[str], body: bytes, tag: CallbackTag) -> Judged:
        """By the carrier's account, for each of the possible URLs until one fits. Before it refuses one for its account
        or signature, this process reads the accounts once more."""
        # `request.headers` would scan all headers for every name.
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]
        }
        is_unrefreshed, refresher = False, self.refresher
        while True:
            sent = WebhookRequest(request.method, urls[0], headers, body, tag)
            carrier = self.carriers.find(tag.carrier, tag.account)
            result = carrier.parse_webhook(sent) if carrier is not None else Forged("no such account")
            for url in urls[1:]:
                if carrier is None or not isinstance(result, Forged):
                    break
                sent = replace(sent, url=url)
                result = carrier.parse_webhook(sent)
            if refresher is None or not isinstance(result, Forged):
                return Judged(carrier, sent, result, is_unrefreshed)
            is_unrefreshed, refresher = await refresher.again() == "unavailable", None

    def tag(self, request: Request) -> CallbackTag | None:
        """The tag of the URL, if its signature is valid."""
        tag = verify_callback(self.view.urls(request.scope)[0], self.keys)
        return tag if isinstance(tag, CallbackTag) else None


def refuse(carrier: str, reason: str, status: int) -> Response:
    metrics.WEBHOOKS_REJECTED.labels(carrier, reason).inc()
    headers = {"WWW-Authenticate": 'Basic realm="trunkline"'} if status == 401 else None
    return Response(status_code=status, headers=headers)


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
            _route("POST", "status", self.event, "Status of a call", _KEPT_ANSWERS),
            _route(
                "GET", "status", self.seen, "Show the URL that this server sees, for a signed request", _SEEN
            ),
            _route("POST", "recording", self.event, "A recording is ready", _KEPT_ANSWERS),
            _route("POST", "machine", self.event, "Whether a machine answered", _KEPT_ANSWERS),
            _route(
                "POST", "stream", self.event, "The stream of a call began, failed or ended", _KEPT_ANSWERS
            ),
            _route("POST", "answer", self.document, "A call was answered", _DOCUMENTS),
            _route(
                "GET", "answer", self.document, "A call was answered (Exotel's applets use GET)", _DOCUMENTS
            ),
            _route(
                "POST",
                "resume",
                self.document,
                "The stream of a call has closed, and the call goes on",
                _DOCUMENTS,
            ),
            _route("POST", "inbound", self.document, "A call comes in", _DOCUMENTS),
            _route("GET", "inbound", self.document, "A call comes in (Exotel's applets use GET)", _DOCUMENTS),
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
        """For the doctor: a carrier signs the URL that it has, and the API verifies the one that it sees. Only for a
        signed URL."""
        if self._reader.tag(request) is None:
            return refuse(_known(request), "forged", 403)
        view, client = self._reader.view, request.scope.get("client")
        found = {
            "urls": view.urls(request.scope),
            "from": client[0] if client else None,
            "is_trusted": view.trusts(request.scope),
        }
        return json_response(200, found)

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
            metrics.ANSWERS.labels(_known(request), "refused").inc()
            return webhook
        with bind(attempt_id=str(webhook.attempt_id)):
            reply = await self._answers.reply(webhook)
        if webhook.tag.kind == "answer" and webhook.is_proven:
            self._late_events.put(webhook.carrier.name, self._event(webhook, agent_joined=reply.agent_joined))
        got = "document" if webhook.is_proven else "unproven"
        metrics.ANSWERS.labels(webhook.carrier.name, got).inc()
        return document_response(reply.document)

    def _last_resort(self, request: Request) -> Response:
        """A document built when the process started. Only for a URL with a valid signature."""
        carrier = request.path_params["carrier"]
        document, tag = self._last_resorts.get(carrier), self._reader.tag(request)
        if document is None or tag is None:
            return Response(status_code=403)
        metrics.ANSWERS.labels(carrier, "last_resort").inc()
        if tag.attempt_id is not None and tag.kind == "answer":
            # An apology is no agent, and the operator's own URL is an external one.
            payload = {"kind": "document", "agent_joined": bool(self._answers.fallback.url)}
            event = NewEvent(KIND, str(tag.attempt_id), "last_resort", "document", payload)
            self._late_events.put(carrier, event)
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


def _known(request: Request) -> str:
    """The carrier in the path of a request that is not verified. Clients can invent names; metrics have only those of
    carriers."""
    carrier: str = request.path_params["carrier"]
    return carrier if carrier in CARRIERS else "unknown"


# A carrier's own fields: a form, a flat JSON object, or Vapi's message.
CARRIER_BODY: Part = {
    "application/x-www-form-urlencoded": {
        "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        "example": {"CallSid": "CA123", "CallStatus": "completed", "CallDuration": "42"},
    },
    "application/json": {
        "schema": {"type": "object", "additionalProperties": True},
        "example": {"message": {"type": "status-update", "status": "ended", "call": {"id": "c-1"}}},
    },
}
DOCUMENT: Part = {
    "description": "What the carrier is to do with the call, in its own language.",
    "content": {
        "application/xml": {
            "schema": {"type": "string"},
            "example": "<Response><Say>All agents are busy.</Say><Hangup/></Response>",
        },
        "application/json": {
            "schema": {"type": "object", "additionalProperties": True},
            "example": {"url": "wss://voice.example.com/ws/pod/voice-agent-0/CA123?token=t"},
        },
    },
}
REFUSED: Mapping[str, Part] = {
    "401": {"description": "The password is missing (Exotel). No body."},
    "403": {"description": "The signature does not fit, or the webhook is too old. No body."},
    "413": {"description": "Larger than any webhook. No body."},
}
_UNREADABLE = {"description": "The signature is valid; the content is not understood. No body."}
_KEPT_ANSWERS: Mapping[str, Part] = {
    "200": {"description": "Stored (Exotel, which accepts no other status). No body."},
    "202": _UNREADABLE,
    "204": {"description": "Stored."},
    **REFUSED,
    "408": said("The body arrived too slowly."),
    "503": said("It cannot be stored now; send it again."),
}
_URLS: Part = {
    "description": "The URLs that the request may have been sent to, and whether its proxy is trusted.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "additionalProperties": True},
            "example": {
                "urls": ["https://calls.example.com/webhooks/twilio/status?sig=s"],
                "from": "10.0.0.7",
                "is_trusted": True,
            },
        }
    },
}
_SEEN: Mapping[str, Part] = {"200": _URLS, "403": REFUSED["403"]}
_DOCUMENTS: Mapping[str, Part] = {
    "200": DOCUMENT,
    **REFUSED,
    "503": {**DOCUMENT, "description": "No agent is free (Exotel)."},
}
_PARAMETERS: list[Part] = [
    {
        "name": "carrier",
        "in": "path",
        "required": True,
        "description": "The carrier.",
        "schema": {"type": "string", "enum": sorted(CARRIERS)},
    },
    *(
        {
            "name": name,
            "in": "query",
            "required": name == "sig",
            "description": about,
            "schema": {"type": "string"},
        }
        for name, about in {
            "account": "The account at the carrier. Left out: `default`.",
            "attempt": "The attempt that the platform dialled. Left out: an inbound call.",
            "sig": "The platform's signature of the URL.",
        }.items()
    ),
]


def _route(
    method: str, kind: CallbackKind, endpoint: Endpoint, summary: str, answers: Mapping[str, Part]
) -> RawRoute:
    described = operation(
        f"{'receive' if method == 'POST' else 'see' if kind == 'status' else 'get'}_{kind}_webhook",
        "webhooks",
        summary,
        "For carriers. Signed by the carrier; the URL, which the platform gave it, names the attempt.",
        answers,
        body=CARRIER_BODY if method == "POST" else None,
        parameters=_PARAMETERS,
    )
    return RawRoute(method, f"/webhooks/{{carrier}}/{kind}", endpoint, None, described)


def _values(headers: Iterable[str]) -> list[str]:
    """Each header may be a list. Values that cannot be part of a URL are dropped."""
    parts = [part.strip() for header in headers for part in header.split(",")]
    return [part for part in parts if part.isascii() and not set(part) & _NO_HOST and part][:FORWARDED_MAX]
