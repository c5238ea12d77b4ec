"""A request of the console. A page is a function from a request to what it shows; an action, to its result."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.principal import Principal
from trunkline.console.api_client import ApiClient, ApiRefused, segment
from trunkline.console.sessions import Pass

ROOT = "/console"
# Of the items of a list that one page shows.
PAGE = 50


@dataclass(frozen=True, slots=True)
class PageRequest:
    request: Request
    who: Principal
    session: Pass
    form_token: str
    api: ApiClient
    # The form of an action, without empty fields.
    form: Mapping[str, str] = field(default_factory=dict)

    def given(self, name: str) -> str | None:
        """A parameter of the URL, stripped."""
        return self.request.query_params.get(name, "").strip() or None

    def number(self, field: str, otherwise: int = 0) -> int:
        """A whole number of the form."""
        text = self.form.get(field, str(otherwise))
        if not text.isdecimal():
            raise ApiRefused(422, "invalid_request", "A number is wrong.", {field: "Give a whole number."})
        return int(text)

    def part(self, name: str) -> str:
        return str(self.request.path_params[name])

    def path(self, template: str) -> str:
        """`/leads/{lead_id}/why` with the parts of the URL of this page."""
        return template.format_map({name: segment(part) for name, part in self.request.path_params.items()})

    async def get(self, template: str, query: Mapping[str, object] | None = None) -> Any:
        return await self.api.get(self.path(template), query)

    async def post(self, template: str, *fields: str, **body: object) -> Any:
        """Post these fields of the form, and what else the body has."""
        return await self.api.post(
            self.path(template), {name: self.form.get(name, "") for name in fields} | body
        )

    async def listed(self, template: str, *filters: str, limit: int = PAGE) -> dict[str, Any]:
        """A page of a list of the API, as its templates need it. The URL of this page has the filters."""
        given = {name: self.given(name) for name in filters}
        found = await self.get(template, {**given, "cursor": self.given("cursor"), "limit": limit})
        return {"items": found["items"], "next_cursor": found["next_cursor"], "filters": given}

    @property
    def address(self) -> str:
        """The URL of this page, with its filters."""
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
    """The result of an action: a message, and the next page. `keeps_form`: the form is shown again as it was sent."""

    sentence: str
    to: str
    keeps_form: bool = False
    is_refused: bool = False


Page = Callable[[PageRequest], Awaitable[Shown]]
Action = Callable[[PageRequest], Awaitable[ActionDone]]
# Reads a file that is still arriving, and shows the report.
Upload = Callable[[PageRequest], Awaitable[Shown]]
Download = Callable[[PageRequest], Awaitable[Response]]


def posting(path: str, sentence: str, *fields: str, to: str = "", back_to: str = "") -> Action:
    """The action that posts these fields of its form to the API. The next page is `to`; or that of the form, and
    `back_to` if that is unknown; or by default that of the resource, whose path is `path` without its last word."""

    async def post(visit: PageRequest) -> ActionDone:
        await visit.post(path, *fields)
        page = back(visit, back_to) if back_to else at(visit.path(to or path.rpartition("/")[0]))
        return ActionDone(sentence.format_map(visit.request.path_params), page)

    return post


def at(path: str, **query: object) -> str:
    """A URL of the console."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{ROOT}{path}" + (f"?{urlencode(given)}" if given else "")


def is_ours(address: str) -> bool:
    """Whether it is a URL of a page. `//elsewhere` and `\\elsewhere` are those of other sites."""
    return address.startswith(f"{ROOT}/") and "\\" not in address and "//" not in address


def back(visit: PageRequest, otherwise: str) -> str:
    """The page of the form, if it is one of the console: URLs of other sites are ignored."""
    to = visit.form.get("back", "")
    return to if is_ours(to) else at(otherwise)
