"""Probes for monitoring: health, readiness and metrics of the process."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trunkline import __version__
from trunkline.api.deps import Deps, HealthProbe
from trunkline.api.errors import ApiError, body_of
from trunkline.api.models import ErrorOut
from trunkline.errors import MigrationError
from trunkline.schema.probes import Health, Probe, Readiness
from trunkline.telemetry import get_logger

log = get_logger(__name__)
router = APIRouter(tags=["operation"])


class NotReadyOut(ErrorOut):
    """A dependency that this process needs is unavailable."""

    status: Literal["not ready"] = Field(description="Always `not ready`.")
    checks: dict[str, Probe] = Field(description="Its dependencies, by name.")


@router.get("/health", summary="Is the process alive?")
async def health() -> Health:
    """Checks only the process itself: a restart would not bring an engine back."""
    return Health("ok", __version__)


@router.get(
    "/ready",
    response_model=Readiness,
    responses={
        503: {"model": NotReadyOut, "description": "A dependency that this process needs is unavailable."}
    },
    summary="Can the process do its work?",
)
async def ready(request: Request, api: Deps) -> Readiness | Response:
    """Checks every dependency. `degraded`: one is away that this process can do without.

    A process that answers carriers stays ready while Postgres or Valkey answers: answered calls wait for a document.
    """
    probes = api.deps.probes
    timeout_s = api.deps.limits.probe_timeout_s
    results = await asyncio.gather(*(ask(name, probe, timeout_s) for name, probe in probes.items()))
    checks = dict(zip(probes, results, strict=True))
    if all(check.ok for check in results):
        return Readiness("ready", checks)
    needed = [name for name, check in checks.items() if check.required and not check.ok]
    alternatives = [name for name, probe in probes.items() if probe.is_alternative]
    if alternatives and not any(checks[name].ok for name in alternatives):
        needed += [name for name in alternatives if name not in needed]
    if not needed:
        return Readiness("degraded", checks)
    return _not_ready(needed, checks, request.state.request_id)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "In Prometheus' text format."}},
    summary="Metrics of the process",
)
async def metrics(request: Request, api: Deps) -> Response:
    body, content_type = api.deps.render_metrics(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})


async def ask(name: str, probe: HealthProbe, timeout_s: float) -> Probe:
    """The reason goes to the log: this page needs no key, and the reason may name hosts."""
    try:
        async with asyncio.timeout(timeout_s):
            await probe.check()
    except TimeoutError:
        return Probe(False, probe.required, f"no answer within {timeout_s:g} s")
    except MigrationError as error:
        # It names no host, and whatever the role of this process, it cannot work.
        return Probe(False, True, str(error))
    except Exception as error:
        log.warning("probe.failed", probe=name, reason=f"{type(error).__name__}: {error}")
        return Probe(False, probe.required, "unavailable")
    return Probe(True, probe.required)


def _not_ready(needed: Sequence[str], checks: dict[str, Probe], request_id: str) -> Response:
    problem = ApiError(503, "not_ready", f"Not ready: {', '.join(needed)} cannot be used. See checks.")
    body = body_of(problem, request_id, status="not ready", checks=checks)
    return Response(msgspec.json.encode(body), 503, media_type="application/json")
