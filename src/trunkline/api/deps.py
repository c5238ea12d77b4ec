"""The dependencies of the API and of its routes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

from fastapi import Depends
from starlette.requests import Request

from trunkline.api.auth import API_ROOT
from trunkline.api.body_guard import BodyRule
from trunkline.api.key_verifier import KeyVerifier
from trunkline.api.store import Store
from trunkline.clock import Clock
from trunkline.control.flags import Flags
from trunkline.dispatch.checker import Resolution
from trunkline.dispatch.why import DEFAULT_VIEW, DispatchView
from trunkline.jobs.platform.catalogue import JobsApi
from trunkline.leads.ingest import PAYLOAD_BYTES_MAX
from trunkline.mailbox.inbox import Inbox
from trunkline.store.database import Database
from trunkline.telephony.accounts import AccountService

USUAL_BODY = BodyRule(bytes_max=1024 * 1024, timeout_s=10.0)
# 100,000 leads of 1 KB each, over a slow connection.
UPLOAD_BODY = BodyRule(bytes_max=100 * 1024 * 1024, timeout_s=300.0)
# A million rows of a campaign.
CAMPAIGN_BODY = BodyRule(bytes_max=1024 * 1024 * 1024, timeout_s=1800.0)
UPLOADS = {
    f"{API_ROOT}/leads/bulk": UPLOAD_BODY,
    f"{API_ROOT}/campaigns/plan": UPLOAD_BODY,
    f"{API_ROOT}/campaigns/*/leads": CAMPAIGN_BODY,
    # The same through the console.
    "/console/upload/leads": UPLOAD_BODY,
    "/console/upload/campaigns": CAMPAIGN_BODY,
}
# Each shares the event loop with all other requests; further ones wait without being read.
UPLOADS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class HealthProbe:
    """A dependency that `/ready` checks. `check` returns if it is healthy, and raises if not.

    Without a required one this process cannot work, nor without all alternatives; without another it is degraded.
    """

    check: Callable[[], Awaitable[object]]
    required: bool = False
    # One of all alternatives is enough.
    is_alternative: bool = False


@dataclass(frozen=True, slots=True)
class ApiLimits:
    body: BodyRule = USUAL_BODY
    # By prefix of the path: uploads are larger and slower than other bodies, webhooks smaller.
    body_exceptions: Mapping[str, BodyRule] = field(default_factory=lambda: dict(UPLOADS))
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    store_timeout_s: float = 5.0
    key_fresh_s: float = 10.0
    key_stale_s: float = 900.0
    probe_timeout_s: float = 2.0
    # A lead is in Postgres before this; if Valkey is slow or away, the loader schedules the lead.
    schedule_timeout_s: float = 1.0


@dataclass(frozen=True, slots=True)
class ReminderRules:
    """How far ahead occurrences are created, and the default number of attempts."""

    horizon_s: float = 120.0
    attempts_max: int = 3


@dataclass(frozen=True, slots=True)
class ApiDeps:
    database: Database
    clock: Clock
    # Called after the commit of new or changed leads, to schedule them. It may fail.
    on_leads_accepted: Callable[[Sequence[UUID]], Awaitable[object]]
    probes: Mapping[str, HealthProbe]
    # From the Accept header to a body and its content type.
    render_metrics: Callable[[str], tuple[bytes, str]]
    limits: ApiLimits = ApiLimits()
    # The carriers that a number may have; None accepts any.
    carriers: frozenset[str] | None = None
    # Without it the routes of jobs and webhook endpoints respond 503.
    jobs: JobsApi | None = None
    # Without it those of accounts respond 503.
    accounts: AccountService | None = None
    # Without it those that append to mailboxes respond 503.
    inbox: Inbox | None = None
    # Frees the channels that Valkey holds for attempts that Postgres does not have. Returns how many. None: not here.
    free_dead_channels: Callable[[], Awaitable[int]] | None = None
    # Queries the carrier once more about an attempt of unknown outcome. None: not here.
    resolve_unknown: Callable[[UUID], Awaitable[Resolution]] | None = None
    reminders: ReminderRules = ReminderRules()
    # What a dialer reads beside Postgres, for the route that explains why a lead is not called.
    dispatch: DispatchView = DEFAULT_VIEW
    # How the platform itself evaluates flags. Without it the flags of Postgres.
    flags: Flags | None = None


@dataclass(frozen=True, slots=True)
class Api:
    deps: ApiDeps
    store: Store
    verifier: KeyVerifier
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS_AT_ONCE))


async def _get_api(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


Deps = Annotated[Api, Depends(_get_api)]
