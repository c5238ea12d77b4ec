"""The races of dialling, forced: whatever is between a grant and the carrier's answer may be stopped, doubled or lost.

`test_race_1_08` is race 8 of the first round, `test_race_2_05` race 5 of the second.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asyncpg import LockNotAvailableError

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.faults.proxy import TcpProxy
from tests.support.metric_values import value
from tests.support.waiting import eventually
from trunkline.bus import channels, schedule
from trunkline.bus.connection import connect as connect_bus
from trunkline.clock import SystemClock
from trunkline.dispatch import grants as grants_module
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.dispatch.dialer import Dialer
from trunkline.dispatch.intent import IntentBatch, Intents, intend
from trunkline.errors import BusUnavailable
from trunkline.model import Entry, Grant
from trunkline.states import AttemptState
from trunkline.store import attempts
from trunkline.store.attempts import Result
from trunkline.store.database import UNAVAILABLE
from trunkline.store.database import connect as connect_database
from trunkline.telemetry import metrics
from trunkline.telephony.carrier import Accepted, CallOrder, InDoubt, PlaceResult, Rejected, Throttled
from trunkline.value import replace


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


class StoppableClock(SystemClock):
    """As a process sees it that was stopped: time has passed, on one of its clocks or on both."""

    def __init__(self) -> None:
        self.boottime_ahead_s = 0.0
        self.wall_ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.wall_ahead_s)

    def boottime_s(self) -> float:
        return super().boottime_s() + self.boottime_ahead_s


Meanwhile = Callable[[], Awaitable[object]]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Something happens between a dialer's match and its intent, or between the intent and the send. Once."""

    def arrange(*, before: Meanwhile | None = None, after: Meanwhile | None = None, age_ms: int = 0) -> None:
        async def with_interruption(database: Any, grants: Sequence[Grant], *more: Any) -> Intents:
            monkeypatch.setattr(grants_module, "intend", intend)
            if before:
                await before()
            if age_ms:
                grants = [replace(g, granted_ms=(g.granted_ms or 0) - age_ms) for g in grants]
            intents = await intend(database, grants, *more)
            if after:
                await after()
            return intents

        monkeypatch.setattr(grants_module, "intend", with_interruption)

    return arrange


def reconciler_in_a_hurry(stage: Stage) -> ChannelReconciler:
    """One that takes every grant for a dead dialer's."""
    return ChannelReconciler(stage.database, stage.bus, stage.controls, grant_ttl_s=-1)


# Between match and intent


async def test_a_dialer_with_a_stale_grant_does_not_dial_a_lead_that_another_dialled(
    stage: Stage, between: Callable[..., None]
) -> None:
    lead = await stage.dialing.lead()
    other = stage.another_dialer()

    async def others_go_on() -> None:
        await reconciler_in_a_hurry(stage).run_once()
        assert await stage.dial(other) == 1

    between(before=others_go_on)
    assert await stage.dial() == 0
    assert len(stage.carrier.orders) == 1
    assert (await stage.attempt(lead))["dialer"] == "stage-2"
    assert await stage.held() == await stage.truly_held()


async def test_race_2_07_a_grant_older_than_three_seconds_is_refused_and_its_lead_granted_again(
    stage: Stage, between: Callable[..., None]
) -> None:
    lead = await stage.dialing.lead()
    between(age_ms=3100)
    assert await stage.dial() == 0
    assert stage.carrier.orders == []
    assert await stage.held() == set()
    assert await stage.dial() == 1
    assert (await stage.attempt(lead))["state"] == "accepted"


async def test_a_grant_carries_its_time_by_postgres_clock(stage: Stage) -> None:
    await stage.dialing.lead()
    await stage.loader.run_once()
    now = await stage.dialing.now()
    ids = [stage.dialing.grant(stage.dialing.number).attempt_id]
    (grant,) = (await schedule.match(stage.bus, ids, clock_offset_ms=3_600_000)).grants
    assert grant.granted_ms is not None
    granted_at = datetime.fromtimestamp(grant.granted_ms / 1000, now.tzinfo)
    assert timedelta(minutes=59) < granted_at - now < timedelta(minutes=61), "Valkey's clock and the offset"


