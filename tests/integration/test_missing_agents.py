"""Answered calls and their agents: who took them, what becomes of leads that found none, and when a merchant stops."""

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.metric_values import value
from trunkline.control.presence import counted
from trunkline.control.waits import Cause, cause
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.why import why
from trunkline.leads.calling_policy import CallingPolicy, Price, RecentContact
from trunkline.leads.limits import PersonLimit
from trunkline.model import Blocks, CallReport, RefusalReason, new_id
from trunkline.store import abandonment, allocations, call_reports, live, mailboxes, pods, waiting
from trunkline.store.abandonment import BrakeRule
from trunkline.store.allocations import Release
from trunkline.store.mailboxes import NewEvent
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics

ADA = "+12125550001"


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def dialled(stage: Stage, lead: UUID | None = None, **more: Any) -> tuple[UUID, UUID]:
    """A lead that is being called, and its attempt."""
    lead = lead or await stage.dialing.lead(**more)
    await stage.dial()
    return lead, (await stage.attempts(lead))[-1]["id"]


async def called(stage: Stage, lead: UUID | None = None, **more: Any) -> UUID:
    """A lead that was called, answered, and had no agent."""
    lead, attempt = await dialled(stage, lead, **more)
    await stage.told(attempt, "answered", "ended", agent_joined=False, duration_s=3)
    return lead


async def waits_s(stage: Stage, lead: UUID) -> float:
    row = await stage.lead(lead)
    assert row["status"] == "BACKLOG", row
    wait: timedelta = row["due_at"] - row["updated_at"]
    return 5 * math.ceil(wait.total_seconds() / 5)


async def alarms(stage: Stage) -> set[tuple[str, str]]:
    async with stage.database.connection() as conn:
        rows = await conn.fetch("SELECT name, subject FROM alarms WHERE cleared_at IS NULL")
    return {(row["name"], row["subject"]) for row in rows}


async def given(
    stage: Stage,
    attempt: UUID,
    *,
    begun_ago_s: float = 60,
    joined: bool = False,
    heard_ago_s: float | None = None,
    named: bool = False,
    incarnation: int = 7,
) -> None:
    """The call was given to a pod, which has sent its last heartbeat so long ago."""
    await stage.dialing.run(
        "INSERT INTO pods (name, incarnation, tier, heard_at, named)"
        " VALUES ('pod-1', $1, 'standard', now() - make_interval(secs => $2), $3)",
        incarnation,
        heard_ago_s if heard_ago_s is not None else 3600,
        [f"CA-{attempt}"] if named else ["another"],
    )
    await stage.dialing.run(
        "INSERT INTO allocations (id, has_attempt, call, pod, slot, incarnation, begun_at, joined_at)"
        " VALUES ($1, true, $2, 'pod-1', 1, 7, now() - make_interval(secs => $3), CASE WHEN $4 THEN now() END)",
        attempt,
        f"CA-{attempt}",
        begun_ago_s,
        joined,
    )


# Who took the call


@pytest.mark.parametrize(
    ("events", "allocation", "agent", "outcome"),
    [
        ([], None, "unknown", "ANSWERED"),
        ([], {}, "unknown", "ANSWERED"),
        ([], {"joined": True}, "joined", "ANSWERED"),
        (["stream_began"], None, "joined", "ANSWERED"),
        (["stream_failed"], {}, "none", None),
        (["stream_failed"], {"joined": True}, "joined", "ANSWERED"),
        (["refused"], {}, "none", None),
        (["refused", "stream_began"], {}, "none", None),
        (["refused"], {"joined": True}, "joined", "ANSWERED"),
        # The pod's heartbeats: the stream was given a minute ago.
        ([], {"heard_ago_s": 10}, "none", None),
        ([], {"heard_ago_s": 10, "named": True}, "joined", "ANSWERED"),
        ([], {"heard_ago_s": 55}, "unknown", "ANSWERED"),
        ([], {"heard_ago_s": -60}, "unknown", "ANSWERED"),
        ([], {"heard_ago_s": 10, "incarnation": 8}, "unknown", "ANSWERED"),
        ([], {"heard_ago_s": 10, "begun_ago_s": 15}, "unknown", "ANSWERED"),
        (["stream_began"], {"heard_ago_s": 10}, "joined", "ANSWERED"),
    ],
)
async def test_an_answered_calls_agent_is_joined_none_or_unknown_by_its_evidence(
    stage: Stage, events: list[str], allocation: dict[str, Any] | None, agent: str, outcome: str | None
) -> None:
    lead, attempt = await dialled(stage)
    if allocation is not None:
        await given(stage, attempt, **allocation)
    await stage.told(attempt, "answered", at=datetime.now(UTC) - timedelta(seconds=60))
    await stage.told(attempt, *events)
    await stage.told(attempt, "ended", duration_s=60)
    assert (await stage.attempt(lead))["agent"] == agent
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"]) == ("FINISHED" if outcome else "BACKLOG", outcome)


