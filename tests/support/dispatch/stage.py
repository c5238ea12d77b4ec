"""The whole way of a call in one process, step by step: every loop is there and none runs by itself.

    async with open_stage(database_url, redis_url, key_prefix) as stage:
        lead = await stage.dialing.lead()
        await stage.dial()
        stage.carrier.orders                # what truly left for the carrier

The carrier is scripted: it answers what the test says, when the test says it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, cast
from uuid import UUID

from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.bus import channels, epoch
from trunkline.bus.connection import Bus
from trunkline.bus.connection import connect as connect_bus
from trunkline.bus.keys import Keys
from trunkline.clock import Clock, SystemClock
from trunkline.control.controls import Controls
from trunkline.dispatch.calls import KIND, CallFold
from trunkline.dispatch.carrier_responses import CarrierResponseWriter
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.checker import Checker, CheckLimits
from trunkline.dispatch.cooldowns import CooldownWriter
from trunkline.dispatch.dialer import Dialer, DialerLimits
from trunkline.dispatch.fallback import PostgresFallback
from trunkline.dispatch.grants import NoAgentsNeeded, RunPrecheck
from trunkline.dispatch.hang_ups import HangUps
from trunkline.dispatch.live_calls import LiveCalls
from trunkline.dispatch.loader import Loader, Rebuilder, Refiller
from trunkline.dispatch.overdialling import Overdialling
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.sender import Callbacks, Sender, SenderLimits, is_cancelled
from trunkline.dispatch.settlement import Settler
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.platform.catalogue import known_types
from trunkline.jobs.platform.enrichment import EnrichmentService
from trunkline.jobs.wakeups import JobNotifier
from trunkline.mailbox.inbox import Inbox
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store.database import Database
from trunkline.store.mailboxes import NewEvent
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import (
    Accepted,
    CallOrder,
    CallView,
    HangUpAsked,
    HangUpResult,
    Limits,
    ListPages,
    ListResult,
    LookUpResult,
    NoSuchCall,
    PlaceResult,
)
from trunkline.telephony.directory import AccountName, CarrierDirectory

ME = "stage"
SECRET = "a secret of the stage"
LIMITS = CheckLimits(request_timeout_s=5, ring_timeout_s=30, time_limit_s=3600)


class ScriptedCarrier:
    """Takes every call unless the test says otherwise, and knows of its calls what the test says."""

    name = "twilio"
    limits = Limits(starts_per_s=1000, queues_excess=True, list_lag_s=60, lists="live")

    def __init__(self) -> None:
        self.orders: list[CallOrder] = []
        self.answer: Callable[[CallOrder], Awaitable[PlaceResult]] = self.accept
        self.calls: ListResult = []
        self.found: dict[str, LookUpResult] = {}
        self.hung_up: list[str] = []
        self.lists_read = 0
        self.looked_up: list[str] = []

    async def accept(self, order: CallOrder) -> PlaceResult:
        return Accepted(f"CA-{order.attempt_id}")

    def says(self, *answers: PlaceResult) -> None:
        """These, one after the other; the last one from then on."""
        left = list(answers)

        async def next_one(_: CallOrder) -> PlaceResult:
            return left.pop(0) if len(left) > 1 else left[0]

        self.answer = next_one

    async def place(self, order: CallOrder) -> PlaceResult:
        self.orders.append(order)
        return await self.answer(order)

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        if not isinstance(self.calls, list):
            return self.calls
        return [
            call
            for call in self.calls
            if (call.to, call.from_) == (to, from_) and (call.created_at or datetime.now(UTC)) >= since
        ]

    async def live_calls(self, since: datetime) -> ListPages:
        """What the test says of them, by id; then what it lists."""
        self.lists_read += 1
        if not isinstance(self.calls, list):
            yield self.calls
            return
        found = [view for view in self.found.values() if isinstance(view, CallView) and view.state != "ended"]
        yield [*found, *self.calls]

    async def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        """Of those that the test says more of, by id."""
        found = [view for view in self.found.values() if isinstance(view, CallView)]
        yield [v for v in found if v.ended_at and since <= v.ended_at <= until]

    async def account_calls(self, since: datetime) -> ListPages:
        if not isinstance(self.calls, list):
            yield self.calls
            return
        yield [*(view for view in self.found.values() if isinstance(view, CallView)), *self.calls]

    async def look_up(self, call_id: str) -> LookUpResult:
        self.looked_up.append(call_id)
        return self.found.get(call_id, NoSuchCall())

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        self.hung_up.append(call_id)
        return HangUpAsked("completed")


class _OneCarrier:
    names: ClassVar[list[AccountName]] = []

    def __init__(self, carrier: ScriptedCarrier):
        self._carrier = carrier

    def get(self, carrier: str, account: str = "default") -> ScriptedCarrier:
        return self._carrier

    find = get


@dataclass
class Stage:
    dialing: Dialing
    bus: Bus
    carrier: ScriptedCarrier
    clock: Clock
    controls: Controls
    inbox: Inbox
    rebuilder: Rebuilder
    loader: Loader
    refiller: Refiller
    reconciler: ChannelReconciler
    checker: Checker
    live_calls: LiveCalls
    folder: MailboxWorker
    hang_ups: HangUps
    over: list[UUID]
    _dialers: list[Dialer] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.dialing.database

    @property
    def dialer(self) -> Dialer:
        return self._dialers[0]

    def another_dialer(
        self,
        *,
        database: Database | None = None,
        bus: Bus | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        precheck: RunPrecheck | None = None,
        late_max_s: float = 30.0,
        **limits: Any,
    ) -> Dialer:
        """One more, which may see its engines and clocks in its own way. It is patient: on a busy machine an intent may
        take longer than half a second, and then nothing would be sent."""
        database, bus, clock = database or self.database, bus or self.bus, clock or self.clock
        name = name or f"{ME}-{len(self._dialers) + 1}"
        cooldowns = CooldownWriter(database, name)
        sender = Sender(
            clock,
            self.directory,
            Callbacks("http://trunkline.test", CallbackKeys.from_secrets([SECRET])),
            CarrierResponseWriter(database, Settler(bus, Policies(fresh_s=0)), cooldowns),
            SenderLimits(late_max_s=late_max_s),
            killed=self.controls.killed,
            unwanted=partial(is_cancelled, database),
            unreachable=cooldowns.unreachable,
        )
        dialer = Dialer(
            database,
            bus,
            clock,
            sender,
            name,
            self.dialing.rules(overdialling=Overdialling(), unreachable=cooldowns.unreachable),
            DialerLimits(**limits),
            precheck,
            PostgresFallback(lambda reseller_id, merchant_id: True, "dialer"),
            NoAgentsNeeded(),
        )
        self._dialers.append(dialer)
        return dialer

    @property
    def directory(self) -> CarrierDirectory:
        return cast(CarrierDirectory, _OneCarrier(self.carrier))

    async def dial(self, dialer: Dialer | None = None) -> int:
        """Bring what is due, match, send, and write down the answers; how many calls were sent."""
        await self.loader.run_once()
        sent = await (dialer or self.dialer).run_once()
        await (dialer or self.dialer).drain()
        return sent

    async def told(self, attempt: UUID, *kinds: str, call_id: str | None = None, **more: Any) -> None:
        """The carrier's webhooks of a call, in this order, and folded."""
        for kind in kinds:
            await self.inbox.append(event(attempt, kind, call_id or f"CA-{attempt}", **more))
        await self.folder.drain()

    async def age(self, attempt: UUID, seconds: float) -> None:
        """Let time pass since it was sent, and let somebody look at it now."""
        await self.dialing.run(
            "UPDATE attempts SET intent_at = intent_at - d, send_at = send_at - d, next_check_at = now()"
            " FROM make_interval(secs => $2) AS d WHERE id = $1",
            attempt,
            seconds,
        )

    async def attempts(self, lead: UUID) -> list[dict[str, Any]]:
        async with self.database.connection() as conn:
            rows = await conn.fetch("SELECT * FROM attempts WHERE lead_id = $1 ORDER BY id", lead)
        return [dict(row) for row in rows]

    async def attempt(self, lead: UUID) -> dict[str, Any]:
        (only,) = await self.attempts(lead)
        return only

    async def lead(self, lead: UUID) -> dict[str, Any]:
        return await self.dialing.lead_row(lead)

    async def due_now(self, *leads: UUID) -> None:
        """As if their time had come; an edit, so with a new version."""
        await self.dialing.run(
            "UPDATE leads SET due_at = now(), version = version + 1 WHERE id = ANY($1)", list(leads)
        )

    async def held(self) -> set[UUID]:
        """Who holds a channel, as Valkey has it."""
        return {holder.attempt_id for holder in await channels.holders(self.bus)}

    async def truly_held(self) -> set[UUID]:
        async with self.database.connection() as conn:
            return {row["id"] for row in await conn.fetch("SELECT id FROM attempts WHERE holds_channel")}

    async def forget(self) -> None:
        """Everything that Valkey knew of this domain is gone."""
        keys = self.bus.keys
        async for key in self.bus.client.scan_iter(match=f"{keys.prefix}:{{{keys.domain}}}:*"):
            await self.bus.client.delete(key)

    async def known_leads(self) -> dict[str, str]:
        await epoch.ensure(self.bus)
        found: dict[str, str] = await self.bus.read(self.bus.client.hgetall(self.bus.projection.leads))
        return found


