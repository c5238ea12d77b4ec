"""The OpenAPI document, FastAPI's with the hot routes and the API keys added, and the page at /docs that renders it."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.requests import Request
from starlette.responses import HTMLResponse

from trunkline.api.auth import API_ROOT
from trunkline.api.document_examples import Examples
from trunkline.api.document_words import describe
from trunkline.api.raw_routes import RawRoute

DESCRIPTION = """Trunkline places and routes the calls of voice agents.

Send an API key with every request under `/api/v1`: `Authorization: Bearer tl_…`. A key belongs to the platform, to a
reseller or to a merchant, and sees what is theirs; what is another tenant's answers 404.

Every error has one shape: `error` is a sentence for people, `code` a word for programs, `request_id` the id under which
our logs know the request. Lists come in pages: pass `next_cursor` back as `cursor`.
"""
TAGS = [
    {"name": "leads", "description": "People to call."},
    {"name": "attempts", "description": "Calls, with their recordings and transcripts."},
    {"name": "campaigns", "description": "Many leads under one policy."},
    {"name": "reminders", "description": "Calls to one person at a local time."},
    {
        "name": "policy",
        "description": "Calling windows, limits and pre-checks; rule packs; do-not-call lists.",
    },
    {"name": "tenants", "description": "Resellers and their merchants."},
    {"name": "numbers", "description": "Outbound numbers and their pools."},
    {"name": "accounts", "description": "Accounts at carriers. Need a key of the platform."},
    {"name": "keys", "description": "API keys."},
    {"name": "router", "description": "Pods for calls. Needs a key of the platform."},
    {"name": "queues", "description": "Jobs by their type and mailboxes by their kind, for operators."},
    {
        "name": "jobs",
        "description": "Work in the background: what waits, runs or has failed; schedules; exports.",
    },
    {"name": "mailboxes", "description": "Entities with pending events."},
    {"name": "agents", "description": "For agents, which authenticate with the token of their call."},
    {"name": "webhooks", "description": "For carriers, which sign them."},
    {"name": "control", "description": "Controls, feature flags, alarms and the audit log."},
    {"name": "operation", "description": "For load balancers, schedulers and monitoring. No key is needed."},
]
SCHEME = "apiKey"
SIGNATURE = "eventSignature"
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}}
_REFUSALS = {
    "401": {"description": "No API key, or one that is unknown, revoked or expired.", "content": _ERROR},
    "403": {"description": "The key lacks the scope.", "content": _ERROR},
}


def build(app: FastAPI, raw_routes: Sequence[RawRoute]) -> dict[str, Any]:
    document = _with_named_pages(
        get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes, tags=TAGS
        )
    )
    shapes: dict[type, JsonSchemaMode] = {}
    for hot in raw_routes:
        document["paths"].setdefault(hot.path, {})[hot.method.lower()] = _operation(hot, shapes)
    if shapes:
        adapters: list[Any] = [(shape, mode, TypeAdapter(shape)) for shape, mode in shapes.items()]
        _, found = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= found["$defs"]
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes[SCHEME] = {"type": "http", "scheme": "bearer", "bearerFormat": "tl_…"}
    schemes[SIGNATURE] = {"type": "apiKey", "in": "header", "name": "Trunkline-Signature"}
    open_paths = {hot.path for hot in raw_routes if hot.scopes is None}
    for path, operations in document["paths"].items():
        if path.startswith(API_ROOT) and path not in open_paths:
            for operation in operations.values():
                # A route that accepts something else instead of a key declares it itself.
                operation["security"] = [{SCHEME: []}, *operation.get("security", ())]
    describe(document)
    Examples(document["components"]["schemas"]).add()
    return document


def _with_named_pages(document: dict[str, Any]) -> dict[str, Any]:
    """`Page[Lead]` becomes `LeadPage`, `Items[JobSchedule]` becomes `JobScheduleItems`. FastAPI gives all of them one
    title, which generators take for their name."""
    text = msgspec.json.encode(document).decode()
    pages = re.sub(r'\b(Page|Items)(?:Out)?_(\w+?)_"', r'\2\1"', text)
    named: dict[str, Any] = msgspec.json.decode(pages)
    for name, schema in named["components"]["schemas"].items():
        if name.endswith("Page"):
            schema |= {"title": name, "description": "A page of a list."}
        elif name.endswith("Items"):
            schema |= {"title": name, "description": "A list in one piece."}
    return named


def _operation(hot: RawRoute, shapes: dict[type, JsonSchemaMode]) -> dict[str, Any]:
    """The route's own operation, with the parts that all share. Adds the shapes that it names."""

    def refer(part: Any, mode: JsonSchemaMode) -> Any:
        match part:
            case type():
                shapes[part] = mode
                return {"$ref": f"#/components/schemas/{part.__name__}"}
            case dict():
                return {
                    key: refer(each, "validation" if key == "requestBody" else mode)
                    for key, each in part.items()
                }
            case list():
                return [refer(each, mode) for each in part]
        return part

    operation: dict[str, Any] = refer(hot.operation, "serialization")
    named = {parameter["name"] for parameter in operation.get("parameters", ())}
    missing = [name for name in re.findall(r"{(\w+)}", hot.path) if name not in named]
    operation["parameters"] = [*operation.get("parameters", ()), *map(_path_parameter, missing)]
    if hot.scopes is not None:
        operation["responses"] = {**_REFUSALS, **operation["responses"]}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


# The page works offline: it loads nothing from other hosts, and must not.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


@cache
def _page() -> str:
    return (files("trunkline.api") / "docs.html").read_text(encoding="utf-8")


async def get_docs(_request: Request) -> HTMLResponse:
    return HTMLResponse(_page(), headers={"Content-Security-Policy": _POLICY})