async def test_a_call_of_external_agents_counts_as_answered_by_an_external_agent(
    stage: Stage,
) -> None:
    lead, attempt = await dialled(stage)
    await stage.told(attempt, "answered", "ended", agent_joined=True, duration_s=60)
    assert ((await stage.attempt(lead))["agent"], (await stage.lead(lead))["outcome"]) == (
        "external",
        "ANSWERED",
    )
    lead, attempt = await dialled(stage)
    await stage.dialing.run("UPDATE attempts SET carrier = 'vapi' WHERE id = $1", attempt)
    await stage.told(attempt, "answered", "ended", duration_s=60)
    assert ((await stage.attempt(lead))["agent"], (await stage.lead(lead))["outcome"]) == (
        "external",
        "ANSWERED",
    )


async def test_recent_endings_count_busy_and_no_agent_separately(stage: Stage) -> None:
    await called(stage)
    for reason in ("busy", "busy", "completed"):
        _, attempt = await dialled(stage)
        await stage.told(attempt, "ended", reason=reason, duration_s=9)
    async with stage.database.connection() as conn:
        found = await live.recent(conn, PLATFORM, window_s=300, slice_s=5)
    assert found.endings == {"no_agent": 1, "busy": 2, "completed": 1}


async def test_answered_calls_are_counted_by_whether_an_agent_joined(stage: Stage) -> None:
    names = [("answered", "twilio"), ("agent_unknown", "twilio")]
    without = metrics.ANSWERED_WITHOUT_AGENT.labels("twilio")
    before, missed = [counted().get(name, 0.0) for name in names], value(without)
    await called(stage)
    _, attempt = await dialled(stage)
    await stage.told(attempt, "answered", "ended", duration_s=60)
    await reported(stage, attempt, "interested")
    assert [counted()[name] for name in names] == [before[0] + 2, before[1] + 1], "each call once"
    assert value(without) == missed + 1


async def test_an_unanswered_call_has_no_agent_state(stage: Stage) -> None:
    lead, attempt = await dialled(stage)
    await stage.told(attempt, "ended", reason="busy")
    assert (await stage.attempt(lead))["agent"] is None


# The lead


async def test_a_lead_without_an_agent_is_retried_after_5_and_60_minutes_and_then_ends(
    stage: Stage,
) -> None:
    lead = await called(stage, max_attempts=1)
    assert await waits_s(stage, lead) == 300
    row = await stage.lead(lead)
    assert (row["attempt_count"], row["no_agent_count"]) == (0, 1)
    await stage.due_now(lead)
    await called(stage, lead)
    assert await waits_s(stage, lead) == 3600
    assert ("lead_ended_no_agent", "m") not in await alarms(stage)
    await stage.due_now(lead)
    await called(stage, lead)
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == ("FINISHED", "NO_AGENT", None)
    assert {("answered_without_agent", "m"), ("lead_ended_no_agent", "m")} <= await alarms(stage)
    assert len(await stage.attempts(lead)) == 3


async def test_a_call_without_an_agent_costs_no_attempt(stage: Stage) -> None:
    lead = await called(stage, max_attempts=2)
    for _ in range(2):
        await stage.due_now(lead)
        _, attempt = await dialled(stage, lead)
        await stage.told(attempt, "ended", reason="no_answer")
    row = await stage.lead(lead)
    assert (row["outcome"], row["attempt_count"], row["no_agent_count"]) == ("NO_ANSWER", 2, 1)