async def test_an_attempt_committed_after_the_reconciler_freed_its_channel_gets_it_back(
    stage: Stage, between: Callable[..., None]
) -> None:
    """The reconciler took it for dead and freed its channel; then it commits after all."""
    await stage.dialing.lead()
    between(before=reconciler_in_a_hurry(stage).run_once)
    assert await stage.dial() == 1
    (order,) = stage.carrier.orders
    for _ in range(3):
        assert await stage.dial() == 0
    await stage.reconciler.run_once()
    assert await stage.held() == await stage.truly_held() == {order.attempt_id}
    assert len(stage.carrier.orders) == 1


# Between intent and send


@pytest.mark.parametrize(("boottime_s", "wall_s"), [(600, 600), (600, 0), (0, 600), (0.6, 0.6)])
async def test_race_2_05_a_dialer_that_was_stopped_after_its_intent_does_not_send(
    stage: Stage, between: Callable[..., None], boottime_s: float, wall_s: float
) -> None:
    """The time counts from before the intent: what it slept through cannot be mistaken for a fresh start. A tenth of a
    second too late is too late (race 11): the others' punctual calls leave at this moment."""
    clock = StoppableClock()
    sleeper = stage.another_dialer(clock=clock, late_max_s=0.5)
    lead = await stage.dialing.lead()

    async def stopped() -> None:
        clock.boottime_ahead_s, clock.wall_ahead_s = boottime_s, wall_s

    between(after=stopped)
    await stage.dial(sleeper)
    assert stage.carrier.orders == []
    attempt, row = await stage.attempt(lead), await stage.lead(lead)
    assert (attempt["state"], attempt["holds_channel"]) == ("rejected", False)
    assert (row["status"], row["attempt_count"], row["carrier_error_count"]) == ("BACKLOG", 0, 0)
    assert await stage.held() == set()


async def test_race_1_08_after_absent_and_the_next_attempt_the_first_is_not_sent(
    stage: Stage, between: Callable[..., None]
) -> None:
    """A dialer is stopped between intent and send. Ten minutes later its attempt is absent and the next one rings."""
    clock = StoppableClock()
    sleeper, other = stage.another_dialer(clock=clock), stage.another_dialer()
    lead = await stage.dialing.lead(max_attempts=5)

    async def ten_minutes() -> None:
        clock.boottime_ahead_s = clock.wall_ahead_s = 600
        first = (await stage.attempt(lead))["id"]
        for _ in range(6):
            await stage.age(first, 600)
            await stage.checker.run_once()
        assert (await stage.attempt(lead))["state"] == "absent"
        await stage.due_now(lead)
        assert await stage.dial(other) == 1

    between(after=ten_minutes)
    await stage.dial(sleeper)
    (order,) = stage.carrier.orders
    states = {row["id"]: row["state"] for row in await stage.attempts(lead)}
    assert states.pop(order.attempt_id) == "accepted"
    assert list(states.values()) == ["absent"]
    assert (await stage.lead(lead))["status"] == "PROCESSING"


async def test_race_1_08_every_order_says_by_when_it_must_have_left(stage: Stage) -> None:
    await stage.dialing.lead()
    dialer = stage.another_dialer(late_max_s=20)
    before_s = stage.clock.boottime_s()
    await stage.dial(dialer)
    (order,) = stage.carrier.orders
    assert order.send_by_boottime_s is not None
    assert order.send_by_boottime_s <= before_s + 1.0 + 20 + (stage.clock.boottime_s() - before_s)


# Replies of Postgres that are lost


async def dialer_behind(proxy: TcpProxy, stage: Stage) -> Dialer:
    return stage.another_dialer(database=await connect_database(proxy.url, pool_size=1))


