"""The short way to the hottest routes: those of the shape `/first/{name}/last` that check a signature themselves.

They need no key, no table of exceptions and no dependencies, so a webhook does not walk through the layers that have
them. What lies outside of this one still holds: the request's id, its measures, the bounds of its body, the shape of
every error. The routes stay in the router too, for their documentation and for wrong methods.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.api.hot_routes import HotRoute

Door = tuple[str, str, str]


class HotDoor:
    def __init__(self, app: ASGIApp, routes: Sequence[HotRoute]):
        self.app = app
        self._doors: dict[Door, tuple[str, HotRoute]] = {}
        for hot in routes:
            parts = hot.path.split("/")
            if hot.scopes is None and len(parts) == 4 and parts[2][:1] == "{" and "{" not in parts[3]:
                self._doors[hot.method, parts[1], parts[3]] = parts[2].strip("{}"), hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            parts = scope["path"].split("/")
            found = self._doors.get((scope["method"], parts[1], parts[3])) if len(parts) == 4 else None
            if found is not None and parts[2]:
                name, hot = found
                scope["path_params"] = {name: parts[2]}
                response = await hot.serve(Request(scope, receive, send))
                await response(scope, receive, send)
                return
        await self.app(scope, receive, send)