async def test_a_call_without_an_agent_counts_towards_the_persons_limits(stage: Stage) -> None:
    limit = PersonLimit(max_calls=1, window_h=24, then="defer")
    await stage.dialing.policy(CallingPolicy(person_limits=(limit,)))
    lead = await called(stage)
    await stage.due_now(lead)
    intents = await stage.dialing.intend(
        stage.dialing.grant(lead, version=(await stage.lead(lead))["version"])
    )
    (refusal,) = intents.refused.values()
    assert refusal.subject == "person_limits"


async def test_a_call_without_an_agent_is_no_recent_contact(stage: Stage) -> None:
    """Or a policy that ends leads of people contacted recently would end it by our fault."""
    await stage.dialing.policy(
        CallingPolicy(recent_contact=RecentContact.model_validate({"cooldown_h": 24, "then": "abort"}))
    )
    lead = await called(stage)
    await stage.due_now(lead)
    _, attempt = await dialled(stage, lead)
    assert len(await stage.attempts(lead)) == 2
    await stage.told(attempt, "answered", "ended", duration_s=60)
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


async def reported(stage: Stage, attempt: UUID, disposition: str | None = None, **more: Any) -> None:
    async with stage.database.transaction() as tx:
        await call_reports.insert(tx, attempt, CallReport(disposition, **more))
        await mailboxes.append(
            tx, [NewEvent("call", str(attempt), "reported", "reported", {"kind": "reported"})]
        )
    await stage.folder.drain()


async def test_a_late_agent_report_finishes_the_lead_without_another_call(stage: Stage) -> None:
    lead, attempt = await dialled(stage, max_attempts=1)
    await stage.told(attempt, "answered", "stream_failed", "ended", duration_s=60)
    assert (await stage.lead(lead))["status"] == "BACKLOG"
    await reported(stage, attempt, "interested")
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"]) == ("FINISHED", "INTERESTED")
    assert (row["attempt_count"], row["no_agent_count"]) == (1, 0)
    assert (await stage.attempt(lead))["agent"] == "joined"
    await stage.dialing.run("UPDATE leads SET due_at = now() WHERE id = $1", lead)
    assert await stage.dial() == 0


async def test_a_callback_in_a_late_agent_report_sets_the_due_time(stage: Stage) -> None:
    lead, attempt = await dialled(stage)
    await stage.told(attempt, "answered", "stream_failed", "ended", duration_s=60)
    await reported(stage, attempt, "later", callback_at=await stage.dialing.now() + timedelta(hours=5))
    row = await stage.lead(lead)
    assert await waits_s(stage, lead) == 5 * 3600
    assert (row["attempt_count"], row["no_agent_count"]) == (1, 0)


async def test_a_late_agent_report_replaces_the_outcome_no_agent(stage: Stage) -> None:
    lead, attempt = await dialled(stage)
    await stage.dialing.run("UPDATE leads SET no_agent_count = 2 WHERE id = $1", lead)
    await stage.told(attempt, "answered", "stream_failed", "ended", duration_s=60)
    assert (await stage.lead(lead))["outcome"] == "NO_AGENT"
    await reported(stage, attempt, "interested")
    assert (await stage.lead(lead))["outcome"] == "INTERESTED"


@pytest.mark.parametrize("no_agent_count", [0, 2])
async def test_a_no_agent_event_written_after_the_end_is_honoured(stage: Stage, no_agent_count: int) -> None:
    """While Postgres was away, the record of our document waited for it; the carrier's own webhooks came first."""
    lead, attempt = await dialled(stage, max_attempts=1)
    await stage.dialing.run("UPDATE leads SET no_agent_count = $2 WHERE id = $1", lead, no_agent_count)
    await stage.told(attempt, "ended", duration_s=3)
    assert ((await stage.attempt(lead))["agent"], (await stage.lead(lead))["outcome"]) == (
        "unknown",
        "ANSWERED",
    )
    await stage.told(attempt, "answered", agent_joined=False)
    assert (await stage.attempt(lead))["agent"] == "none"
    row = await stage.lead(lead)
    if no_agent_count:
        assert (row["status"], row["outcome"]) == ("FINISHED", "NO_AGENT")
        assert ("lead_ended_no_agent", "m") in await alarms(stage)
    else:
        assert await waits_s(stage, lead) == 300
        assert (row["attempt_count"], row["no_agent_count"]) == (0, 1)


