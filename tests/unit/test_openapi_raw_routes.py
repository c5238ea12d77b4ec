"""Every raw route in the OpenAPI document: its id, its words, its body, all of its answers, and examples."""

import re
from collections.abc import Iterator
from typing import Any, cast

import jsonschema_rs
import pytest
from fastapi import FastAPI

from trunkline.api import openapi
from trunkline.api.agent_endpoints import AgentApi
from trunkline.api.raw_routes import RawRoute
from trunkline.api.router_carriers import CarrierApi
from trunkline.api.router_endpoints import RouterEndpoints
from trunkline.api.router_merchants import MerchantApi
from trunkline.api.routes import ROUTERS
from trunkline.api.webhooks.answers import Answers
from trunkline.api.webhooks.routes import WebhookRoutes

# Routes are only listed here, so nothing that answers them is needed.
NOTHING = cast(Any, None)
ROUTES: list[RawRoute] = [
    *WebhookRoutes(NOTHING, Answers(NOTHING, NOTHING, NOTHING), NOTHING, NOTHING, NOTHING).raw_routes(),
    *RouterEndpoints(NOTHING, NOTHING, NOTHING).raw_routes(),
    *AgentApi(NOTHING, NOTHING).raw_routes(),
    *CarrierApi(NOTHING, NOTHING, NOTHING, NOTHING).raw_routes(),
    *MerchantApi(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING).raw_routes(),
]
LABELS = [f"{route.method} {route.path}" for route in ROUTES]
# It says all in its path.
BODILESS = {"POST /api/v1/pods/{name}/reset"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = FastAPI(title="Trunkline", version="0", generate_unique_id_function=lambda route: route.name)
    for router in ROUTERS:
        app.include_router(router)
    return openapi.build(app, ROUTES)


def operation_of(document: dict[str, Any], label: str) -> dict[str, Any]:
    method, path = label.split()
    operation: dict[str, Any] = document["paths"][path][method.lower()]
    return operation


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    parts = {"body": operation.get("requestBody", {}), **operation["responses"]}
    for where, part in parts.items():
        for kind, content in part.get("content", {}).items():
            yield f"{where} {kind}", content


def examples(document: dict[str, Any], content: dict[str, Any]) -> list[Any]:
    schema = content["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return [content["example"]] if "example" in content else cast(list[Any], schema["examples"])


def test_ids_of_operations_are_unique_in_the_whole_document(document: dict[str, Any]) -> None:
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert sorted(ids) == sorted(set(ids))
    assert [name for name in ids if not re.fullmatch("[a-z_]+", name)] == []


@pytest.mark.parametrize("label", LABELS)
def test_a_raw_route_is_described_with_its_parameters(document: dict[str, Any], label: str) -> None:
    operation = operation_of(document, label)
    assert operation["summary"]
    assert operation["description"]
    assert [each["name"] for each in operation["parameters"] if not each.get("description")] == []
    assert set(re.findall(r"{(\w+)}", label)) <= {each["name"] for each in operation["parameters"]}


@pytest.mark.parametrize("label", LABELS)
def test_a_raw_route_names_its_body_and_all_of_its_answers(document: dict[str, Any], label: str) -> None:
    operation, answers = operation_of(document, label), operation_of(document, label)["responses"]
    has_body = label.startswith(("POST", "PUT")) and label not in BODILESS
    assert ("requestBody" in operation) == has_body
    assert all(answer["description"] for answer in answers.values())
    assert any(status.startswith("2") for status in answers)
    for answer in answers.values():
        assert "content" in answer or "No body" in answer["description"] or answer in (
            answers.get("204"), answers.get("403"),
        )  # fmt: skip
    if "/api/v1/" in label:
        assert {"401", "503"} <= answers.keys()
    if has_body:
        assert "413" in answers


@pytest.mark.parametrize("label", LABELS)
def test_a_raw_route_has_an_example_of_its_body_and_of_each_answer(
    document: dict[str, Any], label: str
) -> None:
    for where, content in contents(operation_of(document, label)):
        shown = examples(document, content)
        assert shown, where
        for example in shown:
            schema = {"allOf": [content["schema"]], "components": document["components"]}
            jsonschema_rs.validate(schema, example)
