"""Which requests may take the short way: those of a fixed path, and those of the shape `/first/{name}/last`.

Two look-ups by key instead of a walk along a hundred routes. Whatever is not found here is found by the application.
"""

from collections.abc import Sequence

from starlette.types import Scope

from trunkline.api.raw_routes import RawRoute


class FastRouter:
    def __init__(self, routes: Sequence[RawRoute]):
        self._fixed: dict[tuple[str, str], RawRoute] = {}
        self._named: dict[tuple[str, str, str], tuple[str, RawRoute]] = {}
        for hot in routes:
            parts = hot.path.split("/")
            if "{" not in hot.path:
                self._fixed[hot.method, hot.path] = hot
            elif len(parts) == 4 and parts[2][:1] == "{" and "{" not in parts[3]:
                self._named[hot.method, parts[1], parts[3]] = parts[2].strip("{}"), hot

    def find(self, scope: Scope) -> RawRoute | None:
        """The route of this request, with the name in its path noted where endpoints look for it."""
        fixed = self._fixed.get((scope["method"], scope["path"]))
        if fixed is not None:
            return fixed
        parts = scope["path"].split("/")
        found = self._named.get((scope["method"], parts[1], parts[3])) if len(parts) == 4 else None
        if found is None or not parts[2]:
            return None
        scope["path_params"] = {found[0]: parts[2]}
        return found[1]
