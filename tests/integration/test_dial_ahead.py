"""Calls are made ready ahead of their due time, leave when it has come and never before, and every rule counts as it
will be then."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.dispatch.stage import Stage, open_stage
from trunkline.clock import SystemClock
from trunkline.dispatch.gates import Case, case_of, judge
from trunkline.dispatch.grants import ClockOffset
from trunkline.leads.calling_policy import CallingPolicy, resolve
from trunkline.leads.limits import CallsPerPerson
from trunkline.leads.windows import TimeSpan, Window
from trunkline.model import Grant, Intent, RefusalReason, new_id
from trunkline.store import attempts
from trunkline.store.dispatch import LockedLead, LockedNumber
from trunkline.telephony.carrier import CallOrder, PlaceResult
from trunkline.testing.clock import ManualClock
from trunkline.value import replace

ADA = "+12125550001"
# An intent may be asked for up to a second ahead.
EARLY_S = 0.9


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def made_early(dialing: Dialing, after_s: float | None = None, **rules: Any) -> Intent:
    """A call that was made ready before its lead was due. The test may have been stopped until it was due: then another
    one. `after_s`: the person was called so long before the lead is due."""
    for n in range(20):
        phone = f"+1212555{9000 + n}"
        if after_s is not None:
            await dialing.attempt(phone, ago_s=after_s - EARLY_S)
        (intent,) = (
            await dialing.intend(dialing.grant(await dialing.lead(phone, due_in_s=EARLY_S)), **rules)
        ).committed
        row = await dialing.row("SELECT * FROM attempts WHERE id = $1", intent.attempt_id)
        if row["intent_at"] < row["lead_due_at"]:
            return intent
        await dialing.run("DELETE FROM paces")
    raise AssertionError("no call was ever ready early")


async def test_an_intent_made_early_sends_at_the_leads_due_time(dialing: Dialing) -> None:
    intent = await made_early(dialing)
    row = await dialing.row("SELECT * FROM attempts WHERE id = $1", intent.attempt_id)
    assert intent.send_at == intent.due_at == row["send_at"] == row["lead_due_at"]
    assert intent.send_in_s == (row["send_at"] - row["intent_at"]).total_seconds()


async def test_a_pace_counts_from_the_moment_the_call_is_sent(dialing: Dialing) -> None:
    """Else a call that was made ready early would be followed too soon by one that is overdue."""

    def pace(carrier: str, account: str) -> float:
        return 0.01

    first = await made_early(dialing, account_pace=pace)
    found = await dialing.intend(dialing.grant(await dialing.lead()), account_pace=pace)
    (refusal,) = found.refused.values()
    assert refusal.until == first.due_at + timedelta(seconds=100), "when it may ask for its turn"


async def test_intents_of_one_batch_are_sent_in_the_order_of_their_due_times(dialing: Dialing) -> None:
    """A grant says nothing about that: flows take turns, whoever is due first."""
    for _ in range(20):
        late, soon, now = [dialing.grant(await dialing.lead(due_in_s=in_s)) for in_s in (0.9, 0.8, -1)]
        committed = (await dialing.intend(late, soon, now, account_pace=lambda c, a: 1000.0)).committed
        assert [intent.attempt_id for intent in committed] == [g.attempt_id for g in (now, soon, late)]
        if committed[1].due_at - committed[0].send_at > timedelta(milliseconds=1):
            break
    else:
        pytest.fail("no batch was ever ready early")
    assert [intent.send_at == intent.due_at for intent in committed] == [False, True, True]


async def test_a_limit_that_expires_by_the_due_time_does_not_refuse_the_intent(dialing: Dialing) -> None:
    """Its lead was put off to that very moment: refused again, it would be put off to the same one."""
    await dialing.policy(CallingPolicy(calls_per_person=CallsPerPerson(max_calls=1)), "platform", "")
    intent = await made_early(dialing, after_s=3600.1)
    assert intent.send_at == intent.due_at


async def test_of_two_leads_due_when_a_persons_limit_expires_one_is_dialled(dialing: Dialing) -> None:
    """Both were put off to that moment. From two numbers: nothing else keeps them apart."""
    await dialing.policy(CallingPolicy(calls_per_person=CallsPerPerson(max_calls=1)), "platform", "")
    await dialing.attempt(ADA, ago_s=3600 - 0.8)
    leads = [await dialing.lead(ADA, due_in_s=0.9) for _ in range(2)]
    numbers = [dialing.number, await dialing.add_number()]
    grants = [dialing.grant(lead, number=number) for lead, number in zip(leads, numbers, strict=True)]
    found = await dialing.intend(*grants)
    assert len(found.committed) == 1
    (refusal,) = found.refused.values()
    assert refusal.reason is RefusalReason.LIMIT
    assert refusal.until is not None
    assert refusal.until >= found.committed[0].due_at, "and it is not put off to before its time"


async def test_a_call_is_counted_under_the_day_on_which_it_is_due(dialing: Dialing) -> None:
    """It was made ready before midnight: what it costs is settled, and given back, where it was counted."""
    intent = await made_early(dialing)
    async with dialing.database.transaction() as tx:
        (attempt,) = (await attempts.lock(tx, [intent.attempt_id])).values()
    assert attempt.counted_at == intent.due_at


def test_an_intent_made_early_passes_a_window_that_opens_at_the_due_time() -> None:
    nine = datetime(2026, 3, 2, 9, tzinfo=UTC)
    lead = _lead(now=nine - timedelta(milliseconds=50), due_at=nine)
    assert next(judge(_case(lead), _never_stopped), None) is None
    refused = next(judge(_case(replace(lead, due_at=lead.now)), _never_stopped), None)
    assert refused is not None
    assert (refused.reason, refused.until) == (RefusalReason.WINDOW, nine)


async def test_a_call_never_leaves_before_its_time_by_postgres_clock(stage: Stage) -> None:
    left_at: list[datetime] = []
    accept = stage.carrier.accept

    async def note(order: CallOrder) -> PlaceResult:
        left_at.append(await stage.dialing.now())
        return await accept(order)

    stage.carrier.answer = note
    ahead, due_in_s = 0, 0.09
    for _ in range(20):
        lead = await stage.dialing.lead(due_in_s=due_in_s)
        while not await stage.dial():
            await stage.dialer.wait()
        row = await stage.attempt(lead)
        assert row["send_at"] == row["lead_due_at"] or row["intent_at"] == row["send_at"]
        assert left_at[-1] >= row["lead_due_at"]
        ahead += row["intent_at"] < row["lead_due_at"]
        due_in_s = min(0.9, due_in_s if ahead else 2 * due_in_s)
    assert len(left_at) == 20
    assert ahead, "and some were ready before it"


def _ready(in_s: float) -> Intent:
    now = datetime.now(UTC)
    return Intent(new_id(), new_id(), "twilio", "default", ADA, "+14155550100", now, now, in_s)


async def test_a_calls_send_time_uses_the_measured_clock_unless_the_reply_contradicts_it(
    stage: Stage,
) -> None:
    clock = ManualClock()
    offset = ClockOffset(stage.database, stage.bus, clock)
    clock.advance(1000)
    await offset.ms()
    ahead_s = offset._ahead_of_us_s
    # Postgres read its clock 3 ms after the intent was asked for, 4 ms before it was answered.
    intent_at = datetime.fromtimestamp(1000.003 + ahead_s, UTC)
    intent = replace(_ready(0.05), send_at=intent_at + timedelta(seconds=0.05))
    assert offset.turn_s(intent, 1000.0, 1000.007) == pytest.approx(1000.053, abs=1e-5)
    # Somebody has set Postgres' clock back by a minute: the answer came later than that reading, so no call is early.
    set_back = replace(intent, send_at=intent.send_at - timedelta(minutes=1))
    assert offset.turn_s(set_back, 1000.0, 1000.007) == pytest.approx(1000.057, abs=1e-5)
    assert offset._measured_at_s == float("-inf"), "and it is measured anew"
    # Set forward: the same. By the old measure the call would leave a minute late.
    await offset.ms()
    set_forward = replace(intent, send_at=intent.send_at + timedelta(minutes=1))
    assert offset.turn_s(set_forward, 1000.0, 1000.007) == pytest.approx(1000.057, abs=1e-5)
    assert offset._measured_at_s == float("-inf")


async def test_the_measured_clock_is_never_ahead_of_postgres(stage: Stage) -> None:
    clock = SystemClock()
    offset = ClockOffset(stage.database, stage.bus, clock)
    for _ in range(20):
        offset.invalidate()
        await offset.ms()
        before_s = clock.boottime_s()
        assert (await stage.dialing.now()).timestamp() >= before_s + offset._ahead_of_us_s


def _never_stopped(*target: object) -> str | None:
    return None


def _lead(*, now: datetime, due_at: datetime) -> LockedLead:
    return LockedLead(
        id=uuid4(), phone=ADA, timezone="UTC", merchant_id="m", reseller_id="r", campaign_id=None, attempt_count=0,
        max_attempts=3, due_at=due_at, closes_at=None, pool_id="p", overflow_pool_id=None,
        merchant_max_concurrent=None, carrier="twilio", account="default", now=now, halted=None, listed_by=None,
        passed_checks=None,
    )  # fmt: skip


def _case(lead: LockedLead) -> Case:
    number = LockedNumber(
        uuid4(), "+14155550100", "twilio", "default", 10, None, "active", "p", may_count=True
    )
    policy = resolve(CallingPolicy(windows=(Window(spans=(TimeSpan(start="09:00", end="18:00"),)),)))
    return replace(case_of(Grant(new_id(), lead.id, 1, number.id, 1, 0), lead, policy), number=number)