@pytest.mark.parametrize("is_over", [True, False], ids=["the call is over", "the call goes on"])
@pytest.mark.parametrize(
    ("pod_says", "status"),
    [
        ("names_calls = true, interval_s = 30", "BACKLOG"),
        # One that never names a call may have had it, as long as it was not late.
        ("names_calls = false, interval_s = 30", "FINISHED"),
        ("names_calls = false, interval_s = 5", "BACKLOG"),
    ],
)
async def test_a_call_allocated_to_a_dead_pod_had_no_agent(
    stage: Stage, pod_says: str, status: str, is_over: bool
) -> None:
    """A carrier that cannot ask again ends such a call, and nobody says that its stream was refused."""
    lead, attempt = await dialled(stage)
    slot = await stage.dialing.pod("va-0")
    await stage.dialing.run(f"UPDATE pods SET {pod_says}, heard_at = now() - interval '20 s'")
    await stage.dialing.run(
        "INSERT INTO allocations (id, has_attempt, call, pod, slot, incarnation, begun_at)"
        " VALUES ($1, true, 'CA1', 'va-0', 1, $2, now())",
        attempt,
        slot.incarnation,
    )
    await stage.told(attempt, "answered")
    if is_over:
        await stage.told(attempt, "ended", duration_s=3)
    async with stage.database.transaction() as tx:
        await pods.remove(tx, "va-0", silent_s=15)
    await stage.folder.drain()
    if not is_over:
        await stage.told(attempt, "ended", duration_s=3)
    assert (await stage.lead(lead))["status"] == status


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("UPDATE pods SET heard_at = now() + interval '6 s'", "BACKLOG"),
        ("UPDATE pods SET heard_at = now() + interval '4 s'", "FINISHED"),
        ("UPDATE pods SET heard_at = now() + interval '6 s', names_calls = false", "FINISHED"),
    ],
    ids=["heard since", "not heard since", "it never names a call"],
)
@pytest.mark.parametrize("is_released", [False, True])
async def test_a_short_call_that_its_pod_never_reported_had_no_agent(
    stage: Stage, then: str, status: str, is_released: bool
) -> None:
    """The pod is alive and took no stream. One that releases the call, even after its end, had it."""
    lead, attempt = await dialled(stage)
    slot = await stage.dialing.pod("va-0")
    await stage.dialing.run("UPDATE pods SET names_calls = true")
    await stage.dialing.run(
        "INSERT INTO allocations (id, has_attempt, call, pod, slot, incarnation, begun_at)"
        " VALUES ($1, true, 'CA1', 'va-0', 1, $2, now())",
        attempt,
        slot.incarnation,
    )
    await stage.told(attempt, "answered", "ended", duration_s=1)
    async with stage.database.connection() as conn:
        if is_released:
            await allocations.release(conn, [Release("CA1", new_id(), "va-0", 0)])
        await stage.dialing.run(then)
        for _ in range(2):
            await allocations.tell_untaken(conn)
    await stage.folder.drain()
    assert (await stage.lead(lead))["status"] == ("FINISHED" if is_released else status)


async def test_an_attempts_agent_state_is_never_taken_back(stage: Stage) -> None:
    lead, attempt = await dialled(stage)
    await given(stage, attempt, joined=True)
    await stage.told(attempt, "answered", "ended", duration_s=60)
    await stage.dialing.run("DELETE FROM allocations")
    await stage.told(attempt, "stream_failed")
    assert (await stage.attempt(lead))["agent"] == "joined"
    other, attempt = await dialled(stage)
    await stage.told(attempt, "answered", "stream_failed", "ended", duration_s=60)
    await stage.told(attempt, "machine")
    assert (await stage.attempt(other))["agent"] == "none"
    assert (await stage.lead(other))["status"] == "BACKLOG"