async def test_race_1_08_an_intent_whose_commit_was_not_answered_is_never_sent(stage: Stage) -> None:
    async with TcpProxy.before(stage.dialing.url) as proxy:
        dialer = await dialer_behind(proxy, stage)
        await dialer.run_once()  # it is connected, and knows the clocks
        lead = await stage.dialing.lead()
        await stage.loader.run_once()
        proxy.swallow_reply(after=b"COMMIT;")
        assert await dialer.run_once() == 0
        await proxy.swallowed()
        assert stage.carrier.orders == []
        attempt, row = await stage.attempt(lead), await stage.lead(lead)
        assert (attempt["state"], attempt["end_reason"]) == ("rejected", "not_sent")
        assert (row["status"], row["attempt_count"]) == ("BACKLOG", 0)
        assert await stage.dial(dialer) == 1
        assert len(stage.carrier.orders) == 1
        await dialer._database.close()


async def test_grants_whose_intent_failed_without_postgres_are_given_back(stage: Stage) -> None:
    """Valkey goes on matching meanwhile: without an attempt each round's grants would hold channels in vain."""
    async with TcpProxy.before(stage.dialing.url) as proxy:
        dialer = await dialer_behind(proxy, stage)
        await dialer.run_once()  # it is connected, and knows the clocks
        leads = await stage.dialing.leads(3)
        await stage.loader.run_once()
        proxy.refuse()
        proxy.cut()
        for _ in range(2):
            with pytest.raises(UNAVAILABLE):
                await dialer.run_once()
            assert await stage.held() == set()
        await proxy.heal()
        assert await stage.dial(dialer) == len(leads)
        await dialer._database.close()


