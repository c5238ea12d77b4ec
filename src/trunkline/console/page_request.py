"""A visit: who looks at what. A page is a function from a visit to what is shown; an action, to what was done."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.principal import Principal
from trunkline.console.api_client import ApiClient
from trunkline.console.sessions import Pass

ROOT = "/console"


@dataclass(frozen=True, slots=True)
class PageRequest:
    request: Request
    who: Principal
    session: Pass
    form_token: str
    api: ApiClient
    # Of an action: what its form said, empty fields left out.
    form: Mapping[str, str] = field(default_factory=dict)

    def given(self, name: str) -> str | None:
        """A word of the address, without the blanks around it."""
        return self.request.query_params.get(name, "").strip() or None

    def part(self, name: str) -> str:
        return str(self.request.path_params[name])

    @property
    def address(self) -> str:
        """To come back to, filters included."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    def may(self, *scopes: str) -> bool:
        return "admin" in self.who.scopes or not self.who.scopes.isdisjoint(scopes)


@dataclass(frozen=True, slots=True)
class Shown:
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class ActionDone:
    """An action that worked: a sentence, and where to go on. `keeps_form`: what was typed is needed once more."""

    sentence: str
    to: str
    keeps_form: bool = False


Page = Callable[[PageRequest], Awaitable[Shown]]
Action = Callable[[PageRequest], Awaitable[ActionDone]]
# Takes a file that is still arriving, and shows what became of it.
Upload = Callable[[PageRequest], Awaitable[Shown]]
Download = Callable[[PageRequest], Awaitable[Response]]


def at(path: str, **query: object) -> str:
    """An address of the console."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{ROOT}{path}" + (f"?{urlencode(given)}" if given else "")


def back(visit: PageRequest, otherwise: str) -> str:
    """Where the form was, if it was on the console: an address of another site is not followed."""
    to = visit.form.get("back", "")
    return to if to.startswith(f"{ROOT}/") and "\\" not in to and "//" not in to else at(otherwise)
