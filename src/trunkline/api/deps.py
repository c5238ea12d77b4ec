"""What the API needs from outside, and what its routes find in their hands."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from trunkline.api.body_guard import BodyRule
from trunkline.api.key_verifier import KeyVerifier
from trunkline.api.store import Store
from trunkline.clock import Clock
from trunkline.jobs.face import JobFace
from trunkline.leads.ingest import PAYLOAD_BYTES_MAX
from trunkline.store.database import Database
from trunkline.store.leads import Lead

USUAL_BODY = BodyRule(bytes_max=1024 * 1024, timeout_s=10.0)


@dataclass(frozen=True, slots=True)
class Probe:
    """A dependency that `/ready` asks. `check` returns if it is well, and raises if not.

    Without a required one this process cannot do its work; without another it does it worse.
    """

    check: Callable[[], Awaitable[object]]
    required: bool


@dataclass(frozen=True, slots=True)
class ApiLimits:
    body: BodyRule = USUAL_BODY
    # By prefix of the path: uploads are larger and slower than other bodies, webhooks smaller.
    body_exceptions: Mapping[str, BodyRule] = field(default_factory=dict)
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    store_timeout_s: float = 5.0
    key_fresh_s: float = 10.0
    key_stale_s: float = 900.0
    probe_timeout_s: float = 2.0
    # A lead is in Postgres when this starts; the schedule may be slow or away, and the loader brings the lead.
    schedule_timeout_s: float = 1.0


@dataclass(frozen=True, slots=True)
class ApiDeps:
    database: Database
    clock: Clock
    # Called after the commit of a new lead, to put it into the schedule. It may fail.
    on_lead_accepted: Callable[[Lead], Awaitable[object]]
    probes: Mapping[str, Probe]
    # From the Accept header to a body and its content type.
    render_metrics: Callable[[str], tuple[bytes, str]]
    limits: ApiLimits = ApiLimits()
    # The carriers that a number may name; None takes any.
    carriers: frozenset[str] | None = None
    # Without it the routes of jobs and webhook endpoints answer that they are not available.
    jobs: JobFace | None = None


@dataclass(frozen=True, slots=True)
class Api:
    deps: ApiDeps
    store: Store
    verifier: KeyVerifier


async def _get_api(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


Deps = Annotated[Api, Depends(_get_api)]
