"""Verifies webhooks: a request becomes a verified event, or a refusal that leaves no trace but a metric.

The URL's signature is checked before a byte of the body is awaited; the carrier's own signature before the body is
parsed. A refusal does not reveal which of the two was wrong.

Carriers sign the URL that they have, whatever proxies changed in the request. PUBLIC_BASE_URL wins. Without it the
forwarded host and scheme count if the proxy is trusted, else only those of the request itself. Nothing there proves
anything: no signature fits a wrong URL.

Before it refuses a webhook for its account or signature, this process reads the accounts once more
(`telephony.account_refresher`). If that fails too, an answered call still gets its document: its URL is proof enough
for that, and for nothing else.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from uuid import UUID

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

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
# Several proxies may each have added a value. More than these are not legitimate.
FORWARDED_MAX = 3
_NO_HOST = frozenset("/\\@?# ")

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
        bases = [self.base_url] if self.base_url else self._seen_bases(scope)
        if self.fallback_base_url:
            bases.append(self.fallback_base_url)
        return [f"{base}{target}" for base in dict.fromkeys([base.rstrip("/") for base in bases])]

    def _seen_bases(self, scope: Scope) -> list[str]:
        headers = Headers(scope=scope)
        own = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
        if not self.trusts(scope):
            return [own]
        schemes = _values(headers.getlist("x-forwarded-proto")) or [scope.get("scheme", "http")]
        hosts = _values(headers.getlist("x-forwarded-host")) or [headers.get("host", "")]
        return [*(f"{scheme}://{host}" for scheme in schemes for host in hosts), own]

    def trusts(self, scope: Scope) -> bool:
        """Whether its forwarded host and scheme are trusted."""
        client: tuple[str, int] | None = scope.get("client")
        if not self.trusted or not client:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.trusted)


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


# Whose request it is, None for an unknown account; the URL that it was sent to; and the verdict.
Judged = tuple[Documents | None, str, WebhookResult]


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
            return refuse(_label(request.path_params["carrier"]), "forged", 403)
        _received(tag.carrier).inc()
        if is_fallback(urls[0]):
            metrics.ANSWER_FALLBACKS.labels(_label(tag.carrier)).inc()
        body = await bounded_body(request, BODY_MAX_BYTES)
        if body is None:
            return refuse(_label(tag.carrier), "too_large", 413)
        sent = as_sent(request, urls, body, tag)
        carrier, url, result = judge(self.carriers, tag, sent)
        is_proven = True
        if isinstance(result, Forged) and self.refresher is not None:
            refreshed = await self.refresher.again()
            carrier, url, result = judge(self.carriers, tag, sent)
            if carrier is None and refreshed == "unavailable" and tag.kind in _OF_ONE_CALL:
                carrier, result, is_proven = (
                    documents_for(tag.carrier),
                    read_answer(sent[0], tag, self.keys),
                    False,
                )
        if carrier is None:
            return refuse(_label(tag.carrier), "no_account", 403)
        match result:
            case Forged(status=status):
                return refuse(carrier.name, "forged", status)
            case Unreadable(reason=reason):
                log.warning("webhook.unreadable", carrier=carrier.name, reason=reason)
                return refuse(carrier.name, "unreadable", 202)
            case CallEvent() as event:
                if not is_proven:
                    log.warning(
                        "webhook.account_unknown", carrier=tag.carrier, attempt_id=str(event.attempt_id)
                    )
                base_url = url.partition("/webhooks/")[0]
                return VerifiedWebhook(carrier, tag, event, base_url, asked_at_s, is_proven)

    def tag(self, request: Request) -> CallbackTag | None:
        """The tag of the URL, if its signature is valid."""
        tag = verify_callback(self.view.urls(request.scope)[0], self.keys)
        return tag if isinstance(tag, CallbackTag) else None

    def seen(self, request: Request) -> dict[str, object] | Response:
        """The URLs that this request may have been sent to, and its proxy. Only for a URL with a valid signature."""
        urls = self.view.urls(request.scope)
        tag = verify_callback(urls[0], self.keys)
        if isinstance(tag, Forged):
            return refuse(_label(request.path_params["carrier"]), "forged", 403)
        client = request.scope.get("client")
        return {
            "urls": urls,
            "from": client[0] if client else None,
            "is_trusted": self.view.trusts(request.scope),
        }


def judge(carriers: CarrierDirectory, tag: CallbackTag, sent: Sequence[WebhookRequest]) -> Judged:
    """By the carrier's account, for each of the possible URLs until one fits."""
    try:
        carrier = carriers.get(tag.carrier, tag.account)
    except CarrierConfigError:
        return None, sent[0].url, Forged("no such account")
    url, result = sent[0].url, carrier.parse_webhook(sent[0])
    for request in sent[1:]:
        if not isinstance(result, Forged):
            break
        url, result = request.url, carrier.parse_webhook(request)
    return carrier, url, result


def as_sent(request: Request, urls: Sequence[str], body: bytes, tag: CallbackTag) -> list[WebhookRequest]:
    # `request.headers` would scan all headers for every name.
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}
    return [WebhookRequest(request.method, url, headers, body, tag) for url in urls]


@cache
def _received(carrier: str) -> Counter:
    return metrics.WEBHOOKS_RECEIVED.labels(carrier)


def _label(carrier: str) -> str:
    """Clients can invent names; the metric has only those of carriers."""
    return carrier if carrier in CARRIERS else "unknown"


def refuse(carrier: str, reason: str, status: int) -> Response:
    metrics.WEBHOOKS_REJECTED.labels(carrier, reason).inc()
    headers = {"WWW-Authenticate": 'Basic realm="trunkline"'} if status == 401 else None
    return Response(status_code=status, headers=headers)


def _values(headers: Iterable[str]) -> list[str]:
    """Each header may be a list. Values that cannot be part of a URL are dropped."""
    parts = [part.strip() for header in headers for part in header.split(",")]
    return [part for part in parts if part.isascii() and not set(part) & _NO_HOST and part][:FORWARDED_MAX]
