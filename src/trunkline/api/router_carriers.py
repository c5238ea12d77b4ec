"""Carriers' webhooks directly to the router, which responds with the carrier's own document.

`/api/v1/{twilio,plivo,exotel}/allocate?merchant_id=…&account=…`. Twilio and Plivo sign their requests. Exotel signs
nothing: its URL carries a secret, and it sends user name and password.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api import router_bodies
from trunkline.api.raw_routes import Part, RawRoute, json_response, operation, said
from trunkline.api.router_bodies import BadRequest
from trunkline.api.router_endpoints import asked_at_s, time_left_s
from trunkline.api.webhooks.answers import document_response
from trunkline.api.webhooks.routes import CARRIER_BODY, DOCUMENT, REFUSED, WebhookReader, refuse
from trunkline.http.body import bounded_body
from trunkline.in_time import in_time
from trunkline.router.allocator import Allocator
from trunkline.router.config import HOLD_S
from trunkline.router.tokens import StreamKeys
from trunkline.routing import Allocation, Unallocated
from trunkline.telemetry import get_logger, metrics
from trunkline.telemetry.outages import Outage
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import (
    DEFAULT_ACCOUNT,
    AnswerFallback,
    CallbackTag,
    Document,
    Documents,
    Forged,
)

log = get_logger(__name__)

BODY_MAX_BYTES = 64 * 1024
# The field of the call's id in each carrier's request.
CALL_FIELDS: Mapping[str, str] = {"twilio": "CallSid", "plivo": "CallUUID", "exotel": "CallSid"}


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """A verified request: its carrier, account and fields."""

    carrier: Documents
    url: str
    fields: Mapping[str, str]
    asked_at_s: float

    @property
    def held(self) -> int:
        """How often the call was held because neither engine answered. Counted in its URL, which the carrier signs, so
        that the wait ends also while no engine answers."""
        text = self.fields.get("held", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0

    @property
    def again_url(self) -> str:
        parts = urlsplit(self.url)
        query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != "held"]
        return urlunsplit(parts._replace(query=urlencode([*query, ("held", str(self.held + 1))])))


def url_secret(keys: CallbackKeys, carrier: str, account: str) -> str:
    """The secret in the URL of a carrier that signs nothing."""
    return _secret(keys.keys[0], carrier, account)


def allocate_url(base_url: str, keys: CallbackKeys, carrier: str, account: str, merchant_id: str) -> str:
    """The URL that the operator enters at the carrier."""
    query = {"merchant_id": merchant_id} if merchant_id else {}
    if account != DEFAULT_ACCOUNT:
        query["account"] = account
    if carrier == "exotel":
        query["secret"] = url_secret(keys, carrier, account)
    tail = f"?{urlencode(query)}" if query else ""
    return f"{base_url.rstrip('/')}/api/v1/{carrier}/allocate{tail}"


@dataclass(frozen=True, slots=True)
class CarrierApi:
    allocator: Allocator
    stream_keys: StreamKeys
    reader: WebhookReader
    fallback: AnswerFallback
    hold_max_s: float = 0.0
    outage: Outage = field(default_factory=lambda: Outage("router.unavailable", what="document"))

    def raw_routes(self) -> list[RawRoute]:
        return [
            RawRoute("POST", f"/api/v1/{name}/allocate", self.allocate, None, _operation(name))
            for name in CALL_FIELDS
        ]

    async def allocate(self, request: Request) -> Response:
        name = request.url.path.split("/")[3]
        verified = await self._read(name, request)
        if isinstance(verified, Response):
            return verified
        try:
            call_sid = router_bodies.call_sid(verified.fields.get(CALL_FIELDS[name], ""))
            merchant_id = router_bodies.short(verified.fields.get("merchant_id"), "merchant_id")
        except BadRequest as error:
            message = error.message.replace("call_sid", CALL_FIELDS[name])
            return json_response(400, {"success": False, "error": message, "code": "invalid_request"})
        return document_response(await self._document(verified, call_sid, merchant_id))

    async def _document(self, verified: VerifiedRequest, call_sid: str, merchant_id: str) -> Document:
        carrier = verified.carrier
        allocating = self.allocator.allocate(call_sid, merchant_id, may_wait=True)
        begun_at = self.outage.now()
        try:
            answer = await in_time(time_left_s(verified.asked_at_s), allocating)
            self.outage.worked(begun_at)
        except Exception as error:  # a person waits, and the carrier accepts nothing but a document
            self.outage.failed(error)
            answer = Unallocated("unknown")
        match answer:
            case Allocation():
                token = self.stream_keys.sign(answer)
                return carrier.answer_document(self.stream_keys.url(answer), {"token": token})
            case Unallocated(why="hold"):
                return carrier.hold_document(HOLD_S, verified.url)
            case Unallocated(why="unknown") if (
                carrier.can_hold and (verified.held + 1) * HOLD_S <= self.hold_max_s
            ):
                return carrier.hold_document(HOLD_S, verified.again_url)
            case Unallocated(why="busy" | "unknown"):
                log.warning("router.no_pods", call_id=call_sid)
                return carrier.fallback_document(self.fallback)
            case _:
                return carrier.hang_up_document()

    async def _read(self, name: str, request: Request) -> VerifiedRequest | Response:
        begun_at_s, query = asked_at_s(request), dict(request.query_params)
        account = query.get("account") or DEFAULT_ACCOUNT
        metrics.WEBHOOKS_RECEIVED.labels(name).inc()
        if name == "exotel" and not self._is_ours(name, account, query.get("secret", "")):
            return refuse(name, "forged", 403)
        body = await bounded_body(request, BODY_MAX_BYTES)
        if body is None:
            return Response(status_code=413)
        tag = CallbackTag(name, "inbound", None, account)
        urls = self.reader.view.urls(request.scope)
        carrier, sent, result, _ = await self.reader.judge(request, urls, body, tag)
        if carrier is None or isinstance(result, Forged):
            return refuse(name, "forged", result.status if isinstance(result, Forged) else 403)
        # The query overrides the body: the signature covers both, and the URL names the merchant.
        return VerifiedRequest(carrier, sent.url, _fields(body) | query, begun_at_s)

    def _is_ours(self, carrier: str, account: str, secret: str) -> bool:
        given, keys = secret.encode(), self.reader.keys.keys
        # Every key is tried, whether one fits or not, so the time does not reveal which one signed.
        return True in [hmac.compare_digest(_secret(key, carrier, account).encode(), given) for key in keys]


def _secret(key: bytes, carrier: str, account: str) -> str:
    digest = hmac.digest(key, f"allocate\n{carrier}\n{account}".encode(), "sha256")
    return urlsafe_b64encode(digest[:24]).decode()


def _fields(body: bytes) -> dict[str, str]:
    """A form or a JSON object, detected by its content, since not every carrier sends the content type."""
    if body.lstrip()[:1] == b"{":
        try:
            content = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return {}
        return {name: value for name, value in content.items() if isinstance(value, str)}
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _operation(carrier: str) -> Part:
    return operation(
        f"allocate_pod_for_{carrier}",
        "router",
        f"An answered call of {carrier}'s gets its pod",
        "For the carrier, which signs its request or sends a secret. The response is a document in the carrier's own "
        "language.",
        {
            "200": DOCUMENT,
            "400": said("The request names no call.", BAD_CALL),
            **REFUSED,
            "408": said("The body arrived too slowly."),
            "503": {**DOCUMENT, "description": "No pod is free (Exotel)."},
        },
        body=CARRIER_BODY,
        parameters=_PARAMETERS,
    )


BAD_CALL: Part = {
    "type": "object",
    "additionalProperties": True,
    "examples": [{"success": False, "error": "CallSid is required", "code": "invalid_request"}],
}
_PARAMETERS: list[Part] = [
    {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}
    for name, description in {
        "merchant_id": "The merchant of the call. Left out: standard.",
        "account": "The account at the carrier. Left out: `default`.",
        "secret": "The secret of a carrier that signs nothing (Exotel).",
    }.items()
]