@pytest.mark.parametrize(
    ("told", "agent", "status"),
    [
        (("stream_began", "stream_ended"), "joined", "FINISHED"),
        (("stream_failed",), "none", "BACKLOG"),
        # It broke, or another pod took the call after one that could not.
        (("stream_began", "stream_failed"), "joined", "FINISHED"),
    ],
)
async def test_what_a_carrier_reports_of_streams_late_doubled_or_in_another_order_says_the_same(
    stage: Stage, told: tuple[str, ...], agent: str, status: str
) -> None:
    orders = [
        ("answered", *told, "ended"),
        (*reversed(told), "answered", "ended"),
        ("answered", "ended", *told),
        ("answered", "ended", *reversed(told)),
        ("ended", *told, "answered", *told),
    ]
    for order in orders:
        lead, attempt = await dialled(stage)
        await given(stage, attempt)
        for n, kind in enumerate(order):
            await stage.told(attempt, kind, duration_s=3, dedupe_key=f"{n}:{kind}")
            await stage.told(attempt, kind, duration_s=3, dedupe_key=f"{n}:{kind}")
        row = await stage.lead(lead)
        found = (await stage.attempt(lead))["agent"], row["status"], row["no_agent_count"]
        assert found == (agent, status, 1 if agent == "none" else 0), order
        await stage.dialing.run("DELETE FROM allocations")
        await stage.dialing.run("DELETE FROM pods")


# Answered, whatever webhooks were lost


async def test_a_call_with_talk_time_counts_as_answered_for_outcome_cost_and_limits(
    stage: Stage,
) -> None:
    price = Price(per_call_micros=1_000, per_minute_micros=10_000, reserve_minutes=2)
    await stage.dialing.policy(CallingPolicy(price=price, recent_contact=RecentContact()))
    lead, attempt = await dialled(stage, phone=ADA)
    await stage.told(attempt, "ended", duration_s=61)
    row = await stage.attempt(lead)
    assert (row["answered_at"], row["agent"]) == (row["ended_at"] - timedelta(seconds=61), "unknown")
    assert row["cost_micros"] == 21_000
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"
    again = await stage.dialing.lead(ADA)
    (refusal,) = (await stage.dialing.intend(stage.dialing.grant(again))).refused.values()
    assert refusal.subject == "recent_contact"


async def test_a_call_completed_after_0_s_without_an_answer_has_an_unknown_agent(
    stage: Stage,
) -> None:
    """Its carrier hung up while it rang, or somebody answered for less than a second: in doubt nobody is rung again."""
    lead, attempt = await dialled(stage)
    await stage.told(attempt, "ended", duration_s=0)
    row = await stage.attempt(lead)
    assert (row["answered_at"], row["agent"]) == (None, "unknown")
    ended = await stage.lead(lead)
    assert (ended["status"], ended["outcome"]) == ("FINISHED", "ANSWERED")


async def test_a_call_hung_up_while_ringing_is_aborted_though_its_carrier_says_completed(
    stage: Stage,
) -> None:
    lead, attempt = await dialled(stage)
    await stage.dialing.run(
        "UPDATE leads SET cancel_requested_at = now(), cancel_reason = 'x' WHERE id = $1", lead
    )
    await stage.dialing.run("UPDATE attempts SET hang_up_at = now() WHERE id = $1", attempt)
    await stage.told(attempt, "ended", duration_s=0)
    assert (await stage.lead(lead))["outcome"] == "ABORTED"


# The circuit breaker


async def past_calls(
    stage: Stage,
    agent: str,
    count: int,
    *,
    ago_s: float = 60,
    merchant: str = "m",
    overdialled: bool = False,
    agent_joined: bool | None = None,
) -> None:
    """Answered calls that ended so long ago. `agent_joined` False: no agent was free for it."""
    for _ in range(count):
        stage.dialing._made += 1
        attempt = await stage.dialing.attempt(
            f"+1646555{stage.dialing._made:04d}",
            merchant=merchant,
            ago_s=ago_s,
            answered_at=datetime.now(UTC),
        )
        await stage.dialing.run(
            "UPDATE attempts SET agent = $2, ended_at = now() - make_interval(secs => $3), agent_joined = $4,"
            " overdial_group = $5 WHERE id = $1",
            attempt,
            agent,
            ago_s,
            agent_joined,
            "common" if overdialled else None,
        )


