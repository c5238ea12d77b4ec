"""Renders a template with its values to a response that loads nothing from other hosts."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trunkline import __version__
from trunkline.console import labels, refill
from trunkline.console.api_client import segment
from trunkline.console.layout import Layout
from trunkline.console.page_request import ROOT, PageRequest, Shown, at
from trunkline.console.refill import Typed
from trunkline.console.static_files import StaticFiles

SAID = "trunkline_said"
SAID_S = 60
TYPED = "trunkline_typed"
THEME = "trunkline_theme"
THEMES = ("auto", "light", "dark")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Renderer:
    def __init__(self, static: StaticFiles):
        self._environment = Environment(
            loader=PackageLoader("trunkline.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "exact": labels.exact,
            "clock": labels.clock,
            "precise": labels.precise,
            "count": labels.count,
            "label": labels.label,
            "ms": labels.milliseconds,
            "percent": labels.percent,
            "address": _address,
            "named_as": labels.named_as,
            "plain": labels.plain,
            "plural": labels.plural,
            "said": labels.said,
            "segment": segment,
            "short": labels.short,
            "span": labels.span,
            "money": labels.money,
        }
        self._environment.globals |= {
            "at": at,
            "root": ROOT,
            "static": static.address,
            "tone": labels.tone,
            "from_epoch": labels.from_epoch,
            "version": __version__,
        }

    def page(self, visit: PageRequest, shown: Shown, frame: Layout) -> Response:
        """The whole page, with the message of the last action."""
        kind, said = _said(visit.request)
        text = self._render(shown, visit, frame, layout="base.html", said=said, said_kind=kind)
        typed = refill.unpacked(visit.request.cookies.get(TYPED, ""))
        if typed is not None:
            text = refill.refilled(text, typed)
        response = HTMLResponse(text, shown.status, headers=HEADERS)
        if said:
            response.delete_cookie(SAID, path=ROOT)
        if TYPED in visit.request.cookies:
            response.delete_cookie(TYPED, path=ROOT)
        return response

    def fragment(self, visit: PageRequest, shown: Shown, frame: Layout) -> str:
        """The live part alone."""
        return self._render(shown, visit, frame, layout="fragment.html", said="", said_kind="")

    def outside(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> Response:
        """A page for a browser without a session."""
        text = self._environment.get_template(template).render(theme=theme_of(request), **values)
        return HTMLResponse(text, status, headers=HEADERS)

    def _render(self, shown: Shown, visit: PageRequest, frame: Layout, **more: str) -> str:
        return self._environment.get_template(shown.template).render(
            visit=visit,
            who=visit.who,
            frame=frame,
            path=visit.request.url.path,
            theme=theme_of(visit.request),
            ago=partial(labels.distance, now=frame.now),
            **more,
            **shown.values,
        )


def _address(query: Mapping[str, object]) -> str:
    """The query of a URL, without empty parameters."""
    return urlencode({name: value for name, value in query.items() if value not in (None, "")})


def say(response: Response, sentence: str, kind: str) -> None:
    """Show a message on the next page."""
    response.set_cookie(
        SAID, quote(f"{kind}|{sentence[:1000]}"), max_age=SAID_S, path=ROOT, httponly=True, samesite="strict"
    )


def set_refill(response: Response, typed: Typed) -> None:
    """Refill the form on the next page."""
    if text := refill.packed(typed):
        response.set_cookie(TYPED, text, max_age=SAID_S, path=ROOT, httponly=True, samesite="strict")


def theme_of(request: Request) -> str:
    wanted = request.cookies.get(THEME, "auto")
    return wanted if wanted in THEMES else "auto"


def _said(request: Request) -> tuple[str, str]:
    kind, _, sentence = unquote(request.cookies.get(SAID, "")).partition("|")
    return ("error" if kind == "error" else "done"), sentence
