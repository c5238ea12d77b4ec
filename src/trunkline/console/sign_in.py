"""Sign-in and sign-out: with an API key, or by a link that works once."""

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from trunkline.api import key_format
from trunkline.console.page_request import ROOT, is_ours
from trunkline.console.rendering import THEME, THEMES, Renderer
from trunkline.console.session_auth import Entered, SessionAuth, comes_from_here, read_form, to_sign_in
from trunkline.console.sessions import LINK_S
from trunkline.errors import StoreUnavailable
from trunkline.telemetry import get_logger

log = get_logger(__name__)

THEME_S = 365 * 86_400
Routes = Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]]


class SignIn:
    def __init__(self, auth: SessionAuth, renderer: Renderer):
        self._auth = auth
        self._renderer = renderer

    def routes(self) -> Routes:
        return [
            ("GET", "/sign-in", self.ask),
            ("POST", "/sign-in", self.enter),
            ("GET", "/enter", self.ask_by_link),
            ("POST", "/enter", self.enter_by_link),
            ("POST", "/links", self.make_link),
            ("POST", "/sign-out", self.leave),
            ("POST", "/theme", self.choose_theme),
        ]

    def link_for(self, key: str) -> str:
        """A URL that signs in with this key, once and within 15 minutes."""
        link = self._auth.seals.link(key_format.digest(key), self._auth.now)
        return f"{ROOT}/enter?{urlencode({'link': self._auth.seals.seal(link)})}"

    async def ask(self, request: Request) -> Response:
        return self._form(request, "")

    async def enter(self, request: Request) -> Response:
        form = await read_form(request)
        if not comes_from_here(request):
            return self._form(request, "This form was not sent from the console.", 403)
        entered = await self._auth.enter(form.get("key", ""))
        if entered is None:
            log.info("console.sign_in_refused")
            return self._form(request, "This key is unknown, revoked or expired.", 403)
        return self._welcome(entered, form.get("next", ""))

    async def ask_by_link(self, request: Request) -> Response:
        """A page with a button: link previews and scanners must not use the link up."""
        return self._renderer.outside(request, "enter.html", {"link": request.query_params.get("link", "")})

    async def enter_by_link(self, request: Request) -> Response:
        form = await read_form(request)
        if not comes_from_here(request):
            return self._form(request, "This form was not sent from the console.", 403)
        entered = await self._auth.enter_by_link(form.get("link", ""))
        if entered is None:
            return self._form(request, "This link was used before, or is too old. Sign in with a key.", 403)
        return self._welcome(entered, "")

    async def make_link(self, request: Request) -> Response:
        """For programs: returns a sign-in link for the key of the request."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or await self._auth.enter(key.strip()) is None:
            return JSONResponse({"success": False, "error": "Send an API key.", "code": "unauthorized"}, 401)
        return JSONResponse({"path": self.link_for(key.strip()), "expires_in_s": LINK_S}, 201)

    async def leave(self, request: Request) -> Response:
        visit = await self._auth.admit(request)
        form = await read_form(request)
        if visit is None or not self._auth.seals.is_form_token(visit.session, form.get("token", "")):
            return to_sign_in(request)
        said = "You are signed out."
        try:
            await self._auth.leave(visit.session)
        except StoreUnavailable:
            said = (
                "This browser is signed out. Postgres is away, so a copy of its cookie would still be good."
            )
        response = self._form(request, said)
        self._auth.take_back(response)
        return response

    async def choose_theme(self, request: Request) -> Response:
        form = await read_form(request)
        to = form.get("back", "")
        response = RedirectResponse(to if is_ours(to) else ROOT, 303)
        if form.get("theme") in THEMES:
            response.set_cookie(THEME, form["theme"], max_age=THEME_S, path=ROOT, samesite="strict")
        return response

    def _form(self, request: Request, said: str, status: int = 200) -> Response:
        return self._renderer.outside(
            request, "sign_in.html", {"said": said, "next": request.query_params.get("next", "")}, status
        )

    def _welcome(self, entered: Entered, wanted: str) -> Response:
        response = RedirectResponse(wanted if is_ours(wanted) else ROOT, 303)
        self._auth.hand_out(response, entered.session)
        log.info("console.signed_in", key_id=str(entered.who.key_id))
        return response