async def test_a_batch_that_fails_half_way_sends_committed_attempts_and_returns_the_other_grants(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock broke the batch; then Postgres went away between the second lead and the third."""
    await stage.dialing.leads(3)
    truly_commit, alone = IntentBatch.commit, 0

    async def with_trouble(batch: IntentBatch, *more: Any) -> Intents:
        nonlocal alone
        if len(batch._grants) > 1:
            raise LockNotAvailableError("somebody has the lock")
        alone += 1
        if alone == 3:
            raise ConnectionResetError
        return await truly_commit(batch, *more)

    monkeypatch.setattr(IntentBatch, "commit", with_trouble)
    assert await stage.dial() == 2
    assert len(stage.carrier.orders) == 2
    assert await stage.held() == await stage.truly_held()


async def test_a_failed_write_of_a_next_opening_does_not_keep_other_grants_from_dialling(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, _ = await stage.dialing.leads(2)
    await stage.dialing.run("UPDATE leads SET closes_at = due_at WHERE id = $1", closed)

    async def no_postgres(*_: object) -> Sequence[Entry]:
        raise ConnectionResetError

    dialer = stage.another_dialer()
    monkeypatch.setattr(grants_module, "reopen", no_postgres)
    assert await stage.dial(dialer) == 1
    assert await stage.held() == await stage.truly_held()


async def test_a_carrier_reply_whose_commit_reply_was_lost_is_written_once(stage: Stage) -> None:
    async with TcpProxy.before(stage.dialing.url) as proxy:
        dialer = await dialer_behind(proxy, stage)
        lead = await stage.dialing.lead()

        async def refused(_: CallOrder) -> PlaceResult:
            proxy.swallow_reply(after=b"COMMIT;")
            return Rejected("refused", "21214", retryable=True, blames="destination")

        stage.carrier.answer = refused
        await stage.dial(dialer)
        await proxy.swallowed()
        assert (await stage.attempt(lead))["state"] == "rejected"
        row = await stage.lead(lead)
        assert (row["status"], row["carrier_error_count"], row["attempt_count"]) == ("BACKLOG", 1, 0)
        assert await stage.held() == set()
        await dialer._database.close()


async def test_a_carrier_reply_that_cannot_be_written_fails_alone(stage: Stage) -> None:
    bad, *good = await stage.dialing.leads(3)
    bad_phone = (await stage.lead(bad))["phone"]

    async def answer(order: CallOrder) -> PlaceResult:
        return Accepted("CA\x00" if order.to == bad_phone else f"CA-{order.attempt_id}")

    stage.carrier.answer = answer
    assert await stage.dial() == 3
    assert [(await stage.attempt(lead))["state"] for lead in good] == ["accepted", "accepted"]
    await stage.dialing.lead()
    assert await stage.dial() == 1, "and the next ones are written too"
    unwritten = await stage.attempt(bad)
    assert unwritten["state"] == "dialing", "whose call the checker asks about"
    assert unwritten["next_check_at"] is not None


# What Valkey missed


class Refusing:
    """A stand-in for a script's twin that fails as when Valkey is away."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, *_: object, **__: object) -> int:
        self.calls += 1
        raise BusUnavailable("Valkey is away")


@pytest.mark.parametrize("lost", ["release", "add"])
async def test_the_reconciler_repairs_a_release_or_add_that_valkey_missed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The settlement is written to Valkey in two steps; Valkey goes away before the first or between them."""
    lead = await stage.dialing.lead(max_attempts=3)
    await stage.dial()
    (order,) = stage.carrier.orders
    refusing = Refusing()
    with monkeypatch.context() as patched:
        module = channels if lost == "release" else schedule
        patched.setattr(module, lost, refusing)
        await stage.told(order.attempt_id, "ended", reason="busy")
    assert refusing.calls == 1
    assert (await stage.lead(lead))["status"] == "BACKLOG"
    await stage.due_now(lead)
    await reconciler_in_a_hurry(stage).run_once()
    assert await stage.held() == set()
    assert await stage.dial() == 1
    assert len(await stage.attempts(lead)) == 2


async def test_race_2_09_the_reconciler_repairs_a_projection_that_missed_calls(
    stage: Stage, redis_url: str
) -> None:
    """A dialer without Valkey dials from Postgres. Valkey has the same run id and an old projection."""
    waiting = await stage.dialing.leads(3)
    await stage.loader.run_once()
    async with TcpProxy.before(redis_url) as proxy:
        bus = connect_bus(proxy.url, stage.bus.keys)
        cut_off = stage.another_dialer(bus=bus)
        proxy.refuse()
        assert await cut_off.run_once() == 3
        await cut_off.drain()
        await bus.close()
    # Those who can reach Valkey see leads and channels that are none any more.
    assert await stage.dial() == 0
    await reconciler_in_a_hurry(stage).run_once()
    assert await stage.held() == await stage.truly_held()
    assert len(stage.carrier.orders) == len(waiting)
    for order in stage.carrier.orders:
        await stage.told(order.attempt_id, "ended")
    assert await stage.held() == set()
    assert await stage.known_leads() == {}


async def test_only_fallback_grants_that_were_dialled_are_counted(stage: Stage, redis_url: str) -> None:
    await stage.dialing.lead("+12125550199")
    await stage.dialing.lead("+12125550199", "n")
    before = value(metrics.FALLBACK_DIALS)
    async with TcpProxy.before(redis_url) as proxy:
        bus = connect_bus(proxy.url, stage.bus.keys)
        cut_off = stage.another_dialer(bus=bus)
        proxy.refuse()
        assert await cut_off.run_once() == 1, "one person is called once at a time"
        await cut_off.drain()
        await bus.close()
    assert value(metrics.FALLBACK_DIALS) == before + 1


async def test_race_2_15_a_channel_is_free_in_valkey_only_after_it_is_free_in_postgres(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.dialing.lead()
    await stage.dial()
    seen: list[bool] = []
    release = channels.release

    async def watched(*args: Any) -> int:
        seen.append(await stage.dialing.value("SELECT bool_or(holds_channel) FROM attempts"))
        return await release(*args)

    monkeypatch.setattr(channels, "release", watched)
    await stage.told(stage.carrier.orders[0].attempt_id, "ended")
    assert seen == [False]


# What the carrier says


async def test_race_1_09_throttled_costs_the_lead_nothing_and_slows_the_account(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    stage.carrier.says(Throttled(retry_after_s=30.0))
    await stage.dial()
    attempt, row = await stage.attempt(lead), await stage.lead(lead)
    assert (attempt["state"], attempt["end_reason"], attempt["holds_channel"]) == (
        "rejected",
        "throttled",
        False,
    )
    assert (row["status"], row["attempt_count"], row["carrier_error_count"]) == ("BACKLOG", 0, 0)
    assert row["due_at"] - await stage.dialing.now() > timedelta(seconds=25)
    next_start_at = await stage.dialing.value("SELECT next_start_at FROM paces WHERE kind = 'account'")
    assert next_start_at - await stage.dialing.now() > timedelta(seconds=25)
    await stage.dialing.lead()
    stage.carrier.answer = stage.carrier.accept
    assert await stage.dial() == 0, "nobody else of this account starts meanwhile"


async def test_stopping_a_dialer_does_not_cancel_a_dial_in_flight(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(order: CallOrder) -> PlaceResult:
        asked.set()
        await answered.wait()
        return Accepted(f"CA-{order.attempt_id}")

    stage.carrier.answer = slow
    await stage.loader.run_once()
    await stage.dialer.run_once()
    await asked.wait()
    stage.dialer.stop()
    draining = asyncio.create_task(stage.dialer.drain())
    answered.set()
    await draining
    assert (await stage.attempt(lead))["state"] == "accepted"


async def test_an_in_doubt_answer_keeps_its_channel_through_every_reconciliation(stage: Stage) -> None:
    await stage.dialing.lead()
    stage.carrier.says(InDoubt("status 500"))
    await stage.dial()
    (order,) = stage.carrier.orders
    await reconciler_in_a_hurry(stage).run_once()
    await stage.forget()
    stage.bus.epoch = 0
    await stage.rebuilder.run_once()
    assert await stage.held() == {order.attempt_id}


# Batches beside each other


async def test_a_dialers_next_batch_does_not_wait_for_the_last_one(
    stage: Stage, between: Callable[..., None]
) -> None:
    gate = asyncio.Event()
    between(before=gate.wait)
    dialer = stage.another_dialer(batch_max=2, batches_max=2)
    await stage.dialing.leads(4)
    await stage.loader.run_once()
    assert [await dialer.run_once(), await dialer.run_once()] == [2, 2]
    await eventually(lambda: len(stage.carrier.orders) == 2, what="the second batch has left")
    gate.set()
    await dialer.drain()
    assert len({order.attempt_id for order in stage.carrier.orders}) == 4


async def test_a_background_batchs_exception_is_raised_by_the_next_round(
    stage: Stage, between: Callable[..., None]
) -> None:
    async def break_down() -> None:
        raise RuntimeError("a bug")

    between(before=break_down)
    dialer = stage.another_dialer(batch_max=1)
    await stage.dialing.leads(2)
    await stage.loader.run_once()
    assert await dialer.run_once() == 1
    await dialer.drain()
    with pytest.raises(RuntimeError, match="a bug"):
        await dialer.run_once()
    assert await dialer.run_once() == 1


async def test_a_carrier_reply_written_after_the_fold_does_not_undo_its_state(stage: Stage) -> None:
    """One statement locks and compares: what it waited for is what it compares with."""
    lead = await stage.dialing.lead()
    (intent,) = (await stage.dialing.intend(stage.dialing.grant(lead))).committed
    folding = await stage.dialing.open_transaction()
    await folding.execute("UPDATE attempts SET state = 'answered', answered_at = now()")
    writing = await stage.dialing.blocked(_write_accepted(stage, intent.attempt_id))
    await stage.dialing.commit(folding)
    assert await writing == set(), "it changed no state"
    found = await stage.attempt(lead)
    assert (found["state"], found["carrier_call_id"]) == ("answered", "CA1")


async def _write_accepted(stage: Stage, attempt: UUID) -> set[UUID]:
    async with stage.database.connection() as conn:
        return await attempts.write_results(conn, [Result(attempt, AttemptState.ACCEPTED, "CA1")])
