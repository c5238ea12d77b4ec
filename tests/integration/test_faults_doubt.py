"""The races of attempts in doubt, forced: calls that may or may not have been made, and those that reappear.

`test_race_1_10` is race 10 of the first round, `test_race_2_04` race 4 of the second.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, event, open_stage
from tests.support.waiting import eventually
from trunkline.model import new_id
from trunkline.store import attempts
from trunkline.store.database import Connection
from trunkline.telephony.carrier import CallOrder, CallView, InDoubt, ListResult, Unavailable


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


def listed(order: CallOrder, call_id: str, **more: object) -> CallView:
    created_at = more.pop("created_at", datetime.now(UTC))
    return CallView(call_id, order.to, order.from_, "ringing", "ringing", created_at=created_at, **more)  # type: ignore[arg-type]


async def in_doubt(stage: Stage, lead: UUID) -> CallOrder:
    """Dialled, and the reply told nothing."""
    stage.carrier.says(InDoubt("status 500"))
    assert await stage.dial() == 1
    stage.carrier.answer = stage.carrier.accept
    assert (await stage.attempt(lead))["state"] == "in_doubt"
    return stage.carrier.orders[-1]


async def asked(stage: Stage, attempt: UUID, *, until_final: bool = False) -> None:
    """The list is asked once, or until we give up."""
    for _ in range(5 if until_final else 1):
        await stage.age(attempt, 600 if until_final else 6)
        await stage.checker.run_once()
        if await stage.dialing.state_of(attempt) != "in_doubt":
            break
    await stage.folder.drain()


async def test_race_1_10_a_call_that_reappears_is_reattached_if_no_newer_attempt_was_made(
    stage: Stage,
) -> None:
    lead = await stage.dialing.lead(max_attempts=3)
    order = await in_doubt(stage, lead)
    await asked(stage, order.attempt_id, until_final=True)
    assert (await stage.attempt(lead))["state"] == "absent"
    await stage.told(order.attempt_id, "answered")
    assert (await stage.attempt(lead))["state"] == "answered"
    # They are talking: however due the lead is, it is not called.
    await stage.due_now(lead)
    assert await stage.dial() == 0
    await stage.told(order.attempt_id, "ended")
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"]) == ("FINISHED", "ANSWERED"), "and what was said counts"
    assert len(stage.carrier.orders) == 1


async def test_race_1_10_a_reattached_call_holds_a_channel_however_often_others_take_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = await stage.dialing.lead()
    order = await in_doubt(stage, lead)
    await asked(stage, order.attempt_id, until_final=True)
    hold = attempts.hold_again

    async def somebody_is_quicker(tx: Connection, attempt_id: UUID, channel: int | None = None) -> None:
        if channel is None:
            raise attempts.TAKEN[0]("taken")
        await hold(tx, attempt_id, channel)

    monkeypatch.setattr(attempts, "hold_again", somebody_is_quicker)
    await stage.told(order.attempt_id, "answered")
    assert (await stage.attempt(lead))["holds_channel"]
    # Its end webhook never comes; the checker's lookup shows it.
    await stage.age(order.attempt_id, 600)
    assert await stage.checker.run_once() == 1
    await stage.folder.drain()
    assert (await stage.attempt(lead))["state"] == "ended"


async def test_race_1_10_a_call_that_reappears_beside_a_newer_one_is_stored_and_hung_up(stage: Stage) -> None:
    lead = await stage.dialing.lead(max_attempts=3)
    old = await in_doubt(stage, lead)
    await asked(stage, old.attempt_id, until_final=True)
    await stage.due_now(lead)
    assert await stage.dial() == 1
    new = stage.carrier.orders[-1]
    await stage.told(old.attempt_id, "answered")
    await stage.hang_ups.run_once()
    assert stage.carrier.hung_up == [f"CA-{old.attempt_id}"]
    found = {row["id"]: row for row in await stage.attempts(lead)}
    assert found[old.attempt_id]["carrier_call_id"] == f"CA-{old.attempt_id}", "stored beside the newer one"
    assert found[old.attempt_id]["answered_at"] is not None
    assert found[new.attempt_id]["state"] == "accepted"
    await stage.told(new.attempt_id, "answered", "ended")
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


async def one_given_up_and_one_newer(stage: Stage) -> tuple[UUID, CallOrder, CallOrder]:
    lead = await stage.dialing.lead(max_attempts=3)
    old = await in_doubt(stage, lead)
    await asked(stage, old.attempt_id, until_final=True)
    await stage.due_now(lead)
    assert await stage.dial() == 1
    return lead, old, stage.carrier.orders[-1]


async def test_race_1_10_a_call_that_reappears_after_a_newer_one_ended_is_hung_up(stage: Stage) -> None:
    """No index stands in its way then."""
    lead, old, new = await one_given_up_and_one_newer(stage)
    await stage.told(new.attempt_id, "answered", "ended")
    await stage.told(old.attempt_id, "answered")
    assert await stage.dialing.state_of(old.attempt_id) == "absent"
    await stage.hang_ups.run_once()
    assert stage.carrier.hung_up == [f"CA-{old.attempt_id}"]
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


async def test_race_1_10_the_end_of_an_older_call_does_not_settle_the_lead(stage: Stage) -> None:
    lead, old, new = await one_given_up_and_one_newer(stage)
    await stage.told(old.attempt_id, "ended")
    assert (await stage.lead(lead))["status"] == "PROCESSING", "the newer one is still on"
    assert await stage.held() == {new.attempt_id}


@pytest.mark.parametrize("is_adopted", [True, False])
@pytest.mark.parametrize("told", ["answered", "ended"])
async def test_race_1_10_a_call_that_reappears_raises_late_fact_with_what_became_of_it(
    stage: Stage, told: str, *, is_adopted: bool
) -> None:
    if is_adopted:
        old = await in_doubt(stage, await stage.dialing.lead())
        await asked(stage, old.attempt_id, until_final=True)
    else:
        _, old, _ = await one_given_up_and_one_newer(stage)
    alarms = "SELECT array_agg(subject) FROM alarms WHERE name = 'late_fact'"
    assert await stage.dialing.value(alarms) is None
    await stage.told(old.attempt_id, told)
    assert await stage.dialing.value(alarms) == ["adopted" if is_adopted else "hung_up"]


async def test_race_1_10_a_call_that_reappears_beside_another_leads_call_to_the_person_is_hung_up(
    stage: Stage,
) -> None:
    """One live call per pair of numbers is an index: it must neither be broken nor poison the mailbox."""
    lead = await stage.dialing.lead("+12125550177")
    old = await in_doubt(stage, lead)
    await asked(stage, old.attempt_id, until_final=True)
    await stage.dialing.run("UPDATE leads SET due_at = now() + interval '1 hour', version = version + 1")
    other = await stage.dialing.lead("+12125550177")
    assert await stage.dial() == 1
    await stage.told(old.attempt_id, "answered")
    await stage.hang_ups.run_once()
    assert stage.carrier.hung_up == [f"CA-{old.attempt_id}"]
    assert await stage.dialing.value("SELECT max(failures) FROM mailboxes") == 0
    assert (await stage.attempt(other))["state"] == "accepted"
    await stage.told(old.attempt_id, "ended")
    assert (await stage.attempt(lead))["state"] == "ended"


async def test_race_1_10_an_unknown_call_is_not_dialled_again_and_holds_its_channel_while_it_could_last(
    stage: Stage,
) -> None:
    lead = await stage.dialing.lead(max_attempts=3)
    order = await in_doubt(stage, lead)
    stage.carrier.calls = Unavailable("down")
    await asked(stage, order.attempt_id, until_final=True)
    attempt, row = await stage.attempt(lead), await stage.lead(lead)
    assert (attempt["state"], attempt["holds_channel"]) == ("unknown", True)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == (
        "FINISHED",
        "UNKNOWN",
        "call_list_unavailable",
    )
    assert await stage.held() == {order.attempt_id}
    held_s = attempt["next_check_at"] - await stage.dialing.now()
    assert held_s > timedelta(seconds=30 + 3600), "ring time-out and time limit"
    await stage.age(order.attempt_id, 4000)
    await stage.checker.run_once()
    assert await stage.held() == set()
    assert len(stage.carrier.orders) == 1


async def test_race_1_11_a_listed_call_of_another_attempt_is_not_reattached(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    order = await in_doubt(stage, lead)
    taken = await stage.dialing.attempt("+12125550000")
    await stage.dialing.run("UPDATE attempts SET carrier_call_id = 'CA-theirs' WHERE id = $1", taken)
    stage.carrier.calls = [listed(order, "CA-theirs")]
    await asked(stage, order.attempt_id)
    assert (await stage.attempt(lead))["state"] == "in_doubt"
    stage.carrier.calls = [listed(order, "CA-theirs"), listed(order, "CA-ours")]
    await stage.age(order.attempt_id, 600)
    await asked(stage, order.attempt_id)
    assert (await stage.attempt(lead))["carrier_call_id"] == "CA-ours"


async def test_race_1_11_two_listed_candidates_leave_the_attempt_unknown(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    order = await in_doubt(stage, lead)
    stage.carrier.calls = [listed(order, "CA-1"), listed(order, "CA-2")]
    await asked(stage, order.attempt_id, until_final=True)
    assert (await stage.attempt(lead))["state"] == "unknown"
    assert (await stage.lead(lead))["outcome_reason"] == "two_candidates"


async def test_race_2_04_a_call_that_began_before_our_intent_by_the_carriers_clock_is_ours(
    stage: Stage,
) -> None:
    """Its clock is behind ours, and its dates are whole seconds."""
    lead = await stage.dialing.lead()
    order = await in_doubt(stage, lead)
    intent_at = (await stage.attempt(lead))["intent_at"]
    stage.carrier.calls = [listed(order, "CA-1", created_at=intent_at - timedelta(seconds=50))]
    await asked(stage, order.attempt_id)
    assert (await stage.attempt(lead))["carrier_call_id"] == "CA-1"


async def two_in_doubt(stage: Stage) -> list[UUID]:
    """Both are due to be looked at in one run."""
    leads = await stage.dialing.leads(2)
    stage.carrier.says(InDoubt("status 500"))
    assert await stage.dial() == 2
    for lead in leads:
        await stage.age((await stage.attempt(lead))["id"], 10)
    return leads


def ringing(to: str, from_: str) -> ListResult:
    return [CallView(f"CA-{to}", to, from_, "ringing", "ringing", created_at=datetime.now(UTC))]


async def test_a_hanging_call_list_delays_no_other_check(stage: Stage) -> None:
    """The first question is answered only after the second was asked."""
    leads = await two_in_doubt(stage)
    questions: list[str] = []
    second_asked = asyncio.Event()

    async def list_calls(to: str, from_: str, since: datetime) -> ListResult:
        questions.append(to)
        if len(questions) == 1:
            await asyncio.wait_for(second_asked.wait(), 20)
        second_asked.set()
        return ringing(to, from_)

    stage.carrier.list_calls = list_calls  # type: ignore[method-assign]
    await stage.checker.run_once()
    await stage.folder.drain()
    assert [(await stage.attempt(lead))["state"] for lead in leads] == ["ringing", "ringing"]


async def test_a_hanging_account_delays_no_check_of_another_account(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lookups go on beside those of the others, and none is made twice."""
    monkeypatch.setattr("trunkline.dispatch.checker.ROUND_TIMEOUT_S", 0.01)
    slow, quick = await two_in_doubt(stage)
    await stage.dialing.run("UPDATE attempts SET account = 'slow' WHERE lead_id = $1", slow)
    slow_to = (await stage.attempt(slow))["to_phone"]
    may_answer, questions = asyncio.Event(), list[str]()

    async def list_calls(to: str, from_: str, since: datetime) -> ListResult:
        questions.append(to)
        if to == slow_to:
            await may_answer.wait()
        return ringing(to, from_)

    async def quick_is_known() -> bool:
        await stage.checker.run_once()
        await stage.folder.drain()
        return bool((await stage.attempt(quick))["state"] == "ringing")

    stage.carrier.list_calls = list_calls  # type: ignore[method-assign]
    await eventually(quick_is_known, what="the quick account's call is known")
    assert (await stage.attempt(slow))["state"] == "in_doubt"
    await stage.age((await stage.attempt(slow))["id"], 0)
    await stage.checker.run_once()
    may_answer.set()
    await stage.checker.drain()
    await stage.folder.drain()
    assert (await stage.attempt(slow))["state"] == "ringing"
    assert questions.count(slow_to) == 1


