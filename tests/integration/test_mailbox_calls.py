"""Call events through the mailbox: many attempts in one transaction, and no event that can spoil it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.mailbox.world import MailboxWorld, mailbox_world
from trunkline.dispatch.calls import KIND, LIMITS, CallFold
from trunkline.dispatch.cooldowns import CooldownWriter
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.settlement import Settler
from trunkline.mailbox.worker import MailboxWorker
from trunkline.model import Outcome
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import metrics


@dataclass
class Exchange:
    """Leads being called, and what their carrier tells."""

    world: MailboxWorld
    ended: list[UUID] = field(default_factory=list)
    attempts: int = 0

    @property
    def worker(self) -> MailboxWorker:
        return MailboxWorker(
            self.world.database,
            self.world.bus,
            CallFold(
                Settler(self.world.bus, Policies(), self._hear), CooldownWriter(self.world.database, "w")
            ),
            "w",
            LIMITS,
        )

    async def _hear(self, attempt_ids: Sequence[UUID]) -> None:
        self.ended += attempt_ids

    async def dialled(self, *, lead: UUID | None = None, state: str = "accepted", phone: str = "") -> UUID:
        """An attempt of a lead, with a channel of its own."""
        self.attempts += 1
        attempt_id, number = uuid4(), f"+1415555{self.attempts:04}"
        if lead is None:
            lead = await self.lead()
        await self.world.value(
            """INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,
                                     account, to_phone, from_phone, dialer, state, holds_channel)
               VALUES ($1, $2, 1, 'r', 'm', $3, 1, 'twilio', 'default', $4, '+14155550100', 'test', $5, $6)""",
            attempt_id, lead, uuid4(), phone or number, state, state not in ("absent", "ended"),
        )  # fmt: skip
        return attempt_id

    async def lead(self) -> UUID:
        lead_id = uuid4()
        await self.world.value(
            """INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, status,
                                  scheduled_at, due_at, attempt_count)
               VALUES ($1, 'r', 'm', $2, $3, '+15005551000', 'p', 'PROCESSING', now(), now(), 1)""",
            lead_id, str(lead_id), b"0" * 32,
        )  # fmt: skip
        return lead_id

    async def tell(self, attempt: UUID | str, kind: str, **more: Any) -> None:
        payload = {"kind": kind, "at": datetime.now(UTC).isoformat(), "call_id": f"CA{attempt}", **more}
        await self.world.append(NewEvent(KIND, str(attempt), f"{kind}:{uuid4()}", kind, payload))

    async def state(self, attempt: UUID) -> str:
        return str(await self.world.value("SELECT state FROM attempts WHERE id = $1", attempt))

    async def parked(self) -> list[tuple[str, str]]:
        rows = await self.world.rows(
            "SELECT type, error FROM mailbox_events WHERE error IS NOT NULL ORDER BY seq, type"
        )
        return [(row["type"], row["error"]) for row in rows]


@pytest.fixture
async def exchange(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Exchange]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        await world.value("INSERT INTO resellers (id, name) VALUES ('r', 'R')")
        await world.value("INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'M')")
        await world.value("INSERT INTO pools (id, name) VALUES ('p', 'P')")
        yield Exchange(world)


async def test_many_calls_are_folded_in_one_transaction(exchange: Exchange) -> None:
    attempts = [await exchange.dialled() for _ in range(30)]
    for attempt in attempts:
        await exchange.tell(attempt, "answered")
        await exchange.tell(attempt, "ended", reason="completed", duration_s=3)
    await exchange.worker.drain()
    rows = await exchange.world.rows(
        "SELECT DISTINCT xmin::text, state, holds_channel, duration_s FROM attempts"
    )
    assert [tuple(row)[1:] for row in rows] == [("ended", False, 3)]
    assert sorted(exchange.ended) == sorted(attempts)
    assert await exchange.world.value("SELECT count(*) FROM leads WHERE outcome = 'ANSWERED'") == 30


async def test_every_ended_call_of_a_batch_is_counted_under_its_outcome(exchange: Exchange) -> None:
    def counted() -> list[float]:
        return [
            metrics.REGISTRY.get_sample_value(
                "trunkline_calls_finished_total", {"carrier": "twilio", "outcome": outcome.value}
            )
            or 0.0
            for outcome in (Outcome.ANSWERED, Outcome.VOICEMAIL)
        ]

    before = counted()
    for by in ("human", "human", "human", "machine_start", "machine_start"):
        attempt = await exchange.dialled()
        await exchange.tell(attempt, "answered", answered_by=by)
        await exchange.tell(attempt, "ended", reason="completed", duration_s=3)
    await exchange.worker.drain()
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [3, 2]


async def test_an_unreadable_event_is_set_aside_and_the_call_goes_on(exchange: Exchange) -> None:
    attempt, other = await exchange.dialled(), await exchange.dialled()
    await exchange.tell(attempt, "exploded")
    await exchange.tell(attempt, "ended", reason="busy")
    await exchange.tell(other, "ringing")
    await exchange.worker.drain()
    assert await exchange.parked() == [("exploded", "no event is of kind 'exploded'")]
    assert (await exchange.state(attempt), await exchange.state(other)) == ("ended", "ringing")


@pytest.mark.parametrize(
    "damage",
    [
        {"call_id": "C" * 3000},
        {"call_id": 7},
        {"duration_s": 2**40},
        {"duration_s": "long"},
        {"reason": {"a": "b"}},
        {"reason": "martians"},
        {"at": None},
        {"at": "0001-01-01T00:00:00+14:00"},
    ],
    ids=str,
)
async def test_an_end_event_with_damaged_details_still_ends_its_attempt(
    exchange: Exchange, damage: dict[str, Any]
) -> None:
    attempt = await exchange.dialled()
    await exchange.tell(attempt, "ended", **damage)
    await exchange.worker.drain()
    assert await exchange.state(attempt) == "ended"
    assert await exchange.world.status(str(attempt), KIND) == "idle"


@pytest.mark.parametrize("key", ["nobody", str(uuid4()).upper(), "{" + str(uuid4()) + "}"])
async def test_events_of_a_mailbox_that_is_no_attempt_are_set_aside(exchange: Exchange, key: str) -> None:
    attempt = await exchange.dialled()
    await exchange.tell(key, "ended")
    await exchange.tell(attempt, "ended")
    await exchange.worker.drain()
    assert await exchange.parked() == [("ended", "the key of its mailbox is no attempt id")]
    assert await exchange.state(attempt) == "ended"


async def test_events_of_an_attempt_that_does_not_exist_are_set_aside(exchange: Exchange) -> None:
    attempt = await exchange.dialled()
    await exchange.tell(uuid4(), "ended")
    await exchange.tell(attempt, "ended")
    await exchange.worker.drain()
    assert await exchange.parked() == [("ended", "there is no such attempt")]
    assert await exchange.state(attempt) == "ended"


async def test_a_call_id_of_another_attempt_does_not_fail_the_batch(exchange: Exchange) -> None:
    first, second, third = [await exchange.dialled() for _ in range(3)]
    for attempt in (first, second):
        await exchange.tell(attempt, "ended", call_id="CAsame")
    await exchange.tell(third, "ended")
    await exchange.worker.drain()
    assert {await exchange.state(attempt) for attempt in (first, second, third)} == {"ended"}
    rows = await exchange.world.rows(
        "SELECT count(carrier_call_id) AS ids FROM attempts WHERE id <> $1", third
    )
    assert rows[0]["ids"] == 1


async def test_a_call_that_reappears_beside_a_newer_attempt_does_not_fail_the_batch(
    exchange: Exchange,
) -> None:
    lead = await exchange.lead()
    given_up = await exchange.dialled(lead=lead, state="absent")
    newer = await exchange.dialled(lead=lead)
    bystander = await exchange.dialled()
    for attempt in (given_up, newer, bystander):
        await exchange.tell(attempt, "ringing")
    await exchange.worker.drain()
    states = [await exchange.state(attempt) for attempt in (given_up, newer, bystander)]
    assert states == ["absent", "ringing", "ringing"]


async def test_a_call_that_reappears_beside_another_to_its_person_does_not_fail_the_batch(
    exchange: Exchange,
) -> None:
    """Two leads of one person: the index of (to, from) refuses that both are live."""
    given_up = await exchange.dialled(state="absent", phone="+15005550001")
    live = await exchange.dialled(phone="+15005550001")
    bystander = await exchange.dialled()
    for attempt in (given_up, live, bystander):
        await exchange.tell(attempt, "ringing")
    await exchange.worker.drain()
    assert [await exchange.state(a) for a in (given_up, live, bystander)] == ["absent", "ringing", "ringing"]
    assert await exchange.world.unprocessed() == []


async def test_a_locked_lead_delays_no_other_call(exchange: Exchange) -> None:
    """The batch gives up waiting, is halved, and all but that one go through."""
    stuck, others = await exchange.dialled(), [await exchange.dialled() for _ in range(5)]
    for attempt in (stuck, *others):
        await exchange.tell(attempt, "ended")
    async with exchange.world.database.transaction() as holder:
        await holder.execute(
            "SELECT FROM leads JOIN attempts a ON a.lead_id = leads.id WHERE a.id = $1 FOR UPDATE", stuck
        )
        draining = asyncio.create_task(exchange.worker.drain())
        await draining
        assert {await exchange.state(attempt) for attempt in others} == {"ended"}
        assert await exchange.state(stuck) == "accepted"
    await exchange.world.let_turns_come()
    await exchange.worker.drain()
    assert await exchange.state(stuck) == "ended"
