"""The router's part of the OpenAPI document: complete, true of a running router, and enough to write an agent by."""

import dataclasses
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.router import api_page
from tests.support.world import ADMIN_KEY, ALL_STANDARD, SECRET_KEY
from trunkline.app import Platform
from trunkline.schema.router import AgentHeartbeat, AllocateCall, DrainPod, ReleaseCall
from trunkline.settings import load_settings

if TYPE_CHECKING:
    from trunkline.testing.servers import Background

EXAMPLES = 8
CHECKS: Any = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
STATUSES = {
    "POST /api/v1/allocate": "200 400 401 403 408 410 413 503",
    "POST /api/v1/release": "200 400 401 403 404 408 413 503",
    "POST /api/v1/drain": "200 400 401 403 404 408 413 503",
    "DELETE /api/v1/drain/{name}": "200 400 401 403 404 503",
    "GET /api/v1/status": "200 401 403 503",
    "GET /api/v1/pod/{name}": "200 400 401 403 404 503",
    "GET /api/v1/pod/{name}/address": "204 400 401 403 503",
    "GET /api/v1/pods": "200 400 401 403 503",
    "GET /api/v1/allocations": "200 400 401 403 503",
    "POST /api/v1/pods/{name}/reset": "200 400 401 403 404 503",
    "POST /api/v1/pods/{name}/heartbeat": "200 400 401 403 408 409 413 503",
}


@asynccontextmanager
async def serve_router(given: Mapping[str, object]) -> AsyncIterator[str]:
    async with Platform.open(load_settings({}, **given)) as platform:
        yield platform.base_url


@pytest.fixture
def url(_background: "Background", database_url: str, redis_url: str, key_prefix: str) -> Iterator[str]:
    given = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "TRUNKLINE_DOMAIN": key_prefix,
        "ROUTER_KEY_PREFIX": key_prefix,
        "TIER_CONFIG": ALL_STANDARD,
        "TRUNKLINE_ROLES": "router",
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "HTTP_PORT": 0,
        "METRICS_PORT": 0,
    }
    with _background.opened(serve_router(given)) as url:
        yield url


def operation_of(document: Mapping[str, Any], label: str) -> dict[str, Any]:
    method, path = label.split()
    operation: dict[str, Any] = document["paths"][path][method.lower()]
    return operation


def schema_of(document: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that stands by itself: what it refers to is with it."""
    schema = part["content"]["application/json"]["schema"]
    return {"allOf": [schema], "components": document["components"]}


def shape_of(document: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    name = part["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    shape: dict[str, Any] = document["components"]["schemas"][name]
    return shape


def test_every_operation_names_its_body_and_all_of_its_answers(url: str) -> None:
    document = requests.get(f"{url}/openapi.json", timeout=30).json()
    for label, statuses in STATUSES.items():
        operation = operation_of(document, label)
        assert sorted(operation["responses"]) == statuses.split(), label
        has_body = label.startswith("POST") and not label.endswith("/reset")
        assert ("requestBody" in operation) == has_body, label
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if "content" in answer:
                jsonschema_rs.meta.validate(schema_of(document, answer))
                properties = answer["content"]["application/json"]["schema"]
                assert "properties" in properties or "$ref" in properties or "allOf" in properties, status


@pytest.mark.parametrize(
    ("label", "body"),
    [
        ("POST /api/v1/allocate", AllocateCall),
        ("POST /api/v1/release", ReleaseCall),
        ("POST /api/v1/drain", DrainPod),
        ("POST /api/v1/pods/{name}/heartbeat", AgentHeartbeat),
    ],
)
def test_every_field_that_is_read_is_documented(url: str, label: str, body: type) -> None:
    document = requests.get(f"{url}/openapi.json", timeout=30).json()
    operation = operation_of(document, label)
    fields = {field.name for field in dataclasses.fields(body)}
    assert set(shape_of(document, operation["requestBody"])["properties"]) == fields
    if body is AgentHeartbeat:
        page = api_page.section(label)
        answers = shape_of(document, operation["responses"]["200"])["properties"]
        named = set(re.findall(r"`(\w+)`", page))
        assert fields <= named
        assert set(answers) - {"success", "pod_name"} <= named


def test_the_examples_of_the_page_are_what_the_document_describes(url: str) -> None:
    document = requests.get(f"{url}/openapi.json", timeout=30).json()
    printed = [(label, example) for label in STATUSES for example in api_page.examples(label)]
    for label, example in printed:
        operation = operation_of(document, label)
        if "requestBody" in operation:
            jsonschema_rs.validate(schema_of(document, operation["requestBody"]), json.loads(example.asked))
        # A list's example is cut short.
        if "200" in operation["responses"] and '…": "…' not in example.answered:
            answer = json.loads(example.answered)
            jsonschema_rs.validate(schema_of(document, operation["responses"]["200"]), answer)


def checks_of(label: str) -> Any:
    checks = list(CHECKS)
    if label in ("GET /api/v1/pods", "GET /api/v1/allocations"):
        checks.remove(negative_data_rejection)  # a word in the query that nobody asked for is passed over
    if label != "POST /api/v1/allocate":
        checks.append(not_a_server_error)  # there, that no pod is free is an answer
    return checks


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_generated_requests_get_documented_answers(
    url: str, mode: GenerationMode, subtests: pytest.Subtests
) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {ADMIN_KEY}"
    for name in ("voice-agent-0", "voice-agent-1"):
        beat: Any = {"ip": "10.0.0.1", "port": 80, "sequence": 1, "boot_id": "b"}
        session.post(f"{url}/api/v1/pods/{name}/heartbeat", json=beat, timeout=30).raise_for_status()
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # ours has no other, and it would raise here
        if operation.label not in STATUSES:
            continue
        if mode.is_negative and not (operation.body or any(True for _ in operation.iter_parameters())):
            continue
        known = {"name": "voice-agent-0"} if "{name}" in operation.label and mode.is_positive else None

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode, path_parameters=known))
        def check(case: Case[Any]) -> None:
            case.call_and_validate(base_url=url, session=session, checks=checks_of(case.operation.label))

        with subtests.test(operation=operation.label):
            check()
        tried.add(operation.label)
    assert len(tried) >= len(STATUSES) - 1


def test_values_outside_of_the_openapi_document_are_refused_by_their_field(url: str) -> None:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {ADMIN_KEY}"
    for query in ("limit=0", "limit=1001", "cursor=x", "cursor=-1"):
        refused = session.get(f"{url}/api/v1/pods?{query}", timeout=30)
        assert (refused.status_code, refused.json()["fields"][0]["field"]) == (400, query.partition("=")[0])
    # Postgres keeps no NUL: it must not come as far as a row.
    body = {"call_sid": "CA1", "merchant_id": "a\x00b"}
    refused = session.post(f"{url}/api/v1/allocate", json=body, timeout=30)
    assert (refused.status_code, refused.json()["fields"][0]["field"]) == (400, "merchant_id")
