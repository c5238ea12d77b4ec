"""The timeouts between an answered call and its document, each with those that have to fit into it."""

import re
from collections.abc import Coroutine
from inspect import signature
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

import pytest
from starlette.applications import Starlette

from tests.support.api.asgi import AsgiClient
from trunkline.api import fast_path, router_endpoints
from trunkline.api.body_guard import BodyRule
from trunkline.api.fast_path import FastPath
from trunkline.api.key_verifier import ASK_WAIT_S, REFRESH_WAIT_S, KeyVerifier
from trunkline.api.webhooks import answers
from trunkline.api.webhooks import routes as webhook_routes
from trunkline.client.router_settings import RouterSettings
from trunkline.model import new_id
from trunkline.router import allocator
from trunkline.router.allocator import Allocator
from trunkline.schema.keys import ApiKey
from trunkline.telephony import accounts
from trunkline.telephony.xml_documents import ASK_AGAIN
from trunkline.testing.clock import ManualClock

DEPLOY = Path(__file__).parents[2] / "deploy"
NGINX = [
    DEPLOY / "nginx/kubernetes.conf.template",
    DEPLOY / "nginx/self-registered.conf.template",
    DEPLOY / "kubernetes/50-nginx.yaml",
]
# A person hears nothing until then.
DOCUMENT_S = 1.2
# Whoever else asks the router for a pod.
POD_S = 2.0


def test_the_engine_timeouts_end_before_a_document_is_due() -> None:
    assert allocator.VALKEY_S <= 0.15
    assert allocator.VALKEY_S < allocator.ENGINES_S <= 0.6
    # Valkey alone is asked once more where Postgres was silent.
    assert allocator.ENGINES_S + allocator.VALKEY_S < answers.CONNECT_S <= 0.9
    assert answers.CONNECT_S < webhook_routes.ANSWER_S <= DOCUMENT_S
    assert accounts.REFRESH_WAIT_MAX_S + allocator.VALKEY_S < answers.CONNECT_S
    assert answers.CONNECT_S * answers.ADMIT_SHARE + allocator.VALKEY_S < answers.CONNECT_S
    answer_s = signature(webhook_routes.WebhookRoutes).parameters["answer_s"].default
    connect_s = signature(answers.Answers).parameters["connect_s"].default
    assert (answer_s, connect_s) == (webhook_routes.ANSWER_S, answers.CONNECT_S)


def test_the_routers_timeouts_add_up_to_less_than_two_seconds() -> None:
    assert allocator.ENGINES_S + allocator.VALKEY_S < router_endpoints.ALLOCATE_S
    assert (
        max(REFRESH_WAIT_S, accounts.REFRESH_WAIT_MAX_S) + router_endpoints.ALLOCATE_S
        <= router_endpoints.ANSWER_S
        < POD_S
    )
    assert ASK_WAIT_S + 2 * allocator.VALKEY_S < router_endpoints.ANSWER_S, (
        "a key's first use leaves time for a pod"
    )
    assert RouterSettings().timeout_s > POD_S, "the client hears what the router says"


@pytest.mark.parametrize("path", NGINX, ids=lambda path: path.name)
def test_nginx_times_out_after_our_answer_and_before_the_carriers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    orders = {name: int(ms) / 1000 for name, ms in parse_qsl(ASK_AGAIN.lstrip("#")) if ms.isdigit()}
    answer = location(text, "(?:answer|resume|inbound)$")
    assert answer["read"] > webhook_routes.ANSWER_S
    assert answer["again"] < 2 * answer["read"], (
        "a third process is not asked: the carrier does not wait for it"
    )
    assert 2 * answer["read"] + answer["connect"] < orders["rt"]
    assert 3 * orders["rt"] <= orders["tt"], "each of three tries has its time"
    asked = location(text, ")?allocate$")
    assert POD_S < asked["read"] < RouterSettings().timeout_s


def location(text: str, ends: str) -> dict[str, float]:
    """The times of a location, in seconds."""
    (block,) = re.findall(rf"location ~ \S*{re.escape(ends)} {{(.*?)}}", text, re.DOTALL)
    names = {
        "proxy_read_timeout": "read",
        "proxy_connect_timeout": "connect",
        "proxy_next_upstream_timeout": "again",
    }
    found = re.findall(r"(\w+) (\d+)(ms|s);", block)
    return {names[word]: int(n) / (1000 if unit == "ms" else 1) for word, n, unit in found if word in names}


class SlowKeys:
    """Postgres says whose key it is, after so long."""

    def __init__(self, clock: ManualClock, takes_s: float):
        self._clock = clock
        self._takes_s = takes_s

    async def find(self, _digest: bytes) -> ApiKey:
        self._clock.advance(self._takes_s)
        at = self._clock.now()
        return ApiKey(new_id(), "", "k", ["router"], None, None, at, "test", None, None)


class SilentAllocator:
    async def allocate(self, *_: object, **__: object) -> None:
        raise AssertionError("nobody waits for this one")


@pytest.mark.parametrize(
    ("lookup_s", "left_s"), [(0.0, 1.4), (0.4, 1.4), (1.2, 0.7), (1.5, 0.4), (9.0, 0.05)]
)
async def test_the_time_of_a_keys_first_lookup_is_subtracted_from_the_allocate_timeout(
    monkeypatch: pytest.MonkeyPatch, lookup_s: float, left_s: float
) -> None:
    clock, given = ManualClock(), list[float]()

    async def in_time(timeout_s: float, work: Coroutine[Any, Any, None]) -> None:
        given.append(timeout_s)
        work.close()
        clock.advance(timeout_s)
        raise TimeoutError

    for module in (fast_path, router_endpoints):
        monkeypatch.setattr(module, "monotonic", clock.monotonic_s)
    monkeypatch.setattr(router_endpoints, "in_time", in_time)
    nobody: Any = None
    hot = router_endpoints.RouterEndpoints(cast(Allocator, SilentAllocator()), nobody, nobody).raw_routes()
    verifier = KeyVerifier(SlowKeys(clock, lookup_s).find, clock, fresh_s=60, stale_s=60)
    app = FastPath(Starlette(), verifier, hot, body=BodyRule(1000, 5))
    answer = await AsgiClient(app, "a-key-that-an-operator-chose-1234567890").post(
        "/api/v1/allocate", {"call_sid": "call-1"}
    )
    assert (answer.status, answer.json()["code"]) == (503, "unavailable")
    assert given == [pytest.approx(left_s)]