def event(attempt: UUID, kind: str, call_id: str, **more: Any) -> NewEvent:
    at = more.get("at") or datetime.now(UTC)
    return NewEvent(
        kind=KIND,
        key=str(attempt),
        dedupe_key=more.get("dedupe_key") or f"{call_id}:{kind}",
        type=kind,
        payload={
            "kind": kind,
            "call_id": call_id,
            "at": at.isoformat(),
            "reason": more.get("reason", "completed" if kind == "ended" else None),
            "duration_s": more.get("duration_s"),
            "fault": more.get("fault"),
            "answered_by": more.get("answered_by"),
            "agent_joined": more.get("agent_joined"),
            "raw": {},
        },
    )


@asynccontextmanager
async def open_stage(
    database_url: str, redis_url: str, key_prefix: str, *, clock: Clock | None = None, enriches: bool = False
) -> AsyncIterator[Stage]:
    """With a memory that is built, one number of ten channels, and nothing to do."""
    async with open_dialing(database_url) as dialing:
        bus = connect_bus(redis_url, Keys(prefix=key_prefix))
        clock = clock or SystemClock()
        controls = Controls(clock)
        controls.read(await dialing.now(), ())
        carrier = ScriptedCarrier()
        directory = cast(CarrierDirectory, _OneCarrier(carrier))
        inbox = Inbox(dialing.database, bus)
        ended: list[UUID] = []
        enrichment = EnrichmentService(Outbox(known_types(), JobNotifier(None))) if enriches else None

        async def note_over(attempt_ids: Sequence[UUID]) -> None:
            ended.extend(attempt_ids)

        settler = Settler(bus, Policies(fresh_s=0), note_over)
        stage = Stage(
            dialing,
            bus,
            carrier,
            clock,
            controls,
            inbox,
            Rebuilder(dialing.database, bus, controls),
            Loader(dialing.database, bus),
            Refiller(dialing.database, bus),
            ChannelReconciler(dialing.database, bus, controls, grant_ttl_s=5),
            Checker(dialing.database, SystemClock(), directory, inbox, LIMITS, settler),
            LiveCalls(dialing.database, SystemClock(), directory, inbox),
            MailboxWorker(
                dialing.database,
                bus,
                CallFold(settler, CooldownWriter(dialing.database, ME), enrichment),
                ME,
                WorkerLimits(),
            ),
            HangUps(dialing.database, directory),
            ended,
        )
        stage.another_dialer(name=ME)
        await stage.rebuilder.run_once()
        try:
            yield stage
        finally:
            await asyncio.gather(*(dialer.drain() for dialer in stage._dialers))
            await inbox.aclose()
            await bus.close()
