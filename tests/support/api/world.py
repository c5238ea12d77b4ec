"""The API on a real database, with two resellers to try it on.

    async with open_api(database_url) as world:
        answer = await world.merchant("a1").post("/api/v1/leads", {…})

Reseller `a` has the merchants `a1` and `a2`, reseller `b` has `b1`. There is a pool of the platform, `shared`, one of
each reseller, `a-pool` and `b-pool`, and one of each merchant, `a1-pool` and so on, with a number in each.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from fastapi import FastAPI

from tests.support.api.asgi import Answer, AsgiClient
from tests.support.waiting import eventually
from trunkline.api import key_format
from trunkline.api.admin_key import ensure_admin_key
from trunkline.api.application import create_api
from trunkline.api.deps import ApiDeps, ApiLimits, HealthProbe
from trunkline.api.paging import LAST_ID
from trunkline.api.principal import SCOPES
from trunkline.api.raw_routes import RawRoute
from trunkline.bus import connection as bus_connection
from trunkline.bus.keys import Keys
from trunkline.clock import SystemClock
from trunkline.control.flags import Flags
from trunkline.control.raising import raise_alarm
from trunkline.dispatch.checker import Resolution
from trunkline.jobs.platform.catalogue import JobsApi
from trunkline.jobs.wakeups import JobNotifier
from trunkline.mailbox.inbox import Inbox
from trunkline.model import new_id
from trunkline.schema.keys import NewKey, Scope
from trunkline.schema.mailbox_kinds import NewMailboxKind
from trunkline.schema.numbers import NewNumber, NewPool
from trunkline.schema.tenants import NewMerchant, NewReseller
from trunkline.schema.webhook_endpoints import NewWebhookEndpoint
from trunkline.store import (
    alarms,
    enrichments,
    keys,
    mailbox_kinds,
    mailboxes,
    numbers,
    tenants,
    webhook_endpoints,
)
from trunkline.store.alarms import AlarmFilter
from trunkline.store.database import Connection, Database, connect
from trunkline.store.enrichments import Enriched, NewItem
from trunkline.store.mailboxes import NewEvent
from trunkline.store.tenants import PLATFORM, Tenant
from trunkline.telemetry import metrics
from trunkline.telephony.accounts import AccountService, Vault
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.directory import CarrierDirectory
from trunkline.testing.clock import ManualClock

ADMIN_KEY = "admin-key-of-the-tests"
# No Valkey is needed: wakeups are hints, and nobody here waits for them.
NOBODY = "redis://127.0.0.1:1"
RESELLERS = ("a", "b")
MERCHANTS = {"a1": "a", "a2": "a", "b1": "b"}
_TENANTS: Mapping[str, Tenant] = {
    **{reseller_id: Tenant(reseller_id) for reseller_id in RESELLERS},
    **{merchant_id: Tenant(reseller_id, merchant_id) for merchant_id, reseller_id in MERCHANTS.items()},
}
POOLS: Mapping[str, Tenant] = {
    "shared": PLATFORM,
    **{f"{tenant_id}-pool": tenant for tenant_id, tenant in _TENANTS.items()},
}
_LOCK_WAITS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
_FINISHED_EXPORT = """
INSERT INTO job_history (id, created_at, priority, attempt_count, max_attempts, job_type, outcome,
                         reseller_id, merchant_id, result)
VALUES ($1, now(), 80, 1, 4, 'export', 'succeeded', $2, $3, $4)
"""
_ENDED_ATTEMPT = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, holds_channel, dialer, ended_at)
SELECT $1, l.id, 1, l.reseller_id, l.merchant_id, $3::text::uuid, 1, 'twilio', 'default', l.phone, '+14155550100',
       'ended', false, 'd', now()
FROM leads AS l WHERE l.id = $2
"""


