"""The console's routes, with authentication, permissions and errors around each."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from trunkline.api.deps import Api
from trunkline.console.api_client import ApiRefused
from trunkline.console.layout import EngineHealth, read_layout
from trunkline.console.page_request import ROOT, Action, ActionDone, Page, PageRequest, Shown, Upload, back
from trunkline.console.refill import Typed
from trunkline.console.rendering import Renderer, say, set_refill
from trunkline.console.session_auth import SessionAuth, comes_from_here, read_form, to_sign_in
from trunkline.console.sessions import Seals
from trunkline.console.sign_in import SignIn
from trunkline.console.sitemap import ACTIONS, DOWNLOADS, PAGES, UPLOADS
from trunkline.console.static_files import StaticFiles
from trunkline.console.streams import Streams
from trunkline.errors import StoreUnavailable
from trunkline.telemetry import get_logger

log = get_logger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
_CANNOT_TELL = ApiRefused(
    503, "store_unavailable", "Postgres cannot be reached, so sign-in is not possible. Try again in a moment."
)


class Console:
    """Pages for people, on the API's application."""

    def __init__(self, app: FastAPI, secrets: Sequence[str], *, is_secure: bool = False):
        api: Api = app.state.api
        static = StaticFiles()
        self._health = EngineHealth(api.deps)
        self._auth = SessionAuth(api, Seals(secrets), self._health, is_secure=is_secure)
        self._renderer = Renderer(static)
        self._streams = Streams()
        sign_in = SignIn(self._auth, self._renderer)
        self._routes: list[Route] = [
            Route("/", _to_console),
            self._route("/static/{name}", static.serve),
            *(self._route(path, endpoint, method) for method, path, endpoint in sign_in.routes()),
            *(self._signed_in(path, give) for path, give in DOWNLOADS.items()),
            *(self._signed_in(path, partial(self._show, page)) for path, page in PAGES.items()),
            *(self._signed_in(path, partial(self._act, act), "POST") for path, act in ACTIONS.items()),
            *(self._signed_in(path, partial(self._take, up), "POST") for path, up in UPLOADS.items()),
            self._signed_in("/{rest:path}", partial(self._show, _nowhere)),
        ]
        app.router.routes.extend(self._routes)
        self.link_for = sign_in.link_for

    def close(self) -> None:
        self._streams.close()

    def _route(self, path: str, endpoint: Endpoint, method: str = "GET") -> Route:
        async def serve(request: Request) -> Response:
            request.scope["route"] = route  # for the metrics: a template, never an address with ids in it
            try:
                return await endpoint(request)
            except StoreUnavailable as error:
                log.warning("console.store_unavailable", reason=str(error))
                return self._renderer.outside(request, "outage.html", {"problem": _CANNOT_TELL}, 503)

        route = Route(ROOT + path, serve, methods=[method])
        return route

    def _signed_in(
        self, path: str, serve: Callable[[PageRequest], Awaitable[Response]], method: str = "GET"
    ) -> Route:
        async def admit(request: Request) -> Response:
            visit = await self._auth.admit(request)
            return to_sign_in(request) if visit is None else await serve(visit)

        return self._route(path, admit, method)

    async def _show(self, page: Page, visit: PageRequest) -> Response:
        if "text/event-stream" in visit.request.headers.get("accept", ""):
            return self._streams.answer(lambda: self._live(visit, page))
        frame = await read_layout(visit, self._health, self._auth.now)
        return self._renderer.page(visit, await self._shown(visit, page), frame)

    async def _live(self, visit: PageRequest, page: Page) -> str | None:
        if await self._auth.who(visit.session) is None:
            return None
        frame = await read_layout(visit, self._health, self._auth.now)
        return self._renderer.fragment(visit, await self._shown(visit, page), frame)

    async def _shown(self, visit: PageRequest, page: Page) -> Shown:
        """A refusal becomes a page that says what is away, missing or forbidden."""
        try:
            return await page(visit)
        except ApiRefused as refused:
            return Shown("refused.html", {"problem": refused}, refused.status)

    async def _act(self, action: Action, visit: PageRequest) -> Response:
        form = await read_form(visit.request)
        if self._is_forged(visit, form.get("token", "")):
            return self._renderer.outside(visit.request, "outage.html", {"problem": _FORGED}, 403)
        visit = replace(visit, form=form)
        try:
            done = await action(visit)
        except ApiRefused as refused:
            done = ActionDone(refused.sentence, back(visit, ""), keeps_form=True, is_refused=True)
        response = RedirectResponse(done.to, 303)
        say(response, done.sentence, "error" if done.is_refused else "done")
        if done.keeps_form:
            set_refill(response, Typed(visit.request.url.path, form))
        return response

    async def _take(self, upload: Upload, visit: PageRequest) -> Response:
        """The token comes in a header: the body is the file, and is not read before the token is checked."""
        if self._is_forged(visit, visit.request.headers.get("x-form-token", "")):
            return self._renderer.outside(visit.request, "outage.html", {"problem": _FORGED}, 403)
        shown = await upload(visit)
        return self._renderer.outside(visit.request, shown.template, shown.values, shown.status)

    def _is_forged(self, visit: PageRequest, token: str) -> bool:
        is_token = self._auth.seals.is_form_token(visit.session, token)
        return not (comes_from_here(visit.request) and is_token)


async def _to_console(request: Request) -> Response:
    """A browser that opens the host alone goes to the console."""
    return RedirectResponse(ROOT, 307)


async def _nowhere(visit: PageRequest) -> Shown:
    raise ApiRefused(404, "not_found", "There is no such page.")


_FORGED = ApiRefused(
    403, "forged", "This form was not sent from the console, or is too old. Go back and try again."
)
