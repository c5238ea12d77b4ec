"""The OpenAPI document, walked from end to end: ids, names, words, examples, bodies and answers."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from fastapi import FastAPI

from trunkline.api import openapi
from trunkline.api.routes import ROUTERS

METHODS_WITH_BODY = {"post", "put", "patch"}
# They say all in the path or the query.
BODILESS = {
    "dispatch_now",
    "pause_reminder",
    "resume_queue",
    "resume_reminder",
    "resume_type",
    "retry_job",
    "ring_next",
    "rotate_mailbox_secret",
    "rotate_webhook_secret",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = FastAPI(title="Trunkline", version="0", generate_unique_id_function=lambda route: route.name)
    for router in ROUTERS:
        app.include_router(router)
    return openapi.build(app, ())


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_every_operation_has_an_id_of_its_own(document: dict[str, Any]) -> None:
    ids = Counter(operation["operationId"] for _, operation in operations(document))
    assert [name for name, count in ids.items() if count > 1] == []
    assert [name for name in ids if not re.fullmatch("[a-z_]+", name)] == []


def test_every_schema_has_a_name_of_its_own_that_generators_can_take(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name in schemas if not re.fullmatch("[A-Z][A-Za-z]+", name)] == []
    assert {name: schema["title"] for name, schema in schemas.items()} == {name: name for name in schemas}


def test_every_tag_is_described(document: dict[str, Any]) -> None:
    used = {tag for _, operation in operations(document) for tag in operation["tags"]}
    described = {tag["name"] for tag in document["tags"] if tag["description"]}
    assert used - described == set()


def test_every_operation_and_parameter_is_described(document: dict[str, Any]) -> None:
    silent = [
        label
        for label, operation in operations(document)
        if not (operation["summary"] and operation["description"])
    ]
    silent += [
        f"{label} {parameter['name']}"
        for label, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert silent == []


def test_every_operation_names_its_body_and_all_of_its_answers(document: dict[str, Any]) -> None:
    for label, operation in operations(document):
        method, path = label.split()
        if method in METHODS_WITH_BODY:
            assert ("requestBody" in operation) != (operation["operationId"] in BODILESS), label
        answers = operation["responses"]
        for status, answer in answers.items():
            assert answer["description"] not in ("", "Successful Response"), f"{label} {status}"
            assert ("content" in answer) == (status != "204"), f"{label} {status}"
        if path.startswith("/api/v1"):
            needed = {"401", "503"} | ({"400", "408", "413", "415"} if "requestBody" in operation else set())
            assert needed <= answers.keys(), label


def test_every_schema_has_an_example_that_it_accepts(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        whole = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        assert schema["examples"], name
        for example in schema["examples"]:
            jsonschema_rs.validate(whole, example)


def test_every_schema_and_field_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    silent = [name for name, schema in schemas.items() if not schema.get("description")]
    silent += [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, part in schema.get("properties", {}).items()
        if not part.get("description")
    ]
    assert silent == []
