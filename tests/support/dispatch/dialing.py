"""A database with something to dial, for tests of what happens between a grant and a committed attempt.

async with open_dialing(database_url) as dialing:
    lead = await dialing.lead("+14155550123")
    intents = await dialing.intend(dialing.grant(lead))
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from tests.support.waiting import eventually
from trunkline.dispatch.cooldowns import CarrierUnreachable
from trunkline.dispatch.gates import AgentRule
from trunkline.dispatch.intent import IntentBatch, Intents, Rules, intend
from trunkline.dispatch.overdialling import Overdialling
from trunkline.dispatch.policy_cache import Policies
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import Grant, Slot, new_id
from trunkline.store.database import Connection, Database, connect

T = TypeVar("T")

ME = "dialer-of-the-tests"
# Every call needs an agent of ours, but for carriers that bring their own.
AGENTS_OURS = AgentRule(are_elsewhere=False, carriers_without_streams=frozenset({"vapi"}))


@dataclass
class Dialing:
    """Reseller `r` with the merchants `m` and `n`, one pool, and one number of fifty channels."""

    database: Database
    url: str
    number: UUID = field(default_factory=new_id)
    _made: int = 0
    _channel: int = 0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def value(self, sql: str, *args: object) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(sql, *args)

    async def row(self, sql: str, *args: object) -> dict[str, Any]:
        async with self.database.connection() as conn:
            found = await conn.fetchrow(sql, *args)
        assert found is not None
        return dict(found)

    async def run(self, sql: str, *args: object) -> None:
        async with self.database.connection() as conn:
            await conn.execute(sql, *args)

    async def now(self) -> datetime:
        found: datetime = await self.value("SELECT clock_timestamp()")
        return found

    async def add_number(self, *, max_channels: int = 50, account: str = "default", **more: object) -> UUID:
        number, self._made = new_id(), self._made + 1
        await self.run(
            "INSERT INTO numbers (id, e164, pool_id, carrier, account, max_channels, starts_per_s)"
            " VALUES ($1, $2, 'p', 'twilio', $3, $4, $5)",
            number,
            f"+1415555{self._made:04d}",
            account,
            max_channels,
            more.get("starts_per_s"),
        )
        if more.get("is_proven", True):
            await self.prove("twilio", account)
        return number

    async def prove(self, carrier: str, account: str = "default") -> None:
        """It has just taken a call, so it need not begin with a probe."""
        await self.run(
            "INSERT INTO carrier_health (carrier, account, taken_at) VALUES ($1, $2, clock_timestamp())"
            " ON CONFLICT (carrier, account) DO UPDATE SET taken_at = EXCLUDED.taken_at",
            carrier,
            account,
        )

    async def lead(
        self, phone: str | None = None, merchant: str = "m", *, due_in_s: float = -1, **more: object
    ) -> UUID:
        lead, self._made = new_id(), self._made + 1
        await self.run(
            "INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id,"
            " scheduled_at, due_at, max_attempts, campaign_id, timezone)"
            " SELECT $1::uuid, 'r', $2, $1::uuid::text, sha256($1::uuid::text::bytea), $3, 'p', t, t, $5, $6, $7"
            " FROM (SELECT clock_timestamp() + make_interval(secs => $4) AS t) AS due",
            lead,
            merchant,
            phone or f"+1212555{self._made:04d}",
            due_in_s,
            more.get("max_attempts", 3),
            more.get("campaign_id"),
            more.get("timezone"),
        )
        return lead

    async def leads(self, count: int, **more: Any) -> list[UUID]:
        return [await self.lead(**more) for _ in range(count)]

    def grant(
        self, lead: UUID, channel: int | None = None, *, number: UUID | None = None, **more: Any
    ) -> Grant:
        """On the next free channel, unless one is named."""
        self._channel += 1
        return Grant(
            new_id(), lead, more.pop("version", 1), number or self.number, channel or self._channel, 0, **more
        )

    async def attempt(
        self, phone: str, *, state: str = "ended", ago_s: float = 0, merchant: str = "m", **more: Any
    ) -> UUID:
        """A call of the past, or one that is live, with a lead of its own."""
        lead = await self.lead(phone, merchant, campaign_id=more.get("campaign_id"))
        live = state in ("dialing", "in_doubt", "accepted", "ringing", "answered")
        attempt = new_id()
        self._channel += 1
        await self.run(
            "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id,"
            " channel_no, carrier, account, to_phone, from_phone, dialer, state, holds_channel, intent_at,"
            " send_at, answered_at, next_check_at, reserved_micros)"
            " SELECT $1::uuid, $2::uuid, 1, 'r', $3, $4::uuid, $5::uuid, $6::int, n.carrier, n.account, $7, $8,"
            " 'another', $9, $10, t, t, $12,"
            " t + interval '1 hour', $13 FROM numbers AS n,"
            " (SELECT clock_timestamp() - make_interval(secs => $11) AS t) AS moment WHERE n.id = $5",
            attempt,
            lead,
            merchant,
            more.get("campaign_id"),
            more.get("number", self.number),
            more.get("channel", self._channel),
            phone,
            more.get("from_phone", f"+1999{self._made:07d}"),
            state,
            more.get("holds", live),
            ago_s,
            more.get("answered_at"),
            more.get("reserved_micros", 0),
        )
        await self.run(
            "UPDATE leads SET status = 'FINISHED', outcome = 'X', finished_at = now() WHERE id = $1", lead
        )
        return attempt

    async def policy(self, policy: CallingPolicy, scope: str = "merchant", subject: str = "m") -> None:
        await self.run(
            "INSERT INTO policies (scope, subject, policy, updated_by) VALUES ($1, $2, $3, 'test')"
            " ON CONFLICT (scope, subject) DO UPDATE"
            " SET policy = EXCLUDED.policy, version = policies.version + 1",
            scope,
            subject,
            policy.model_dump(mode="json", exclude_unset=True),
        )

    async def intend(self, *grants: Grant, slots: Mapping[UUID, Slot] | None = None, **rules: Any) -> Intents:
        return await intend(self.database, grants, ME, self.rules(**rules), slots=slots or {})

    async def pod(self, name: str, *, tier: str = "standard", calls_max: int = 1, **more: object) -> Slot:
        """A pod that was just heard; its first slot."""
        incarnation = await self.value(
            "INSERT INTO pods (name, tier, calls_max, base_url, sequence, interval_s) VALUES ($1, $2, $3, $4, 1, 5)"
            " RETURNING incarnation",
            name,
            tier,
            calls_max,
            more.get("base_url", f"ws://{name}.example.com"),
        )
        return Slot(name, 1, incarnation, f"pool:{tier}")

    async def kept(self, phone: str, slot: Slot, *, state: str = "ringing") -> UUID:
        """A live attempt of an intent that kept this slot."""
        lead = await self.lead(phone)
        grant = self.grant(lead)
        intents = await self.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
        (intent,) = intents.committed
        if state != "dialing":
            await self.run("UPDATE attempts SET state = $2 WHERE id = $1", intent.attempt_id, state)
        return intent.attempt_id

    def rules(self, **given: Any) -> Rules:
        """Policies are read anew every time, so that a test sees what it wrote."""
        usual: dict[str, Any] = {
            "policies": Policies(fresh_s=0),
            "stopped": lambda *target: None,
            "guardian": SimpleNamespace(mark=None),
            "account_pace": lambda carrier, account: None,
            "agents": AgentRule(),
            "overdialling": Overdialling(fresh_s=0),
            "unreachable": CarrierUnreachable(),
        }
        return Rules(**usual | given)

    async def open_transaction(self) -> Connection:
        """A connection of its own with a transaction that the test ends: see `commit`."""
        connection = await self._stack.enter_async_context(self.database.pool.acquire())
        await connection.execute("BEGIN")
        return connection

    async def commit(self, connection: Connection) -> None:
        await connection.execute("COMMIT")

    async def half_an_intent(
        self, *grants: Grant, slots: Mapping[UUID, Slot] | None = None, **rules: Any
    ) -> tuple[Connection, IntentBatch]:
        """Another dialer's intent, written and not yet committed."""
        connection = await self.open_transaction()
        batch = IntentBatch(grants, "another dialer", self.rules(**rules), slots or {})
        await batch.write(connection, 5000)
        # The time-out of the transaction would end it while the test thinks.
        await connection.execute("SET LOCAL transaction_timeout = 0")
        return connection, batch

    async def blocked(self, work: Awaitable[T]) -> "asyncio.Task[T]":
        """Start it, and wait until Postgres says that it waits for a lock."""
        task = asyncio.ensure_future(work)

        async def waits() -> bool:
            return task.done() or bool(await self.waiting())

        await eventually(waits, what="somebody waits for a lock")
        assert not task.done(), f"it did not wait: {task.result()!r}"
        return task

    async def waiting(self) -> int:
        count: int = await self.value(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return count

    async def state_of(self, attempt: UUID) -> str | None:
        state: str | None = await self.value("SELECT state FROM attempts WHERE id = $1", attempt)
        return state

    async def lead_row(self, lead: UUID) -> dict[str, Any]:
        return await self.row("SELECT * FROM leads WHERE id = $1", lead)


@asynccontextmanager
async def open_dialing(database_url: str) -> AsyncIterator[Dialing]:
    database = await connect(database_url, pool_size=8)
    dialing = Dialing(database, database_url)
    try:
        await dialing.run("INSERT INTO resellers (id, name) VALUES ('r', 'r')")
        await dialing.run(
            "INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'm'), ('n', 'r', 'n')"
        )
        await dialing.run("INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'p')")
        dialing.number = await dialing.add_number()
        async with dialing._stack:
            yield dialing
    finally:
        await database.close()
