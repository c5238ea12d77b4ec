"""Authenticates requests by the session cookie. A session has the rights of its key, and ends at sign-out."""

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trunkline.api import key_format
from trunkline.api.deps import Api
from trunkline.api.principal import Principal
from trunkline.console.api_client import ApiClient
from trunkline.console.layout import EngineHealth
from trunkline.console.page_request import ROOT, PageRequest
from trunkline.console.sessions import SESSION_S, Pass, Seals
from trunkline.errors import StoreUnavailable
from trunkline.http.body import bounded_body
from trunkline.store import console as spent
from trunkline.telemetry import get_logger

log = get_logger(__name__)

COOKIE = "trunkline_session"
FORM_BYTES_MAX = 64 * 1024
FORM_FIELDS_MAX = 100


@dataclass(frozen=True, slots=True)
class Entered:
    session: Pass
    who: Principal


class SessionAuth:
    def __init__(self, api: Api, seals: Seals, health: EngineHealth, *, is_secure: bool):
        self._api = api
        self.seals = seals
        self._health = health
        self._is_secure = is_secure

    @property
    def now(self) -> datetime:
        return self._api.deps.clock.now()

    async def admit(self, request: Request) -> PageRequest | None:
        """None: not signed in. `StoreUnavailable`: the session cannot be verified."""
        session = self.seals.open("session", request.cookies.get(COOKIE, ""), self.now)
        who = await self.who(session) if session is not None else None
        if session is None or who is None:
            return None
        request_id = request.state.request_id
        asker = ApiClient(request.app, who, request_id)
        return PageRequest(request, who, session, self.seals.form_token(session), asker)

    async def who(self, session: Pass) -> Principal | None:
        """Verified at every request, so that a revoked key is refused here too."""
        who = await self._api.verifier.verify_hash(session.key_hash)
        return None if who is None or await self._is_spent(session) else who

    async def enter(self, key: str) -> Entered | None:
        """With an API key."""
        who = await self._api.verifier.verify(key)
        if who is None:
            return None
        return Entered(self.seals.session(key_format.digest(key), self.now), who)

    async def enter_by_link(self, sealed: str) -> Entered | None:
        """A link works once: of two requests with the same link, one signs in."""
        link = self.seals.open("link", sealed, self.now)
        who = await self._api.verifier.verify_hash(link.key_hash) if link else None
        if link is None or who is None:
            return None
        async with self._api.store.autocommit() as connection:
            is_first = await spent.spend(connection, link.id, link.ends_at)
        return Entered(self.seals.session(link.key_hash, self.now), who) if is_first else None

    async def leave(self, session: Pass) -> None:
        async with self._api.store.autocommit() as connection:
            await spent.spend(connection, session.id, session.ends_at)

    def hand_out(self, response: Response, session: Pass) -> None:
        response.set_cookie(
            COOKIE,
            self.seals.seal(session),
            max_age=SESSION_S,
            path=ROOT,
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )

    def take_back(self, response: Response) -> None:
        response.delete_cookie(COOKIE, path=ROOT, secure=self._is_secure, httponly=True, samesite="strict")

    async def _is_spent(self, session: Pass) -> bool:
        """While Postgres is away no session can have been signed out."""
        if not await self._health.is_well("postgres"):
            return False
        try:
            async with self._api.store.reading() as connection:
                return await spent.is_spent(connection, session.id)
        except StoreUnavailable as error:
            log.warning("console.sign_out_unknown", reason=str(error))
            return False


def to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in, which returns to this page."""
    query = request.url.query
    wanted = request.url.path + (f"?{query}" if query else "")
    after = f"?next={quote(wanted)}" if request.method == "GET" and request.url.path != ROOT else ""
    return RedirectResponse(f"{ROOT}/sign-in{after}", 303)


def comes_from_here(request: Request) -> bool:
    """Whether the browser's own headers name this site as the origin of a form. Without them it is an old browser, or
    none."""
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


async def read_form(request: Request) -> dict[str, str]:
    """The fields that are not empty, up to a bounded size."""
    body = await bounded_body(request, FORM_BYTES_MAX)
    if body is None:
        return {}
    try:
        pairs = parse_qsl(body.decode(), max_num_fields=FORM_FIELDS_MAX, errors="strict")
    except ValueError:
        return {}
    return {name: value.strip() for name, value in pairs if value.strip()}
