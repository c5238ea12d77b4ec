"""Option B: the agent receives the carrier's webhook, requests a pod from the router and responds with the carrier's
document.

app.add_routes(AnswerRoutes(router, settings).routes())

`router` is a SmartRouterClient, which the application closes at its end.
`POST /twilio/allocate` and `POST /plivo/allocate` take the carriers' forms, `GET /voicebot-url` is Exotel's, all with
`?merchant_id=`; Exotel's `template` is passed on to the stream. With a carrier's credentials in the settings, requests
that the carrier did not send get 403.
"""

import hmac
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit, urlunsplit
from xml.etree.ElementTree import Element, SubElement, tostring

from aiohttp import web

from trunkline.agent import proofs
from trunkline.client.rollout import ReadFlags, RolloutFlags
from trunkline.client.smart_router import Busy, CallEnded, Fallback, PodAllocation, Route, SmartRouterClient

log = logging.getLogger(__name__)

BUSY_MESSAGE = "All agents are currently busy. Please try again later."
AUDIO = "audio/x-mulaw;rate=8000"
BODY_MAX_BYTES = 64 * 1024
_CALL_FIELDS = {"twilio": "CallSid", "plivo": "CallUUID", "exotel": "CallSid"}
_PATHS = {"twilio": "/twilio/allocate", "plivo": "/plivo/allocate", "exotel": "/voicebot-url"}
EXOTEL_USER = "trunkline"

