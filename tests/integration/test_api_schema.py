"""The OpenAPI document against the server itself: generated requests, right and wrong ones, on every operation."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, open_api

if TYPE_CHECKING:
    from trunkline.testing.servers import Background

# Every operation takes this many of each kind; the whole stays under a minute.
EXAMPLES = 5
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
]


@dataclass(frozen=True)
class Served:
    url: str
    # Objects that exist: without them every generated id would answer 404.
    ids: dict[str, str]


async def none_freed() -> int:
    return 0


@asynccontextmanager
async def serve_api(database_url: str) -> AsyncIterator[Served]:
    async with open_api(database_url, free_dead_channels=none_freed) as world, serve(world.app) as url:
        yield Served(url, await world.objects_of("a1"))


@pytest.fixture
def served(_background: "Background", database_url: str) -> Iterator[Served]:
    with _background.opened(serve_api(database_url)) as served:
        yield served


# A row that is wrong is told of in the report of its upload, and is no reason to refuse the other rows.
BULK = "POST /api/v1/leads/bulk"
REFUSES_ROWS = {BULK, "POST /api/v1/campaigns/{campaign_id}/leads", "POST /api/v1/campaigns/plan"}


def checks_of(operation: str) -> Any:
    return [check for check in CHECKS if not (operation in REFUSES_ROWS and check is negative_data_rejection)]


def make_plausible(case: Case[Any]) -> None:
    """Let a lead be one of a merchant that exists, to a phone: generated ones never are."""
    plausible: dict[str, Any] = {"merchant_id": "a1", "phone": "+14155550123", "pool": None, "timezone": None}
    if case.operation.label == "POST /api/v1/leads" and isinstance(case.body, dict):
        case.body |= plausible
    if case.operation.label == BULK and isinstance(case.body, list):
        case.body = [row | plausible if isinstance(row, dict) else row for row in case.body]


def arrives(case: Case[Any]) -> bool:
    """An empty list or object in a query is no word in the URL: what is wrong with it reaches nobody."""
    return not any(value in ([], {}, None) for value in (case.query or {}).values())


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_generated_requests_get_documented_answers(
    served: Served, mode: GenerationMode, subtests: pytest.Subtests
) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {ADMIN_KEY}"
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # ours has no other, and it would raise here
        # A request without parameters and body has nothing that could be wrong.
        if mode.is_negative and not (operation.body or any(True for _ in operation.iter_parameters())):
            continue

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode, path_parameters=served.ids if mode.is_positive else None))
        def check(case: Case[Any]) -> None:
            assume(arrives(case))
            if mode.is_positive:
                make_plausible(case)
            case.call_and_validate(
                base_url=served.url, session=session, checks=checks_of(case.operation.label)
            )

        with subtests.test(operation=operation.label):
            check()
        tried += 1
    assert tried > 20
