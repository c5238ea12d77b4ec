"""The operations of the API, their documents, and the methods of both clients."""

import dataclasses
import importlib
import pkgutil
from collections import Counter
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from trunkline import schema
from trunkline.api import openapi
from trunkline.api.routes import ROUTERS
from trunkline.client import SyncTrunklineClient, TrunklineClient
from trunkline.client.operations import Listing, Operation
from trunkline.schema.fields import TextRule

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
MODULES = [
    importlib.import_module(f"trunkline.schema.{each.name}") for each in pkgutil.iter_modules(schema.__path__)
]
SHAPES = {
    shape.__name__: shape
    for module in MODULES
    for shape in vars(module).values()
    if dataclasses.is_dataclass(shape)
    and isinstance(shape, type)
    and shape.__module__ == module.__name__
    and shape is not TextRule
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = FastAPI(title="Trunkline", version="0", generate_unique_id_function=lambda route: route.name)
    for router in ROUTERS:
        app.include_router(router)
    return openapi.build(app, ())


def test_an_operation_has_an_id_of_its_own() -> None:
    assert [name for name, count in Counter(route.name for route in ROUTES).items() if count > 1] == []


@pytest.mark.parametrize("client", [TrunklineClient, SyncTrunklineClient])
def test_the_clients_have_every_operation(client: type) -> None:
    missing = [
        route.name
        for route in ROUTES
        if not isinstance(getattr(client, route.name, None), Operation | Listing)
    ]
    assert missing == []


def test_the_document_shows_nothing_that_only_the_store_knows(document: dict[str, Any]) -> None:
    assert [name for name in document["components"]["schemas"] if name.startswith("Stored")] == []


@pytest.mark.parametrize("name", SHAPES)
def test_every_field_of_a_shape_is_described(name: str) -> None:
    silent = [each.name for each in dataclasses.fields(SHAPES[name]) if not each.metadata.get("description")]
    assert silent == []


def test_the_document_has_the_shapes_by_their_own_names(document: dict[str, Any]) -> None:
    shown = document["components"]["schemas"]
    assert {
        "Lead",
        "Attempt",
        "Campaign",
        "Reminder",
        "Pool",
        "NewPool",
        "PoolChange",
        "Number",
    } <= shown.keys()
    assert shown["NewPool"]["examples"], "a body has an example"
    assert "absent" not in str(shown["Pool"])