Verify = Callable[[web.Request, bytes], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """`secret`: the required value of `?secret=`, if it is set. `own_url`: where carriers reach this agent; signatures
    cover it, so it is needed behind a proxy. There may be two tokens, during a rotation."""

    secret: str = field(default="", repr=False)
    own_url: str = ""
    twilio_tokens: Sequence[str] = field(default=(), repr=False)
    plivo_tokens: Sequence[str] = field(default=(), repr=False)
    # Exotel signs nothing: it sends this password, and the secret is in its URL.
    exotel_password: str = field(default="", repr=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "AnswerSettings":
        def text(name: str) -> str:
            return environ.get(name, "").strip()

        def several(name: str) -> tuple[str, ...]:
            return tuple(token.strip() for token in text(name).split(",") if token.strip())

        return cls(
            secret=text("VOICE_AGENT_ANSWER_SECRET"),
            own_url=text("VOICE_AGENT_ANSWER_URL"),
            twilio_tokens=several("TWILIO_AUTH_TOKEN"),
            plivo_tokens=several("PLIVO_AUTH_TOKEN"),
            exotel_password=text("VOICE_AGENT_EXOTEL_PASSWORD"),
        )

    def proves(self, provider: str) -> bool:
        """Whether this provider's requests are verified."""
        known = {"twilio": self.twilio_tokens, "plivo": self.plivo_tokens, "exotel": self.exotel_password}
        return bool(self.secret or known[provider])


class AnswerRoutes:
    def __init__(
        self, client: SmartRouterClient, settings: AnswerSettings | None = None, verify: Verify | None = None
    ):
        self._client = client
        self._settings = settings or AnswerSettings()
        self._verify = verify
        open_to_all = [name for name in _PATHS if verify is None and not self._settings.proves(name)]
        if open_to_all:
            log.warning("answer routes without a secret or credentials: %s", ", ".join(open_to_all))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(_PATHS["twilio"], self.twilio),
            web.post(_PATHS["plivo"], self.plivo),
            web.get(_PATHS["exotel"], self.exotel),
        ]

    async def twilio(self, request: web.Request) -> web.Response:
        route = await self._route(request, "twilio")
        return route if isinstance(route, web.Response) else _xml(route, "Say", _twilio_stream)

    async def plivo(self, request: web.Request) -> web.Response:
        route = await self._route(request, "plivo")
        return route if isinstance(route, web.Response) else _xml(route, "Speak", _plivo_stream)

    async def exotel(self, request: web.Request) -> web.Response:
        route = await self._route(request, "exotel")
        if isinstance(route, web.Response):
            return route
        template = request.query.get("template", "")
        more = {"template": template} if template else {}
        match route:
            case PodAllocation(ws_url=url, token=token):
                return web.json_response({"url": _with(url, {"token": token, **more})})
            case Fallback(url=url):
                return web.json_response({"url": _with(url, more)})
            case Busy() | CallEnded():
                return web.json_response({"success": False, "error": "no pods available"}, status=503)

    async def _route(self, request: web.Request, provider: str) -> Route | web.Response:
        body = await request.content.read(BODY_MAX_BYTES + 1)
        if len(body) > BODY_MAX_BYTES:
            return web.Response(status=413)
        if not self._is_signed(request, provider, body) or not await self._has_secret(request, body):
            return self._refused(request, provider)
        fields = dict(proofs.read_form(body)) | dict(request.query)
        call_sid = fields.get(_CALL_FIELDS[provider], "")
        if not call_sid or len(call_sid) > 128 or not call_sid.isprintable() or " " in call_sid:
            error = {"success": False, "error": f"{_CALL_FIELDS[provider]} is required"}
            return web.json_response(error, status=400)
        return await self._client.route(call_sid, fields.get("merchant_id", ""), provider)

    def _is_signed(self, request: web.Request, provider: str, body: bytes) -> bool:
        """Check the carrier's signature or password, if the settings have its credentials."""
        settings, headers = self._settings, request.headers
        if provider == "exotel":
            password = settings.exotel_password
            return not password or proofs.has_password(headers, EXOTEL_USER, password)
        tokens = settings.twilio_tokens if provider == "twilio" else settings.plivo_tokens
        check = proofs.is_signed_by_twilio if provider == "twilio" else proofs.is_signed_by_plivo
        return not tokens or check(
            self._signed_url(request, provider), proofs.read_form(body), headers, tokens
        )

    def _refused(self, request: web.Request, provider: str) -> web.Response:
        """403; or 401 for a client that sends its password only after a challenge."""
        log.warning("refused a request that is not %s's own", provider)
        if provider == "exotel" and self._settings.exotel_password and "Authorization" not in request.headers:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="trunkline"'})
        return web.Response(status=403)

    def _signed_url(self, request: web.Request, provider: str) -> str:
        """The URL as it is configured at the carrier, with the query exactly as received."""
        own = self._settings.own_url.rstrip("/") or f"{request.scheme}://{request.host}"
        _, mark, query = request.raw_path.partition("?")
        return f"{own}{_PATHS[provider]}{mark}{query}"

    async def _has_secret(self, request: web.Request, body: bytes) -> bool:
        secret = self._settings.secret
        if secret and not hmac.compare_digest(request.query.get("secret", "").encode(), secret.encode()):
            return False
        return self._verify is None or await self._verify(request, body)


def answer_url(
    provider: str,
    merchant_id: str,
    settings: AnswerSettings,
    router_url: str,
    flags: ReadFlags = RolloutFlags.from_env,
) -> str:
    """The answer URL for a carrier: the router's own, if the flags enable it, else this agent's."""
    now = flags()
    is_direct = {"twilio": now.twilio_direct, "plivo": now.plivo_direct}.get(provider, False)
    query = {"merchant_id": merchant_id} if merchant_id else {}
    if is_direct:
        return _with(f"{router_url.rstrip('/')}/api/v1/{provider}/allocate", query)
    if settings.secret:
        query["secret"] = settings.secret
    own_url = settings.own_url.rstrip("/")
    if provider == "exotel" and settings.exotel_password:
        parts = urlsplit(own_url)
        own_url = urlunsplit(
            parts._replace(netloc=f"{EXOTEL_USER}:{settings.exotel_password}@{parts.netloc}")
        )
    return _with(own_url + _PATHS[provider], query)


def _xml(route: Route, say: str, stream: Callable[[Element, str, str | None], None]) -> web.Response:
    """`say` is the carrier's word for a message, `stream` adds a stream to a URL, with its token if it has one."""
    document = Element("Response")
    match route:
        case PodAllocation(ws_url=url, token=token):
            stream(document, url, token)
        case Fallback(url=url):
            stream(document, url, None)
        case Busy():
            SubElement(document, say).text = BUSY_MESSAGE
            SubElement(document, "Hangup")
        case CallEnded():
            SubElement(document, "Hangup")
    return web.Response(text=tostring(document, encoding="unicode"), content_type="application/xml")


def _twilio_stream(document: Element, url: str, token: str | None) -> None:
    stream = SubElement(SubElement(document, "Connect"), "Stream", url=url)
    if token is not None:
        SubElement(stream, "Parameter", name="token", value=token)


def _plivo_stream(document: Element, url: str, token: str | None) -> None:
    stream = SubElement(document, "Stream", bidirectional="true", keepCallAlive="true", contentType=AUDIO)
    stream.text = url if token is None else _with(url, {"token": token})


def _with(url: str, query: Mapping[str, str]) -> str:
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