@dataclass
class ApiWorld:
    database: Database
    app: FastAPI
    clock: ManualClock
    accepted: list[UUID]
    jobs: JobsApi
    numbers: dict[str, str] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def anybody(self) -> AsgiClient:
        return AsgiClient(self.app)

    @property
    def admin(self) -> AsgiClient:
        return AsgiClient(self.app, ADMIN_KEY)

    def tenant(self, tenant_id: str, scope: str = "admin") -> AsgiClient:
        """A client with a key of that reseller or merchant."""
        return AsgiClient(self.app, self.keys[tenant_id, scope])

    async def make_key(self, *scopes: str, **owner: str) -> str:
        made = await self.admin.post("/api/v1/keys", {"name": "test", "scopes": list(scopes), **owner})
        return str(expect(made, 201)["key"])

    async def make_lead(self, merchant_id: str, request_id: str = "r1", **more: object) -> dict[str, Any]:
        body = {"request_id": request_id, "merchant_id": merchant_id, "phone": "+14155550123", **more}
        return expect(await self.admin.post("/api/v1/leads", body), 201)

    async def objects_of(self, merchant_id: str) -> dict[str, str]:
        """One object of each kind that belongs to this merchant: path parameter to id."""
        made = await self.admin.post("/api/v1/campaigns", {"name": "Renewals", "merchant_id": merchant_id})
        campaign_id = str(expect(made, 201)["id"])
        lead = await self.make_lead(merchant_id, f"of-{merchant_id}", campaign_id=campaign_id)
        me = expect(await self.tenant(merchant_id).get("/api/v1/me"), 200)
        return {
            "reseller_id": MERCHANTS[merchant_id],
            "merchant_id": merchant_id,
            "pool_id": f"{merchant_id}-pool",
            "number_id": self.numbers[f"{merchant_id}-pool"],
            "key_id": me["key_id"],
            "lead_id": lead["id"],
            **await self._enrich_call(merchant_id, str(lead["id"])),
            "scope": "campaign",
            "subject": campaign_id,
            "flag": "event_dispatch",
            "alarm_id": await self._raise_alarm(merchant_id),
            "job_id": await self._finish_export(merchant_id),
            "job_type": "deliver_webhook",
            "endpoint_id": await self._add_endpoint(merchant_id),
            "campaign_id": campaign_id,
            "entry_id": await self._list_phone(merchant_id),
            "account_id": await self._add_account(merchant_id),
            **await self._add_mailbox(merchant_id),
            "pack_name": "us-tcpa",
            "reminder_id": await self._add_reminder(merchant_id),
        }

    async def _list_phone(self, merchant_id: str) -> str:
        body = {"phone": "+14155550199", "merchant_id": merchant_id}
        listed = await self.admin.post("/api/v1/do-not-call", body)
        assert listed.status in (200, 201)
        return str(listed.json()["id"])

    async def _enrich_call(self, merchant_id: str, lead_id: str) -> dict[str, str]:
        """A call of this lead that was recorded, and the recording fetched."""
        owner, attempt_id = _TENANTS[merchant_id], new_id()
        async with self.jobs.files.draft(f"recording-{attempt_id}") as draft:
            await draft.write(b"RIFF of a call")
        async with self.database.transaction() as tx:
            await tx.execute(_ENDED_ATTEMPT, attempt_id, UUID(lead_id), self.numbers[f"{merchant_id}-pool"])
            await enrichments.insert(tx, [NewItem(str(attempt_id), owner, "{}", attempt_id)])
            kept = Enriched(f"recording-{attempt_id}", "Hello. Goodbye.", '{"score": 3}')
            await enrichments.complete(tx, str(attempt_id), kept)
        return {"attempt_id": str(attempt_id), "item_id": str(attempt_id)}

    async def _raise_alarm(self, merchant_id: str) -> str:
        owner = _TENANTS[merchant_id]
        async with self.database.transaction() as tx:
            await raise_alarm(tx, "dead_jobs", f"of-{merchant_id}", tenant=owner)
            [alarm] = await alarms.list_alarms(tx, owner, AlarmFilter(), before=LAST_ID, limit=1)
        return str(alarm.id)

    async def _finish_export(self, merchant_id: str) -> str:
        """A job that is done, with a file."""
        owner, job_id = _TENANTS[merchant_id], new_id()
        async with self.jobs.files.draft(f"export-{job_id}.csv") as draft:
            await draft.write(b"id\r\n")
        async with self.database.connection() as connection:
            await connection.execute(
                _FINISHED_EXPORT, job_id, owner.reseller_id, merchant_id, f'{{"file":"export-{job_id}.csv"}}'
            )
        return str(job_id)

    async def _add_endpoint(self, merchant_id: str) -> str:
        endpoint_id, url = new_id(), f"https://{merchant_id}.example.com/hooks"
        async with self.database.transaction() as tx:
            owner = _TENANTS[merchant_id]
            new = NewWebhookEndpoint(url, reseller_id=owner.reseller_id, merchant_id=merchant_id)
            sealed = self.jobs.sealer.seal("whsec_c2VjcmV0")
            await webhook_endpoints.ENDPOINTS.insert(tx, new, id=endpoint_id, secret_sealed=sealed)
        return str(endpoint_id)

    async def _add_account(self, merchant_id: str) -> str:
        """Not the merchant's: accounts are the platform's alone."""
        credentials = {"account_sid": "AC1", "auth_token": "a token of the tests"}
        body = {"carrier": "twilio", "name": f"for-{merchant_id}", "credentials": credentials}
        return str(expect(await self.admin.post("/api/v1/accounts", body), 201)["id"])

    async def _add_mailbox(self, merchant_id: str) -> dict[str, str]:
        """With an event that waits."""
        kind, key = f"issue-{merchant_id}", f"issue of {merchant_id}"
        async with self.database.transaction() as tx:
            owner = _TENANTS[merchant_id]
            new = NewMailboxKind(kind, reseller_id=owner.reseller_id, merchant_id=merchant_id)
            await mailbox_kinds.KINDS.insert(tx, new, secret_sealed=self.jobs.sealer.seal("secret"))
            await mailboxes.append(tx, [NewEvent(kind, key, "first", "opened", {})])
        of_queue = {"queue_kind": "mailboxes", "queue_name": kind, "queue_item": key}
        return {"kind": kind, "key": key, **of_queue}

    async def _add_reminder(self, merchant_id: str) -> str:
        body = {
            "merchant_id": merchant_id,
            "phone": "+14155550123",
            "starts_at": "2090-05-01T09:00",
            "timezone": "UTC",
            "rrule": "FREQ=DAILY",
            "carrier": "twilio",
        }
        return str(expect(await self.admin.post("/api/v1/reminders", body), 201)["id"])

    async def somebody_waits_for_a_lock(self) -> None:
        """Wait until a statement of this database waits for another transaction."""

        async def waits() -> bool:
            async with self.database.connection() as connection:
                return bool(await connection.fetchval(_LOCK_WAITS))

        await eventually(waits, what="somebody waits for a lock")

    async def populate(self) -> None:
        """In one transaction, past the API: some forty rows for every test that asks for them."""
        async with self.database.transaction() as tx:
            for reseller_id in RESELLERS:
                await tenants.RESELLERS.insert(tx, NewReseller(reseller_id, f"Reseller {reseller_id}"))
            for merchant_id, reseller_id in MERCHANTS.items():
                merchant = NewMerchant(merchant_id, merchant_id, reseller_id=reseller_id)
                await tenants.MERCHANTS.insert(tx, merchant)
            for index, (pool_id, owner) in enumerate(POOLS.items()):
                ids = {"reseller_id": owner.reseller_id, "merchant_id": owner.merchant_id}
                await numbers.POOLS.insert(tx, NewPool(pool_id, pool_id), **ids)
                new = NewNumber(f"+1415555010{index}", pool=pool_id, carrier="twilio", max_channels=5)
                number = await numbers.NUMBERS.insert(tx, new, id=new_id(), **ids)
                assert number is not None
                self.numbers[pool_id] = str(number.id)
            for merchant_id in MERCHANTS:
                await tenants.MERCHANTS.update(tx, merchant_id, {"default_pool": f"{merchant_id}-pool"})
            for tenant_id, tenant in _TENANTS.items():
                for scope in SCOPES:
                    self.keys[tenant_id, scope] = await _insert_key(tx, tenant, scope)