async def stops_until(stage: Stage, merchant: str = "m") -> datetime | None:
    found: datetime | None = await stage.dialing.value(
        "SELECT stops_until FROM no_agent_brakes WHERE merchant_id = $1", merchant
    )
    return found


@pytest.mark.parametrize(
    ("without", "others", "ago_s", "is_tripped"),
    [
        (4, 0, 60, False),  # five
        (5, 0, 60, True),  # six
        (5, 54, 60, False),  # six of sixty
        (5, 53, 60, True),  # six of fifty-nine
        (50, 0, 301, False),
    ],
)
async def test_more_than_five_and_10_percent_of_calls_without_an_agent_trip_the_merchants_brake(
    stage: Stage, without: int, others: int, ago_s: float, is_tripped: bool
) -> None:
    await past_calls(stage, "none", without, ago_s=ago_s)
    await past_calls(stage, "joined", others)
    await past_calls(stage, "none", 9, merchant="n")
    await called(stage)
    assert (await stops_until(stage) is not None) is is_tripped
    assert (("no_agent_brake", "m") in await alarms(stage)) is is_tripped
    assert await stops_until(stage, "n") is None, "another merchant's calls are its own"


async def test_calls_abandoned_by_overdialling_do_not_trip_the_brake(stage: Stage) -> None:
    """They have an end of their own, and say nothing about whether agents work."""
    await past_calls(stage, "none", 20, overdialled=True, agent_joined=False)
    await past_calls(stage, "none", 4, agent_joined=False)
    await called(stage)
    assert await stops_until(stage) is None, "five others"
    await called(stage)
    assert await stops_until(stage) is not None, "six"


async def test_overdialled_calls_with_missing_agents_trip_the_brake(stage: Stage) -> None:
    await past_calls(stage, "none", 5, overdialled=True)
    await called(stage)
    assert await stops_until(stage) is not None


async def stopped(stage: Stage) -> None:
    await past_calls(stage, "none", 5)
    await called(stage)
    assert await stops_until(stage) is not None


async def test_a_braked_merchants_leads_are_refused_and_why_names_the_brake(stage: Stage) -> None:
    await stopped(stage)
    until = await stops_until(stage)
    lead, other = await stage.dialing.lead(), await stage.dialing.lead(merchant="n")
    intents = await stage.dialing.intend(stage.dialing.grant(lead), stage.dialing.grant(other))
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.blocks, refusal.subject) == (
        RefusalReason.AGENTS,
        Blocks.FLOW,
        "no_agent_brake",
    )
    assert refusal.until == until
    assert until is not None
    assert timedelta(minutes=4) < until - await stage.dialing.now() <= timedelta(minutes=5)
    assert [intent.lead_id for intent in intents.committed] == [other]
    async with stage.database.connection() as conn:
        found = await why(conn, Policies(fresh_s=0), PLATFORM, lead)
    assert found is not None
    assert found.answer.startswith("It waits for an agent: answered calls of this merchant had no agent")
    assert found.next_at == until


async def test_leads_of_a_braked_merchant_are_no_halted_dispatch(stage: Stage) -> None:
    await stage.dialing.lead(due_in_s=-60)
    async with stage.database.connection() as conn:
        assert [cause(flow) for flow in await waiting.flows(conn)] == [Cause.NONE]
        await conn.execute("INSERT INTO no_agent_brakes (merchant_id, stops_until) VALUES ('m', now())")
        assert [cause(flow) for flow in await waiting.flows(conn)] == [Cause.NO_AGENT_BRAKE]


async def probing(stage: Stage) -> None:
    """Five minutes later."""
    await stopped(stage)
    await stage.dialing.run("UPDATE no_agent_brakes SET stops_until = now()")


