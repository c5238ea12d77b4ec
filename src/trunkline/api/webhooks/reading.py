"""Verifies webhooks: a request becomes a verified event, or a refusal that leaves no trace but a metric.

The URL's signature is checked before a byte of the body is awaited; the carrier's own signature before the body is
parsed. A refusal does not reveal which of the two was wrong.

Before it refuses a webhook for its account or signature, this process reads the accounts once more
(`telephony.account_refresher`). If that fails too, an answered call still gets its document: its URL is proof enough
for that, and for nothing else.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from uuid import UUID

from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.webhooks.public_url import PublicView
from trunkline.dispatch.inbound import inbound_attempt_id
from trunkline.http.body import bounded_body
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.account_refresher import AccountRefresher
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
from trunkline.telephony.carrier_registry import CARRIERS, CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory
from trunkline.telephony.documents import documents_for
from trunkline.telephony.unproven import read_answer
from trunkline.value import Value

log = get_logger(__name__)

# A form of Twilio is about 1 KB, a report of Vapi with its transcript may be hundreds.
BODY_MAX_BYTES = 1024 * 1024
# Kinds whose URLs carry the attempt: the platform's signature in them is for one call.
_OF_ONE_CALL: frozenset[CallbackKind] = frozenset({"answer", "resume"})


class VerifiedWebhook(Value, frozen=True):
    """An event, and its attempt: a dialled one, or that of an inbound call."""

    carrier: Documents
    tag: CallbackTag
    event: CallEvent
    # The URL that the carrier has, up to its path.
    base_url: str
    # When the request came, on the clock of the loop: the deadline of an answer counts from here.
    asked_at_s: float = 0.0
    # False: only the URL proves it. It may get a document, and nothing may be written.
    is_proven: bool = True

    @property
    def attempt_id(self) -> UUID:
        return self.event.attempt_id or inbound_attempt_id(self.carrier.name, self.event.call_id)


class _Judged(Value, frozen=True):
    """The verdict on a request, and which of the possible URLs it was sent to."""

    carrier: Documents | None
    result: WebhookResult
    url: str
    is_proven: bool = True

    @property
    def is_verified(self) -> bool:
        return not isinstance(self.result, Forged)


class WebhookReader:
    def __init__(
        self,
        carriers: CarrierDirectory,
        keys: CallbackKeys,
        view: PublicView,
        refresher: AccountRefresher | None = None,
    ):
        self._carriers = carriers
        self._keys = keys
        self._view = view
        self._refresher = refresher

    async def read(self, request: Request) -> VerifiedWebhook | Response:
        asked_at_s = asyncio.get_running_loop().time()
        urls = self._view.urls(request.scope)
        tag = verify_callback(urls[0], self._keys)
        if isinstance(tag, Forged):
            return _refuse(_label(request.path_params["carrier"]), "forged", 403)
        _received(_label(tag.carrier)).inc()
        if is_fallback(urls[0]):
            metrics.ANSWER_FALLBACKS.labels(_label(tag.carrier)).inc()
        body = await bounded_body(request, BODY_MAX_BYTES)
        if body is None:
            return _refuse(_label(tag.carrier), "too_large", 413)
        sent = _as_sent(request, urls, body, tag)
        judged = self._judge(tag, sent)
        if not judged.is_verified and self._refresher is not None:
            refreshed = await self._refresher.again()
            judged = self._judge(tag, sent)
            if judged.carrier is None and refreshed == "unavailable" and tag.kind in _OF_ONE_CALL:
                judged = self._judge_by_url(tag, sent[0])
        return _verified(judged, tag, asked_at_s)

    def tag(self, request: Request) -> CallbackTag | None:
        """The tag of the URL, if its signature is valid."""
        tag = verify_callback(self._view.urls(request.scope)[0], self._keys)
        return tag if isinstance(tag, CallbackTag) else None

    def seen(self, request: Request) -> dict[str, object] | Response:
        """The URLs that this request may have been sent to, and its proxy. Only for a URL with a valid signature."""
        urls = self._view.urls(request.scope)
        tag = verify_callback(urls[0], self._keys)
        if isinstance(tag, Forged):
            return _refuse(_label(request.path_params["carrier"]), "forged", 403)
        client = request.scope.get("client")
        return {
            "urls": urls,
            "from": client[0] if client else None,
            "is_trusted": self._view.trusts(request.scope),
        }

    def _judge(self, tag: CallbackTag, sent: Sequence[WebhookRequest]) -> _Judged:
        try:
            carrier = self._carriers.get(tag.carrier, tag.account)
        except CarrierConfigError:
            return _Judged(None, Forged("no such account"), sent[0].url)
        judged = _Judged(carrier, Forged("no URL"), sent[0].url)
        for request in sent:
            judged = _Judged(carrier, carrier.parse_webhook(request), request.url)
            if judged.is_verified:
                break
        return judged

    def _judge_by_url(self, tag: CallbackTag, request: WebhookRequest) -> _Judged:
        result = read_answer(request, tag, self._keys)
        if isinstance(result, CallEvent):
            log.warning("webhook.account_unknown", carrier=tag.carrier, attempt_id=str(result.attempt_id))
        return _Judged(documents_for(tag.carrier), result, request.url, is_proven=False)


def _as_sent(request: Request, urls: Sequence[str], body: bytes, tag: CallbackTag) -> list[WebhookRequest]:
    # `request.headers` would scan all headers for every name.
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}
    return [WebhookRequest(request.method, url, headers, body, tag) for url in urls]


def _verified(judged: _Judged, tag: CallbackTag, asked_at_s: float) -> VerifiedWebhook | Response:
    carrier, result = judged.carrier, judged.result
    if carrier is None:
        return _refuse(_label(tag.carrier), "no_account", 403)
    match result:
        case Forged(status=status):
            return _refuse(carrier.name, "forged", status)
        case Unreadable(reason=reason):
            log.warning("webhook.unreadable", carrier=carrier.name, reason=reason)
            return _refuse(carrier.name, "unreadable", 202)
        case CallEvent():
            base_url = judged.url.partition("/webhooks/")[0]
            return VerifiedWebhook(carrier, tag, result, base_url, asked_at_s, judged.is_proven)


@cache
def _received(carrier: str) -> Counter:
    return metrics.WEBHOOKS_RECEIVED.labels(carrier)


def _label(carrier: str) -> str:
    """Clients can invent names; the metric has only those of carriers."""
    return carrier if carrier in CARRIERS else "unknown"


def _refuse(carrier: str, reason: str, status: int) -> Response:
    metrics.WEBHOOKS_REJECTED.labels(carrier, reason).inc()
    headers = {"WWW-Authenticate": 'Basic realm="trunkline"'} if status == 401 else None
    return Response(status_code=status, headers=headers)