async def _insert_key(tx: Connection, tenant: Tenant, scope: Scope) -> str:
    secret = key_format.mint()
    await keys.KEYS.insert(
        tx,
        NewKey("test", [scope], reseller_id=tenant.reseller_id, merchant_id=tenant.merchant_id),
        id=new_id(),
        key_hash=key_format.digest(secret),
        hint=key_format.hint(secret),
        created_by="test",
    )
    return secret


def expect(answer: Answer, status: int) -> dict[str, Any]:
    """The body of an answer that has this status."""
    assert answer.status == status, f"{answer.status}: {answer.body.decode(errors='replace')}"
    body: dict[str, Any] = answer.json() if answer.body else {}
    return body


def account_desk(database: Database) -> AccountService:
    secrets = ["secret of the tests" * 2]
    return AccountService(
        database,
        CarrierDirectory({}),
        Vault.from_secrets(secrets),
        CallbackKeys.from_secrets(secrets),
        "https://calls.example.com",
    )


@asynccontextmanager
async def open_api(
    database_url: str,
    *,
    populate: bool = True,
    limits: ApiLimits | None = None,
    raw_routes: tuple[RawRoute, ...] = (),
    probes: Mapping[str, HealthProbe] | None = None,
    free_dead_channels: Callable[[], Awaitable[int]] | None = None,
    resolve_unknown: Callable[[UUID], Awaitable[Resolution]] | None = None,
    flags: Flags | None = None,
) -> AsyncIterator[ApiWorld]:
    database = await connect(database_url, pool_size=4)
    clock = ManualClock(SystemClock().now())
    accepted: list[UUID] = []

    async def on_leads_accepted(lead_ids: Sequence[UUID]) -> None:
        accepted.extend(lead_ids)

    folder = TemporaryDirectory()
    bus = bus_connection.connect(NOBODY, Keys())
    inbox = Inbox(database, bus)
    jobs = JobsApi.build(JobNotifier(None), ["secret of the tests" * 2], Path(folder.name))
    deps = ApiDeps(
        database=database,
        clock=clock,
        on_leads_accepted=on_leads_accepted,
        probes=probes or {},
        render_metrics=metrics.render,
        limits=limits or ApiLimits(),
        jobs=jobs,
        accounts=account_desk(database),
        inbox=inbox,
        free_dead_channels=free_dead_channels,
        resolve_unknown=resolve_unknown,
        flags=flags,
    )
    world = ApiWorld(database, create_api(deps, raw_routes), clock, accepted, jobs)
    try:
        await ensure_admin_key(database, ADMIN_KEY)
        if populate:
            await world.populate()
        yield world
    finally:
        await inbox.aclose()
        await bus.close()
        await database.close()
        folder.cleanup()
