"""Whom to believe: a request becomes a verified event, or a refusal that leaves no trace but a metric.

The URL proves itself before a byte of the body is waited for; the carrier's own signature is checked before anything of
the body is read. A refusal says nothing about which of the two was wrong.
"""

from functools import cache
from uuid import UUID

from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.webhooks.seen import PublicView
from trunkline.dispatch.inbound import inbound_attempt_id
from trunkline.http_body import bounded_body
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.callbacks import CallbackKeys, verify_callback
from trunkline.telephony.carrier import (
    CallbackTag,
    CallEvent,
    Carrier,
    Forged,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carriers import CARRIERS, CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory
from trunkline.value import Value

log = get_logger(__name__)

# A form of Twilio's is about 1 KB, a report of Vapi's with its transcript may be hundreds.
BODY_MAX_BYTES = 1024 * 1024


class Heard(Value, frozen=True):
    """A verified event, and the attempt it is about: one of ours, or that of a call which came in."""

    carrier: Carrier
    tag: CallbackTag
    event: CallEvent
    # The URL as the carrier was given it, up to its path.
    base_url: str

    @property
    def attempt_id(self) -> UUID:
        return self.event.attempt_id or inbound_attempt_id(self.carrier.name, self.event.call_id)


class Reader:
    def __init__(self, carriers: CarrierDirectory, keys: CallbackKeys, view: PublicView):
        self._carriers = carriers
        self._keys = keys
        self._view = view

    async def read(self, request: Request) -> Heard | Response:
        urls = self._view.urls(request.scope)
        tag = verify_callback(urls[0], self._keys)
        if isinstance(tag, Forged):
            return _refuse(_label(request.path_params["carrier"]), "forged", 403)
        _received(_label(tag.carrier)).inc()
        try:
            carrier = self._carriers.get(tag.carrier, tag.account)
        except CarrierConfigError:
            return _refuse(_label(tag.carrier), "no_account", 403)
        body = await bounded_body(request, BODY_MAX_BYTES)
        if body is None:
            return _refuse(carrier.name, "too_large", 413)
        return self._believe(carrier, tag, request, urls, body)

    def seen(self, request: Request) -> dict[str, object] | Response:
        """The URLs that this request may have been sent to, and who sent it on. Only for a URL that proves itself."""
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

    def _believe(
        self, carrier: Carrier, tag: CallbackTag, request: Request, urls: list[str], body: bytes
    ) -> Heard | Response:
        # Through `request.headers` every name would be looked for in all of them.
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]
        }
        result: WebhookResult = Forged("no URL")
        for url in urls:
            result = carrier.parse_webhook(WebhookRequest(request.method, url, headers, body, tag))
            if not isinstance(result, Forged):
                break
        match result:
            case Forged(status=status):
                return _refuse(carrier.name, "forged", status)
            case Unreadable(reason=reason):
                log.warning("webhook.unreadable", carrier=carrier.name, reason=reason)
                return _refuse(carrier.name, "unreadable", 202)
            case CallEvent():
                return Heard(carrier, tag, result, url.partition("/webhooks/")[0])


@cache
def _received(carrier: str) -> Counter:
    return metrics.WEBHOOKS_RECEIVED.labels(carrier)


def _label(carrier: str) -> str:
    """Anybody can make up names; a metric has only those there are."""
    return carrier if carrier in CARRIERS else "unknown"


def _refuse(carrier: str, reason: str, status: int) -> Response:
    metrics.WEBHOOKS_REJECTED.labels(carrier, reason).inc()
    headers = {"WWW-Authenticate": 'Basic realm="trunkline"'} if status == 401 else None
    return Response(status_code=status, headers=headers)
