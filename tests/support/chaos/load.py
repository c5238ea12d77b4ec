"""Tenants who use the platform while it breaks: they create leads, run campaigns and reminders, and edit.

Whatever they were answered is in the diary, with the moments at which they asked and had the answer. An answer that
never came is no promise: then the diary has the question alone.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import aiohttp

from tests.support.chaos import application, tenancy
from tests.support.chaos.machine import World
from tests.support.hurry import AWAY
from tests.support.world import ADMIN_KEY
from trunkline.client import ApiError, TrunklineClient, Unreachable
from trunkline.jobs import Jobs
from trunkline.mailbox import Mailboxes

T = TypeVar("T")

# A tenant asks again after this, for as long as the installation has to become healthy.
AGAIN_S, PATIENCE_S = 0.3, 60.0
FIRST_PHONE, FIRST_CALLER = 2_000_000, 7_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    what: str
    subject: str
    asked_s: float
    # None: nobody answered, or not yet.
    answered_s: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Diary:
    entries: list[Entry] = field(default_factory=list)

    def note(self, what: str, subject: str, asked_s: float, answered_s: float | None, **detail: Any) -> None:
        self.entries.append(Entry(what, subject, asked_s, answered_s, detail))

    def of(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.what == what]


class Tenants:
    def __init__(self, world: World):
        self._world = world
        self._chance = random.Random(world.plan.seed + 1_000_003)
        self._phones = count(FIRST_PHONE)
        self._callers = count(FIRST_CALLER)
        self._numbers = count()
        self.diary = Diary()
        self._is_over = asyncio.Event()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Diary]:
        """For the length of the block. At its end everybody finishes what they began, which may take healing."""
        actors = (
            self._singles, self._bulks, self._campaigns, self._closed_campaign, self._reminders, self._callers_ring,
            self._application, self._edits,
        )  # fmt: skip
        tasks = [asyncio.create_task(actor(), name=actor.__name__) for actor in actors]
        try:
            yield self.diary
        finally:
            self._is_over.set()
            done, late = await asyncio.wait(tasks, timeout=PATIENCE_S)
            for task in late:
                task.cancel()
            for task in done:
                task.result()
            if late:
                names = ", ".join(sorted(task.get_name() for task in late))
                raise AssertionError(f"tenants are not answered {PATIENCE_S:g} s after healing: {names}")

    # Leads

    async def _singles(self) -> None:
        while await self._pause(0.08, 0.2):
            merchant = self._chance.choices(tenancy.MERCHANTS, (5, 3, 2))[0]
            later_s = self._chance.choice((0.0, 0.0, 0.0, 1.5, 3.0))
            await self._create_lead(merchant, later_s)

    async def _create_lead(self, merchant: str, later_s: float = 0.0) -> str:
        request_id, phone, asked_s = f"single-{next(self._numbers)}", self._phone(), time.time()
        due = datetime.now(UTC) + timedelta(seconds=later_s)
        lead = await self._until_answered(
            lambda client: client.create_lead(
                merchant_id=merchant, phone=phone, request_id=request_id, scheduled_at=due, max_attempts=2
            )
        )
        self.diary.note("lead", str(lead.id), asked_s, time.time(), phone=phone, merchant=merchant)
        return str(lead.id)

    async def _bulks(self) -> None:
        while await self._pause(1.5, 3.0):
            rows = [
                {
                    "merchant_id": tenancy.SHOP,
                    "phone": self._phone(),
                    "request_id": f"bulk-{next(self._numbers)}",
                    "max_attempts": 2,
                }
                for _ in range(8)
            ]
            await self._create_leads(rows)

    async def _create_leads(self, rows: Sequence[Mapping[str, Any]]) -> None:
        asked_s = time.time()
        await self._until_answered(lambda client: client.create_leads(rows))
        for row in rows:
            self.diary.note("bulk row", str(row["request_id"]), asked_s, time.time(), phone=row["phone"])

    # Campaigns and reminders

    async def _campaigns(self) -> None:
        while await self._pause(0.2, 1.5):
            await self._run_campaign(await self._start_campaign(tenancy.CAMPAIGN_POLICY, 10))

    async def _run_campaign(self, campaign_id: str) -> None:
        await self._pause(0.8, 1.6)
        await self._stop_for_a_while(
            "campaign",
            campaign_id,
            lambda client: client.pause_campaign(campaign_id, "chaos"),
            lambda client: client.resume_campaign(campaign_id),
        )
        if self._chance.random() < 0.5:
            asked_s = time.time()
            await self._until_answered(lambda client: client.stop_campaign(campaign_id, "chaos"))
            self.diary.note("campaign stopped", campaign_id, asked_s, time.time())

    async def _closed_campaign(self) -> None:
        """Nobody of it may be called now."""
        if await self._pause(0.5, 3.0):
            campaign_id = await self._start_campaign(tenancy.CLOSED_POLICY, 3)
            self.diary.note("campaign closed", campaign_id, time.time(), time.time())

    async def _start_campaign(self, policy: Mapping[str, Any], rows: int) -> str:
        request_id, asked_s = f"campaign-{next(self._numbers)}", time.time()
        campaign = await self._until_answered(
            lambda client: client.create_campaign(
                request_id, merchant_id=tenancy.SHOP, policy=policy, max_attempts=2, request_id=request_id
            )
        )
        phones = [self._phone() for _ in range(rows)]
        text = "phone,request_id\n" + "".join(f"{phone},{request_id}-{n}\n" for n, phone in enumerate(phones))
        await self._until_answered(
            lambda client: client.upload_campaign(campaign.id, _streamed(text.encode()), "text/csv")
        )
        await self._until_answered(lambda client: client.start_campaign(campaign.id), forgive=(409,))
        self.diary.note("campaign", str(campaign.id), asked_s, time.time(), phones=phones)
        return str(campaign.id)

    async def _reminders(self) -> None:
        while await self._pause(2.0, 4.0):
            await self._create_reminder(f"reminder-{next(self._numbers)}", self._phone())

    async def _create_reminder(self, request_id: str, phone: str) -> None:
        """One whose moment passes before it is taken is refused, which is no promise."""
        asked_s = time.time()
        at = (datetime.now(UTC) + timedelta(seconds=2)).replace(tzinfo=None)
        rrule = self._chance.choice((None, "FREQ=DAILY;COUNT=3"))
        reminder = await self._until_answered(
            lambda client: client.create_reminder(
                phone,
                at,
                "UTC",
                merchant_id=tenancy.SHOP,
                rrule=rrule,
                message="chaos",
                request_id=request_id,
            ),
            forgive=(422,),
        )
        if reminder is not None:
            self.diary.note("reminder", str(reminder.id), asked_s, time.time(), phone=phone)

    async def _callers_ring(self) -> None:
        world = self._world
        while await self._pause(0.8, 1.8):
            number = self._chance.choice(tenancy.INBOUND)
            carrier = tenancy.NUMBERS[number][0]
            urls = world.tenancy.urls[carrier]
            caller = f"+1650{next(self._callers)}"
            world.carrier.ring(
                carrier, number, caller, inbound_url=urls["inbound"], status_url=urls["status"]
            )
            self.diary.note("ring", caller, time.time(), None, number=number)

    # The application

    async def _application(self) -> None:
        world = self._world
        jobs = Jobs(world.database_url, [application.WORK, application.KEYED], schema=application.SCHEMA)
        prefix = f"{world.domain}-app"
        mailboxes = Mailboxes(
            world.database_url, world.engines.redis_url, prefix=prefix, schema=application.SCHEMA
        )
        try:
            while await self._pause(0.05, 0.2):
                with suppress(*AWAY):
                    await self._ask_application(jobs, mailboxes)
        finally:
            await asyncio.to_thread(jobs.close)
            await asyncio.to_thread(mailboxes.close)

    async def _ask_application(self, jobs: Jobs, mailboxes: Mailboxes) -> None:
        name, key = str(next(self._numbers)), f"k{self._chance.randrange(application.KEYS)}"
        asked = "INSERT INTO public.app_asked (what, key, name) VALUES ($1, $2, $3)"
        async with self._world.database.transaction() as tx:
            match self._chance.choice(("job", "keyed", "event", "event")):
                case "job":
                    await tx.execute(asked, "job", "", name)
                    do = self._chance.choice(("plain", "fails"))
                    await jobs.enqueue(tx, application.WORK, application.Work(name, do=do))
                case "keyed":
                    await tx.execute(asked, "job", key, name)
                    work = application.Work(name, key)
                    await jobs.enqueue(tx, application.KEYED, work, concurrency_key=key)
                case _:
                    # The mailbox is locked by the append, so that rows of one key are numbered in the order of events.
                    await mailboxes.append(
                        tx, application.MAILBOX, key, "moved", {"name": name}, dedupe_key=name
                    )
                    await tx.execute(asked, "event", key, name)

    # Edits

    async def _edits(self) -> None:
        edits = (
            self._abort, self._opt_out, self._lower_channels, self._move_number, self._change_tier,
            self._change_policy, self._use_and_revoke_key, self._rotate_password, self._stop_everything,
            self._stop_merchant, self._stop_number,
        )  # fmt: skip
        while await self._pause(0.3, 0.9):
            await self._chance.choice(edits)()

    async def _abort(self) -> None:
        lead_id = await self._create_lead(tenancy.SHOP, later_s=self._chance.uniform(0.3, 2.5))
        await self._pause(0.2, 1.5)
        asked_s = time.time()
        await self._until_answered(lambda client: client.abort_lead(lead_id, "chaos"), forgive=(409,))
        self.diary.note("aborted", lead_id, asked_s, time.time())

    async def _opt_out(self) -> None:
        later_s = self._chance.uniform(0.5, 2.5)
        lead_id = await self._create_lead(tenancy.SHOP, later_s)
        phone = self.diary.of("lead")[-1].detail["phone"]
        asked_s = time.time()
        await self._until_answered(
            lambda client: client.add_do_not_call_entry(phone, merchant_id=tenancy.SHOP), forgive=(409,)
        )
        self.diary.note("opted out", phone, asked_s, time.time(), lead=lead_id)

    async def _lower_channels(self) -> None:
        e164 = self._chance.choice(("+14155550101", "+14155550102"))
        channels = tenancy.NUMBERS[e164][2]
        number_id = self._world.tenancy.number_ids[e164]
        for now in (self._chance.randint(1, channels - 1), channels):
            asked_s = time.time()
            await self._until_answered(partial(_update_number, number_id, max_channels=now))
            self.diary.note("channels", e164, asked_s, time.time(), max_channels=now)
            await self._pause(0.8, 1.6)

    async def _move_number(self) -> None:
        """An idle one, to the pool that is dialled from, and back."""
        number_id = self._world.tenancy.number_ids["+14155550104"]
        for pool in (tenancy.POOL, tenancy.SPARE_POOL):
            asked_s = time.time()
            await self._until_answered(partial(_update_number, number_id, pool=pool), forgive=(409,))
            self.diary.note("moved", "+14155550104", asked_s, time.time(), pool=pool)
            await self._pause(0.8, 2.0)

    async def _change_tier(self) -> None:
        asked_s, merchant = time.time(), self._chance.choice((tenancy.SHOP, tenancy.CLINIC))
        await self._put(f"/api/v1/router/merchants/{merchant}", {"tier": "standard"})
        self.diary.note("tier", merchant, asked_s, time.time())

    async def _change_policy(self) -> None:
        asked_s = time.time()
        body = {**tenancy.CLINIC_POLICY, "recent_contact": {"cooldown_h": self._chance.randint(1, 48)}}
        await self._put(f"/api/v1/merchants/{tenancy.CLINIC}/policy", body)
        self.diary.note("policy", tenancy.CLINIC, asked_s, time.time())

    async def _use_and_revoke_key(self) -> None:
        """A merchant's key shows only what is the merchant's. Whether it is refused at the end, the run asks."""
        made = await self._until_answered(
            lambda client: client.create_key("chaos", ["leads", "read"], merchant_id=tenancy.CLINIC)
        )
        async with TrunklineClient(self._world.url, made.key, timeout_s=5) as own:
            with suppress(ApiError, Unreachable):
                seen = [lead async for lead in own.list_leads()]
                strangers = [str(lead.id) for lead in seen if lead.merchant_id != tenancy.CLINIC]
                self.diary.note("listed", tenancy.CLINIC, time.time(), time.time(), strangers=strangers)
        asked_s = time.time()
        await self._until_answered(lambda client: client.revoke_key(made.id))
        self.diary.note("key revoked", str(made.id), asked_s, time.time(), key=made.key)

    async def _rotate_password(self) -> None:
        asked_s, carrier = time.time(), self._chance.choice(("twilio", "plivo", "exotel"))
        account_id = self._world.tenancy.account_ids[carrier]
        credentials = dict(tenancy.CREDENTIALS[carrier])  # type: ignore[index]
        await self._until_answered(lambda client: client.update_account(account_id, credentials=credentials))
        self.diary.note("password", carrier, asked_s, time.time())

    async def _stop_everything(self) -> None:
        await self._stop_for_a_while(
            "everything",
            "",
            lambda client: client.set_kill_switch(reason="chaos"),
            lambda client: client.lift_kill_switch(reason="chaos", ramp_s=0),
        )

    async def _stop_merchant(self) -> None:
        merchant = self._chance.choice((tenancy.SHOP, tenancy.CLINIC))
        await self._stop_for_a_while(
            "merchant",
            merchant,
            lambda client: client.set_control("merchant", merchant, reason="chaos"),
            lambda client: client.lift_control("merchant", merchant, reason="chaos", ramp_s=0),
        )

    async def _stop_number(self) -> None:
        e164 = self._chance.choice(("+14155550101", "+14155550102", "+14155550103"))
        number_id = self._world.tenancy.number_ids[e164]
        await self._stop_for_a_while(
            "number",
            e164,
            lambda client: client.set_control("number", number_id, reason="chaos"),
            lambda client: client.lift_control("number", number_id, reason="chaos", ramp_s=0),
        )

    async def _stop_for_a_while(
        self,
        what: str,
        subject: str,
        stop: Callable[[TrunklineClient], Awaitable[Any]],
        lift: Callable[[TrunklineClient], Awaitable[Any]],
    ) -> None:
        asked_s = time.time()
        await self._until_answered(stop, forgive=(409,))
        stopped_s = time.time()
        await self._pause(1.2, 2.2)
        lifting_s = time.time()
        await self._until_answered(lift, forgive=(404, 409))
        self.diary.note(f"{what} stopped", subject, asked_s, stopped_s, until_s=lifting_s)

    # Asking

    async def _until_answered(
        self, ask: Callable[[TrunklineClient], Awaitable[T]], *, forgive: tuple[int, ...] = ()
    ) -> T:
        """As a client that repeats itself until it has an answer."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await ask(self._world.client)
            except ApiError as error:
                if error.status in forgive:
                    return None  # type: ignore[return-value]
                if error.status < 500 and error.status not in (408, 425, 429):
                    raise
                last: Exception = error
            except Unreachable as error:
                last = error
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not answered within {PATIENCE_S:g} s: {last}")
            await asyncio.sleep(AGAIN_S)

    async def _put(self, path: str, body: Mapping[str, Any]) -> None:
        async def put(_client: TrunklineClient) -> None:
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            timeout = aiohttp.ClientTimeout(total=5)
            try:
                async with (
                    aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
                    session.put(f"{self._world.url}{path}", json=body) as answer,
                ):
                    if answer.status >= 400:
                        raise ApiError(answer.status, "put", await answer.text(), (), "")
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Unreachable(str(error)) from error

        await self._until_answered(put)

    async def _pause(self, least_s: float, most_s: float) -> bool:
        """Whether the tenants still work after it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), self._chance.uniform(least_s, most_s))
        return not self._is_over.is_set()

    def _phone(self) -> str:
        return f"+1212{next(self._phones)}"


async def _update_number(number_id: str, client: TrunklineClient, **changes: Any) -> Any:
    return await client.update_number(number_id, **changes)


async def _streamed(data: bytes) -> AsyncIterator[bytes]:
    yield data