async def test_a_check_that_raises_does_not_keep_others_from_being_made(stage: Stage) -> None:
    leads = await two_in_doubt(stage)
    questions: list[str] = []

    async def list_calls(to: str, from_: str, since: datetime) -> ListResult:
        questions.append(to)
        if len(questions) == 1:
            raise RuntimeError("a bug")
        return ringing(to, from_)

    stage.carrier.list_calls = list_calls  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        await stage.checker.run_once()
    await stage.folder.drain()
    assert sorted([(await stage.attempt(lead))["state"] for lead in leads]) == ["in_doubt", "ringing"]


async def test_race_1_11_a_call_that_bears_our_tag_is_ours_whatever_else_is_listed(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    order = await in_doubt(stage, lead)
    stage.carrier.calls = [
        listed(order, "CA-somebody"),
        listed(order, "CA-ours", attempt_id=order.attempt_id),
    ]
    await asked(stage, order.attempt_id)
    assert (await stage.attempt(lead))["carrier_call_id"] == "CA-ours"


async def test_race_1_11_a_call_that_bears_anothers_tag_is_not_ours(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    order = await in_doubt(stage, lead)
    stage.carrier.calls = [listed(order, "CA-anothers", attempt_id=new_id())]
    await asked(stage, order.attempt_id, until_final=True)
    assert (await stage.attempt(lead))["state"] == "absent"


@pytest.mark.parametrize(
    "damage",
    [{"kind": "exploded"}, {"kind": None}, {"kind": ["ringing"]}, {"at": "yesterday", "kind": "ringing"}],
    ids=str,
)
async def test_race_1_22_an_unreadable_event_is_set_aside_and_its_call_still_frees_its_channel(
    stage: Stage, damage: dict[str, object]
) -> None:
    """It is set aside alone, and the events around it count; a time that cannot be read is no reason for that."""
    await stage.dialing.lead()
    await stage.dial()
    (order,) = stage.carrier.orders
    unreadable = event(order.attempt_id, "ringing", f"CA-{order.attempt_id}")
    unreadable.payload.update(damage)
    await stage.inbox.append(unreadable)
    await stage.told(order.attempt_id, "ended")
    assert await stage.held() == set()
    assert await stage.dialing.value("SELECT count(*) FROM mailboxes WHERE processing_status <> 'idle'") == 0
    set_aside = await stage.dialing.value("SELECT count(*) FROM mailbox_events WHERE error IS NOT NULL")
    assert set_aside == (damage["kind"] != "ringing")