async def test_after_the_brake_a_merchant_may_have_one_probe_call_at_a_time(stage: Stage) -> None:
    """Beside those that were going on when it stopped."""
    await probing(stage)
    await stage.dialing.attempt("+16465559999", state="answered", ago_s=900)
    leads = await stage.dialing.leads(3)
    first = await stage.dialing.intend(*map(stage.dialing.grant, leads))
    assert len(first.committed) == 1
    assert {refusal.subject for refusal in first.refused.values()} == {"merchant_concurrency"}
    waiting = [grant.lead_id for grant in first.refused]
    second = await stage.dialing.intend(stage.dialing.grant(waiting[0]))
    assert [refusal.subject for refusal in second.refused.values()] == ["no_agent_brake"]


async def test_one_of_two_concurrent_dialers_may_probe_a_braked_merchant(stage: Stage) -> None:
    await probing(stage)
    one, other = await stage.dialing.leads(2)
    first, _ = await stage.dialing.half_an_intent(stage.dialing.grant(one))
    second = await stage.dialing.blocked(stage.dialing.intend(stage.dialing.grant(other)))
    await stage.dialing.commit(first)
    (refusal,) = (await second).refused.values()
    assert refusal.subject == "merchant_concurrency"


async def test_a_probe_without_an_agent_is_followed_by_one_more_probe(stage: Stage) -> None:
    await probing(stage)
    until = await stops_until(stage)
    await called(stage)
    assert await stops_until(stage) == until
    first = await stage.dialing.intend(*map(stage.dialing.grant, await stage.dialing.leads(2)))
    assert len(first.committed) == 1


async def test_a_probe_with_an_agent_releases_the_brake(stage: Stage) -> None:
    await probing(stage)
    _, attempt = await dialled(stage)
    await given(stage, attempt, joined=True)
    intents = await stage.dialing.intend(*map(stage.dialing.grant, await stage.dialing.leads(3)))
    assert len(intents.committed) == 3
    await stage.told(attempt, "answered", "ended", duration_s=30)
    assert await stops_until(stage) is None
    assert ("no_agent_brake", "m") not in await alarms(stage)


async def test_a_probe_with_an_unknown_agent_releases_the_brake(stage: Stage) -> None:
    """Or a merchant whose agents never show themselves would be called one at a time for ever."""
    await probing(stage)
    _, attempt = await dialled(stage)
    await stage.told(attempt, "ended", reason="busy")
    assert await stops_until(stage) is not None
    _, attempt = await dialled(stage)
    await stage.told(attempt, "answered", "ended", duration_s=30)
    assert await stops_until(stage) is None


async def test_calls_before_the_release_do_not_trip_the_brake_again(stage: Stage) -> None:
    await probing(stage)
    _, attempt = await dialled(stage)
    await given(stage, attempt, joined=True)
    await stage.told(attempt, "answered", "ended", duration_s=30)
    await called(stage)
    assert await stops_until(stage) is None


async def test_a_call_that_began_before_the_brake_does_not_release_it(stage: Stage) -> None:
    _, attempt = await dialled(stage)
    await given(stage, attempt, joined=True)
    await probing(stage)
    await stage.told(attempt, "answered", "ended", duration_s=30)
    assert await stops_until(stage) is not None


async def test_two_concurrent_ends_without_an_agent_trip_the_brake(stage: Stage) -> None:
    """Each transaction alone has seen too few."""
    await stage.dialing.run("INSERT INTO no_agent_brakes (merchant_id) VALUES ('m')")
    await past_calls(stage, "none", 4)
    rule, half = BrakeRule(), await stage.dialing.open_transaction()

    async def one_more() -> list[Any]:
        async with stage.database.transaction() as tx:
            await tx.execute("UPDATE attempts SET agent = 'none' WHERE id = $1", second)
            return await abandonment.trip_brakes(tx, {"m"}, rule)

    await past_calls(stage, "joined", 2)
    first, second = [
        row["id"]
        for row in await half.fetch("SELECT id FROM attempts WHERE agent = 'joined' ORDER BY id DESC LIMIT 2")
    ]
    await half.execute("UPDATE attempts SET agent = 'none' WHERE id = $1", first)
    assert await abandonment.trip_brakes(half, {"m"}, rule) == []
    waiting: asyncio.Task[list[Any]] = await stage.dialing.blocked(one_more())
    await stage.dialing.commit(half)
    assert [tripped.merchant_id for tripped in await waiting] == ["m"]
