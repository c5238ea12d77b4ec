"""The page at /docs. It renders /openapi.json by itself, so it also works with no network."""

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse

# Nothing from elsewhere is loaded, and nothing may be.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


@cache
def _page() -> str:
    return (files("trunkline.api") / "docs.html").read_text(encoding="utf-8")


async def get_docs(_request: Request) -> HTMLResponse:
    return HTMLResponse(_page(), headers={"Content-Security-Policy": _POLICY})
