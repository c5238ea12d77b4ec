"""What fails at the account costs the account: cooldowns as narrow as the refusal, one probe at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.waiting import eventually
from trunkline.bus import schedule
from trunkline.dispatch.dialer import Dialer
from trunkline.model import RefusalReason, new_id
from trunkline.store import cooldowns
from trunkline.store.cooldowns import Subject
from trunkline.telephony.carrier import Accepted, CallOrder, CallView, InDoubt, PlaceResult, Rejected

CREDENTIALS = Rejected("refused", "20003", retryable=True, blames="account", why="wrong credentials")
CALLER_ID = Rejected("refused", "21210", retryable=True, blames="number", why="our number is not verified")
GEOGRAPHY = Rejected("refused", "21215", retryable=True, blames="country", why="not allowed")
UNKNOWN = Rejected("refused", "77777", retryable=True, blames="unknown")
NO_DNS = Rejected("not_connected", "gaierror", retryable=True, blames="network")
ACCOUNT = Subject("account", "twilio/default")


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


def refusing(
    answer: PlaceResult, when: Callable[[CallOrder], bool]
) -> Callable[[CallOrder], Awaitable[PlaceResult]]:
    async def place(order: CallOrder) -> PlaceResult:
        return answer if when(order) else Accepted(f"CA-{order.attempt_id}")

    return place


async def wait_over(stage: Stage, since_s: float = 0.0) -> None:
    """As if the time before the next probe had passed, in Postgres, and Valkey had been told."""
    await stage.dialing.run(
        "UPDATE cooldowns SET opens_at = clock_timestamp() - make_interval(secs => $1)", since_s
    )
    await stage.reconciler.run_once()


async def all_due(stage: Stage) -> None:
    await stage.dialing.run(
        "UPDATE leads SET due_at = now() - interval '1 second', version = version + 1 WHERE status = 'BACKLOG'"
    )


async def unfinished(stage: Stage) -> int:
    count: int = await stage.dialing.value("SELECT count(*) FROM leads WHERE status <> 'FINISHED'")
    return count


async def costs(stage: Stage) -> int:
    """Attempts and carrier errors that leads which wait have lost."""
    sum_: int = await stage.dialing.value(
        "SELECT coalesce(sum(attempt_count + carrier_error_count), 0) FROM leads WHERE status = 'BACKLOG'"
    )
    return sum_


async def dial_all(stage: Stage, *dialers: Dialer) -> None:
    """Until a round of every dialer sends nothing."""
    while sum([await stage.dial(dialer) for dialer in dialers or (stage.dialer,)]):
        pass


def has_more(stage: Stage, before: int) -> bool:
    return len(stage.carrier.orders) > before


async def test_wrong_credentials_cool_the_account_down_and_cost_no_lead_an_attempt(stage: Stage) -> None:
    leads = await stage.dialing.leads(40)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    burst = len(stage.carrier.orders)
    assert burst <= 16, "one batch, and then the account is left alone"
    await all_due(stage)
    await dial_all(stage)
    assert len(stage.carrier.orders) == burst
    assert await unfinished(stage) == len(leads)
    assert await costs(stage) == 0


async def test_one_probe_at_a_time_over_all_processes_each_for_another_lead(stage: Stage) -> None:
    await stage.dialing.leads(6)
    other = stage.another_dialer()
    answered = asyncio.Event()
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage, stage.dialer, other)

    async def held(order: CallOrder) -> PlaceResult:
        await answered.wait()
        return CREDENTIALS

    stage.carrier.answer = held
    asked: list[str] = []
    for _ in range(3):
        answered.clear()
        before = len(stage.carrier.orders)
        await all_due(stage)
        await wait_over(stage)
        await stage.loader.run_once()
        await asyncio.gather(stage.dialer.run_once(), other.run_once())
        await asyncio.gather(stage.dialer.run_once(), other.run_once())
        await eventually(partial(has_more, stage, before))
        assert len(stage.carrier.orders) == before + 1, "the others wait for its answer"
        asked.append(stage.carrier.orders[-1].to)
        answered.set()
        await stage.dialer.drain()
        await other.drain()
    assert asked[0] != asked[1] != asked[2]


@pytest.mark.parametrize("at_once", [True, False])
async def test_concurrent_intents_under_a_cooldown_commit_one_probe(stage: Stage, *, at_once: bool) -> None:
    """Valkey does not know of the probe yet, and another process commits: at the same time, or just after it."""
    leads = await stage.dialing.leads(4)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    await all_due(stage)
    await wait_over(stage)
    versions = {lead: (await stage.lead(lead))["version"] for lead in leads}
    intents = [stage.dialing.intend(stage.dialing.grant(lead, version=versions[lead])) for lead in leads]
    told = await asyncio.gather(*intents) if at_once else [await each for each in intents]
    assert sum(len(each.committed) for each in told) == 1
    assert {(each.reason, each.subject) for said in told for each in said.refused.values()} == {
        (RefusalReason.COOLDOWN, "account")
    }


async def test_an_accepted_probe_ends_the_cooldown_and_all_leads_are_dialled(stage: Stage) -> None:
    leads = await stage.dialing.leads(5)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    stage.carrier.answer = stage.carrier.accept
    await all_due(stage)
    await wait_over(stage)
    assert await stage.dial() == 1
    assert await stage.dialing.value("SELECT count(*) FROM cooldowns") == 0
    await stage.reconciler.run_once()
    await dial_all(stage)
    states = [(await stage.attempts(lead))[-1]["state"] for lead in leads]
    assert states == ["accepted"] * 5


async def test_the_probe_interval_doubles_up_to_five_minutes(stage: Stage) -> None:
    await stage.dialing.leads(12)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    waits = []
    for _ in range(6):
        await all_due(stage)
        await wait_over(stage)
        assert await stage.dial() == 1
        waits.append(
            await stage.dialing.value(
                "SELECT round(extract(epoch FROM c.opens_at - a.send_at)) FROM cooldowns AS c"
                " JOIN attempts AS a ON a.id = c.probe"
            )
        )
    assert waits == [40, 80, 160, 300, 300, 300]


async def test_the_same_lead_is_the_next_probe_when_no_other_waits(stage: Stage) -> None:
    await stage.dialing.lead()
    stage.carrier.says(CREDENTIALS)
    for count in range(1, 4):
        await stage.dial()
        assert len(stage.carrier.orders) == count
        await all_due(stage)
        await wait_over(stage, since_s=3)


async def test_a_refused_number_cools_down_alone(stage: Stage) -> None:
    leads = await stage.dialing.leads(20)
    good = await stage.dialing.add_number(max_channels=50)
    await stage.reconciler.run_once()
    bad = await stage.dialing.value("SELECT e164 FROM numbers WHERE id = $1", stage.dialing.number)
    stage.carrier.answer = refusing(CALLER_ID, lambda order: order.from_ == bad)
    await dial_all(stage)
    refused = sum(order.from_ == bad for order in stage.carrier.orders)
    await all_due(stage)
    await dial_all(stage)
    assert sum(order.from_ == bad for order in stage.carrier.orders) == refused
    for lead in leads:
        last = (await stage.attempts(lead))[-1]
        assert (last["state"], last["number_id"]) == ("accepted", good)
    held = await stage.dialing.value("SELECT array_agg(scope || ' ' || subject) FROM cooldowns")
    assert held == [f"number {stage.dialing.number}"]


async def test_a_refused_country_cools_down_alone(stage: Stage) -> None:
    indian = [await stage.dialing.lead(f"+91226543210{n}") for n in range(5)]
    stage.carrier.answer = refusing(GEOGRAPHY, lambda order: order.to.startswith("+91"))
    await dial_all(stage)
    refused = len(stage.carrier.orders)
    await all_due(stage)
    american = await stage.dialing.leads(5)
    await dial_all(stage)
    assert len(stage.carrier.orders) == refused + 5
    assert {(await stage.attempt(lead))["state"] for lead in american} == {"accepted"}
    assert {(await stage.lead(lead))["status"] for lead in indian} == {"BACKLOG"}
    assert await costs(stage) == 0


async def test_an_unknown_code_of_one_destination_ends_that_lead_without_a_cooldown(stage: Stage) -> None:
    odd = await stage.dialing.lead()
    phone = (await stage.lead(odd))["phone"]
    stage.carrier.answer = refusing(UNKNOWN, lambda order: order.to == phone)
    for _ in range(3):
        others = await stage.dialing.leads(3)
        await all_due(stage)
        await dial_all(stage)
        assert {(await stage.attempt(lead))["state"] for lead in others} == {"accepted"}
    row = await stage.lead(odd)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == ("FINISHED", "CARRIER_ERROR", "77777")
    assert await stage.dialing.value("SELECT count(*) FROM cooldowns") == 0


async def test_an_unknown_code_for_three_people_in_a_row_cools_the_account_down(stage: Stage) -> None:
    stage.carrier.says(UNKNOWN)
    for count in range(1, 4):
        await stage.dialing.lead()
        assert await stage.dial() == 1
        held = await stage.dialing.value("SELECT count(*) FROM cooldowns")
        assert held == (1 if count == 3 else 0)
    await stage.dialing.lead()
    assert await stage.dial() == 0


async def test_several_leads_of_one_phone_count_as_one_person(stage: Stage) -> None:
    await stage.dialing.run("INSERT INTO carrier_health (carrier, account) VALUES ('twilio', 'other')")
    same = [await stage.dialing.lead("+14155550123") for _ in range(20)]
    others = await stage.dialing.leads(2)
    account = ("twilio", "other")
    async with stage.database.connection() as conn:
        assert await cooldowns.note_unexplained(conn, account, "77777", same[:3]) == 1
        assert await cooldowns.note_unexplained(conn, account, "77777", same) == 1
        assert await cooldowns.note_unexplained(conn, account, "77777", others[:1]) == 2
        assert await cooldowns.note_unexplained(conn, account, "77777", [*same, *others]) == 3
        assert await cooldowns.note_unexplained(conn, account, "88888", same) == 1
        assert await cooldowns.note_unexplained(conn, ("twilio", "new"), "77777", same) == 1


async def test_an_unknown_code_for_one_person_three_times_makes_no_cooldown(stage: Stage) -> None:
    stage.carrier.says(UNKNOWN)
    for _ in range(4):
        await stage.dialing.lead("+14155550123")
        assert await stage.dial() == 1
    assert await stage.dialing.value("SELECT count(*) FROM cooldowns") == 0


async def test_a_lead_is_not_ended_by_an_unknown_code_while_no_other_call_is_taken(stage: Stage) -> None:
    await stage.dialing.run("UPDATE carrier_health SET taken_at = taken_at - interval '2 minutes'")
    lead = await stage.dialing.lead()
    stage.carrier.says(UNKNOWN)
    for _ in range(6):
        await all_due(stage)
        await stage.dial()
    assert len(stage.carrier.orders) == 6
    row = await stage.lead(lead)
    assert (row["status"], row["carrier_error_count"]) == ("BACKLOG", 0)


async def delay_s(stage: Stage, lead: UUID) -> float:
    """How long after its last refusal a lead is due again."""
    seconds: float = await stage.dialing.value(
        "SELECT extract(epoch FROM l.due_at - max(a.send_at))::float8 FROM leads AS l"
        " JOIN attempts AS a ON a.lead_id = l.id WHERE l.id = $1 GROUP BY l.due_at",
        lead,
    )
    return seconds


async def long_ago(stage: Stage) -> None:
    """Whatever was taken or refused was it two minutes earlier: the account is a quiet one."""
    await stage.dialing.run("UPDATE carrier_health SET taken_at = taken_at - interval '2 minutes'")
    await stage.dialing.run("UPDATE attempts SET send_at = send_at - interval '2 minutes'")


async def test_a_lone_lead_refused_by_an_unknown_code_backs_off_up_to_an_hour(stage: Stage) -> None:
    await long_ago(stage)
    lead = await stage.dialing.lead()
    stage.carrier.says(UNKNOWN)
    waits = []
    for _ in range(8):
        await all_due(stage)
        await stage.dial()
        waits.append(await delay_s(stage, lead))
    # Some more, between the request and the writing of its answer.
    least = (60, 120, 240, 480, 960, 1920, 3600, 3600)
    assert all(waited >= each for waited, each in zip(waits, least, strict=True))


async def test_a_third_refusal_by_an_unknown_code_raises_unexplained_refusals(stage: Stage) -> None:
    await long_ago(stage)
    lead = await stage.dialing.lead()
    stage.carrier.says(UNKNOWN)
    raised = "SELECT count(*) FROM alarms WHERE name = 'unexplained_refusals'"
    for count in (1, 2, 3):
        await all_due(stage)
        await stage.dial()
        assert await stage.dialing.value(raised) == (1 if count == 3 else 0)
    alarm = await stage.dialing.row("SELECT * FROM alarms WHERE name = 'unexplained_refusals'")
    assert alarm["subject"] == "twilio/default"
    assert alarm["detail"] == {"code": "77777", "lead_id": str(lead), "times": 3}


async def test_on_a_quiet_account_an_unknown_code_ends_a_lead_while_others_are_taken(stage: Stage) -> None:
    """Others are taken between its refusals, each of them longer ago than a minute."""
    await long_ago(stage)
    odd = await stage.dialing.lead()
    phone = (await stage.lead(odd))["phone"]
    stage.carrier.answer = refusing(UNKNOWN, lambda order: order.to == phone)
    for count in range(4):
        assert (await stage.lead(odd))["carrier_error_count"] == max(0, count - 1)
        await all_due(stage)
        await dial_all(stage)
        await stage.dialing.lead()
        await dial_all(stage)
        await long_ago(stage)
    row = await stage.lead(odd)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == ("FINISHED", "CARRIER_ERROR", "77777")
    assert await stage.dialing.value("SELECT count(*) FROM alarms") == 0


async def test_the_last_lead_ends_by_an_unknown_code_when_others_were_taken_since(stage: Stage) -> None:
    """All others were taken between its first refusal and its second: nobody is left to be taken later."""
    await long_ago(stage)
    odd = await stage.dialing.lead()
    phone = (await stage.lead(odd))["phone"]
    stage.carrier.answer = refusing(UNKNOWN, lambda order: order.to == phone)
    await dial_all(stage)
    await stage.dialing.lead()
    await dial_all(stage)
    for _ in range(3):
        await long_ago(stage)
        await all_due(stage)
        await dial_all(stage)
    row = await stage.lead(odd)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == ("FINISHED", "CARRIER_ERROR", "77777")


async def test_a_reopened_leads_backoff_for_unknown_codes_starts_anew(stage: Stage) -> None:
    await long_ago(stage)
    lead = await stage.dialing.lead()
    stage.carrier.says(UNKNOWN)
    for _ in range(4):
        await all_due(stage)
        await stage.dial()
    await stage.dialing.run(
        "INSERT INTO lead_reopenings (lead_id, reseller_id, merchant_id, no, request_id, reason, actor, outcome,"
        " finished_at) SELECT id, reseller_id, merchant_id, 1, 'again', 'why', 'ops', 'ABORTED', now() FROM leads"
        " WHERE id = $1",
        lead,
    )
    await all_due(stage)
    await stage.dial()
    assert 60 <= await delay_s(stage, lead) < 960, "the fifth time in a row it would be 960"


async def test_an_attempt_found_absent_backs_its_lead_off_longer_each_time(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    stage.carrier.says(InDoubt("timeout"))
    waits = []
    for _ in range(3):
        await all_due(stage)
        await stage.dial()
        attempt = (await stage.attempts(lead))[-1]["id"]
        await stage.dialing.run("UPDATE attempts SET doubt_checks = 3")
        await stage.dialing.run("UPDATE carrier_health SET taken_at = taken_at - interval '20 minutes'")
        await stage.age(attempt, 601)
        before = await stage.dialing.value("SELECT clock_timestamp()")
        await stage.checker.run_once()
        waits.append(((await stage.lead(lead))["due_at"] - before).total_seconds())
    assert all(waited >= least for waited, least in zip(waits, (60, 120, 240), strict=True))
    raised = await stage.dialing.row("SELECT * FROM alarms WHERE name = 'unexplained_refusals'")
    assert raised["detail"]["code"] == "not_in_call_list"


async def test_a_process_that_cannot_reach_the_carrier_leaves_its_leads_to_other_processes(
    stage: Stage,
) -> None:
    """Its DNS is broken, theirs is not."""
    leads = await stage.dialing.leads(8)
    healthy = stage.another_dialer()
    stage.carrier.says(NO_DNS)
    assert await stage.dial() == 8
    stage.carrier.answer = stage.carrier.accept
    await all_due(stage)
    assert await stage.dial() == 0, "it asks for none of them"
    assert await stage.dial(healthy) == 8
    assert {(await stage.attempts(lead))[-1]["state"] for lead in leads} == {"accepted"}
    assert await costs(stage) == 0


async def test_an_accepted_call_ends_the_cooldown_of_its_process(stage: Stage) -> None:
    """One connection that failed among many is no outage."""
    await stage.dialing.leads(2)
    answered = asyncio.Event()
    asked: list[CallOrder] = []

    async def place(order: CallOrder) -> PlaceResult:
        asked.append(order)
        if len(asked) == 1:
            return NO_DNS
        await answered.wait()
        return Accepted(f"CA-{order.attempt_id}")

    stage.carrier.answer = place
    await stage.loader.run_once()
    try:
        await stage.dialer.run_once()
        query = "SELECT count(*) FROM cooldowns WHERE scope = 'process'"
        await eventually(lambda: stage.dialing.value(query), what="the failure is known")
    finally:
        answered.set()
        await stage.dialer.drain()
    assert await stage.dialing.value(query) == 0
    await stage.dialing.leads(3)
    assert await stage.dial() == 3


async def test_a_carrier_unreachable_for_two_processes_cools_the_account_down(stage: Stage) -> None:
    await stage.dialing.leads(3)
    second, third = stage.another_dialer(), stage.another_dialer()
    stage.carrier.says(NO_DNS)
    await stage.dial()
    await all_due(stage)
    await stage.dial(second)
    asked = len(stage.carrier.orders)
    await all_due(stage)
    assert await stage.dial(third) == 0
    assert len(stage.carrier.orders) == asked
    async with stage.database.connection() as conn:
        held = await cooldowns.active(conn, ("twilio", "default"))
    assert [each.subject.scope for each in held] == ["process", "process", "account"]
    assert await unfinished(stage) == 3


async def test_a_process_that_failed_minutes_ago_does_not_count_against_the_account(stage: Stage) -> None:
    await stage.dialing.leads(3)
    second = stage.another_dialer()
    await stage.dialing.run("UPDATE carrier_health SET taken_at = taken_at - interval '4 minutes'")
    stage.carrier.says(NO_DNS)
    await stage.dial()
    await stage.dialing.run("UPDATE cooldowns SET refused_at = refused_at - interval '3 minutes'")
    await all_due(stage)
    await stage.dial(second)
    async with stage.database.connection() as conn:
        held = await cooldowns.active(conn, ("twilio", "default"))
    assert [each.subject.scope for each in held] == ["process", "process"]


@pytest.mark.parametrize("silence", ["new", "an hour ago"])
async def test_a_new_or_long_idle_account_begins_with_one_call(stage: Stage, silence: str) -> None:
    await stage.dialing.run(
        "DELETE FROM carrier_health"
        if silence == "new"
        else "UPDATE carrier_health SET taken_at = clock_timestamp() - interval '61 minutes'"
    )
    leads = await stage.dialing.leads(5)
    assert await stage.dial() == 1
    await stage.reconciler.run_once()
    await eventually(lambda: stage.dial(), what="the others follow")
    await dial_all(stage)
    assert {(await stage.attempt(lead))["state"] for lead in leads} == {"accepted"}


async def test_a_refused_destination_counts_as_a_working_account(stage: Stage) -> None:
    await stage.dialing.run("DELETE FROM carrier_health")
    stage.carrier.says(Rejected("refused", "21211", retryable=False, blames="destination"), Accepted("CA-1"))
    await stage.dialing.leads(2)
    assert await stage.dial() == 1
    await stage.reconciler.run_once()
    await eventually(lambda: stage.dial(), what="the second one follows")


async def test_a_rebuilt_projection_grants_nothing_for_an_account_in_cooldown(stage: Stage) -> None:
    await stage.dialing.leads(5)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    await all_due(stage)
    await stage.forget()
    stage.bus.epoch = 0
    await stage.rebuilder.run_once()
    await stage.loader.run_once()
    found = await schedule.match(stage.bus, [new_id() for _ in range(5)], clock_offset_ms=0)
    assert found.grants == ()
    assert found.next_in_s is not None
    assert found.next_in_s > 1, "and nobody is told to ask again before the next probe"


async def test_without_valkey_an_account_in_cooldown_is_not_dialled(stage: Stage) -> None:
    await stage.dialing.leads(3)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    asked = len(stage.carrier.orders)
    await all_due(stage)
    await stage.forget()
    stage.bus.epoch = 0
    for _ in range(3):
        await stage.dialer.run_once()
        await stage.dialer.drain()
    assert len(stage.carrier.orders) == asked


async def test_carrier_refuses_names_cause_and_remedy_and_clears_with_the_cooldown(stage: Stage) -> None:
    await stage.dialing.leads(2)
    stage.carrier.says(CREDENTIALS)
    await dial_all(stage)
    alarm = await stage.dialing.row("SELECT * FROM alarms WHERE name = 'carrier_refuses'")
    assert (alarm["subject"], alarm["cleared_at"]) == ("twilio/default", None)
    assert alarm["detail"]["code"] == "20003"
    assert alarm["detail"]["cause"] == "wrong credentials"
    assert "credentials" in alarm["detail"]["remedy"]
    stage.carrier.answer = stage.carrier.accept
    await all_due(stage)
    await wait_over(stage)
    await stage.dial()
    ended = await stage.dialing.value("SELECT cleared_at FROM alarms WHERE name = 'carrier_refuses'")
    assert ended is not None


async def test_a_cooldown_shows_its_subject_cause_start_and_end(stage: Stage) -> None:
    await stage.dialing.lead()
    stage.carrier.says(CALLER_ID)
    await stage.dial()
    async with stage.database.connection() as conn:
        (held,) = await cooldowns.active(conn, ("twilio", "default"), stage.dialing.number)
        others = await cooldowns.active(conn, ("twilio", "default"), new_id())
    assert held.subject == Subject("number", str(stage.dialing.number))
    assert (held.code, held.why) == ("21210", "our number is not verified")
    assert held.refused_at is not None
    assert held.since <= held.refused_at < held.until
    assert others == []


async def test_an_absent_attempt_costs_no_carrier_error_while_the_account_takes_no_call(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    stage.carrier.says(InDoubt("timeout"))
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.dialing.run("UPDATE attempts SET doubt_checks = 3")
    await stage.dialing.run("UPDATE carrier_health SET taken_at = taken_at - interval '1 hour'")
    await stage.age(attempt, 601)
    await stage.checker.run_once()
    row = await stage.lead(lead)
    assert (row["status"], row["carrier_error_count"], row["attempt_count"]) == ("BACKLOG", 0, 0)


async def number_of(stage: Stage, account: str) -> UUID:
    """Of a pool of its own, which merchant `n` calls from."""
    await stage.dialing.run("INSERT INTO pools (id, reseller_id, name) VALUES ('q', 'r', 'q')")
    number = await stage.dialing.add_number(account=account)
    await stage.dialing.run("UPDATE numbers SET pool_id = 'q' WHERE id = $1", number)
    await stage.reconciler.run_once()
    return number


async def test_a_hanging_account_delays_no_other_account(stage: Stage) -> None:
    healthy = await number_of(stage, "healthy")
    number = await stage.dialing.value("SELECT e164 FROM numbers WHERE id = $1", healthy)
    answered = asyncio.Event()

    async def hangs(order: CallOrder) -> PlaceResult:
        if order.from_ != number:
            await answered.wait()
        return Accepted(f"CA-{order.attempt_id}")

    stage.carrier.answer = hangs
    dialer = stage.another_dialer(in_flight_max=8, account_share=2)
    try:
        await stage.dialing.leads(30)
        await stage.loader.run_once()
        await dialer.run_once()
        await eventually(lambda: len(stage.carrier.orders) == 8, what="all of the room: nobody else waits")
        for _ in range(3):
            await dialer.run_once()
        lead = await stage.dialing.lead()
        await stage.dialing.run("UPDATE leads SET pool_id = 'q', merchant_id = 'n' WHERE id = $1", lead)
        await stage.loader.run_once()
        await dialer.run_once()
        await eventually(lambda: any(order.from_ == number for order in stage.carrier.orders))
        assert len(stage.carrier.orders) == 9
    finally:
        answered.set()
        await dialer.drain()


async def test_a_call_that_failed_by_our_fault_cools_the_account_down(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.told(attempt, "ended", reason="failed", fault="10001")
    row = await stage.lead(lead)
    assert (row["status"], row["attempt_count"], row["carrier_error_count"]) == ("BACKLOG", 0, 0)
    assert (await stage.attempt(lead))["end_reason"] == "failed:10001"
    await stage.dialing.leads(3)
    assert await stage.dial() == 0, "the account rests"


@pytest.mark.parametrize("asked_by", ["live calls", "checker"])
async def test_a_failure_by_our_fault_found_by_a_lookup_cools_the_account_down(
    stage: Stage, asked_by: str
) -> None:
    """Its webhook was lost."""
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.live_calls.run_once()
    stage.carrier.found[f"CA-{attempt}"] = CallView(
        f"CA-{attempt}", "", "", "failed", "ended", "failed", ended_at=datetime.now(UTC), fault="10001"
    )
    await stage.age(attempt, 60)
    if asked_by == "checker":
        await stage.checker.run_once()
    else:
        await stage.dialing.run(
            "UPDATE account_looks SET next_at = now(), looked_at = now() - interval '30 s'"
        )
        await stage.live_calls.run_once()
        await stage.live_calls.drain()
    await stage.folder.drain()
    row = await stage.lead(lead)
    assert (row["status"], row["attempt_count"], row["carrier_error_count"]) == ("BACKLOG", 0, 0)
    assert (await stage.attempt(lead))["end_reason"] == "failed:10001"
    await stage.dialing.leads(3)
    assert await stage.dial() == 0, "the account rests"


async def test_after_failures_by_our_fault_a_probe_must_ring_to_end_the_cooldown(stage: Stage) -> None:
    """Or every call that is taken would end the cooldown, and a burst would fail."""
    first = await stage.dialing.lead()
    await stage.dial()
    await stage.told((await stage.attempt(first))["id"], "ended", reason="failed", fault="10001")
    await stage.dialing.leads(3)
    await wait_over(stage)
    assert await stage.dial() == 1
    await stage.reconciler.run_once()
    assert await stage.dial() == 0, "it was taken, and nobody knows whether it rings"
    probe = stage.carrier.orders[-1].attempt_id
    await stage.told(probe, "ringing")
    await stage.reconciler.run_once()
    await eventually(lambda: stage.dial(), what="the others follow")
    assert await stage.dialing.value("SELECT count(*) FROM cooldowns") == 0
    open_alarms = "SELECT count(*) FROM alarms WHERE name = 'carrier_refuses' AND cleared_at IS NULL"
    assert await stage.dialing.value(open_alarms) == 0, "the intent that ended the cooldown says so"
