"""The gates at the dial: what a calling policy allows, what it counts, and what becomes of a lead that it refuses."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.dispatch.intent import Intents
from trunkline.leads.calling_policy import (
    CallingPolicy,
    Destinations,
    Price,
    RecentContact,
)
from trunkline.leads.limits import ROUND_S, CallsPerPerson, PersonLimit
from trunkline.leads.precheck_conditions import HttpCheck
from trunkline.leads.windows import TimeSpan, Window
from trunkline.model import Blocks, Refusal, RefusalReason

R = RefusalReason
ADA = "+12125550001"
# It is always 09:30 there, so to speak: two zones in which it is never the same half of the day.
BY_DAY = Window(spans=(TimeSpan(start="06:00", end="18:00"),))


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


def refused(intents: Intents) -> Refusal:
    assert intents.committed == ()
    (refusal,) = intents.refused.values()
    return refusal


def zone_at(now: datetime, hour: int) -> str:
    """A zone in which it is this hour now. Their names count the other way round."""
    offset = (hour - now.astimezone(UTC).hour + 12) % 24 - 12
    return f"Etc/GMT{-offset:+d}" if offset else "Etc/GMT"


async def test_inside_its_window_a_lead_is_dialled(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(windows=(BY_DAY,), timezone=zone_at(await dialing.now(), 10)))
    assert len((await dialing.intend(dialing.grant(await dialing.lead()))).committed) == 1


async def test_fault_6_outside_its_window_a_lead_gets_its_new_due_time_in_postgres_first(
    dialing: Dialing,
) -> None:
    now = await dialing.now()
    await dialing.policy(CallingPolicy(windows=(BY_DAY,), timezone=zone_at(now, 22)))
    lead = await dialing.lead()
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    found = await dialing.lead_row(lead)
    opens_at = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=8)
    assert (refusal.reason, refusal.until) == (R.WINDOW, opens_at)
    assert (found["status"], found["version"], found["due_at"]) == ("BACKLOG", 2, opens_at)
    assert found["closes_at"] == opens_at + timedelta(hours=12)
    assert refusal.moved is not None
    assert (refusal.moved.version, refusal.moved.due_at, refusal.moved.closes_at) == (
        2,
        opens_at,
        found["closes_at"],
    )
    assert refusal.is_gone
    assert refused(await dialing.intend(dialing.grant(lead))).reason is R.LEAD


async def test_a_leads_own_time_zone_counts_before_the_merchants(dialing: Dialing) -> None:
    now = await dialing.now()
    await dialing.policy(CallingPolicy(windows=(BY_DAY,), timezone=zone_at(now, 10)))
    night = await dialing.lead(timezone=zone_at(now, 22))
    assert refused(await dialing.intend(dialing.grant(night))).reason is R.WINDOW


async def test_a_window_that_never_opens_ends_the_lead(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(windows=(BY_DAY,)), "platform", "")
    await dialing.policy(CallingPolicy(windows=(Window(spans=(TimeSpan(start="19:00", end="20:00"),)),)))
    lead = await dialing.lead()
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.subject, refusal.is_gone) == (R.WINDOW, "never_opens", True)
    found = await dialing.lead_row(lead)
    assert (found["status"], found["outcome"], found["outcome_reason"]) == (
        "FINISHED",
        "NO_CONFIG",
        "WINDOW_NEVER_OPENS",
    )


@pytest.mark.parametrize(
    ("reseller", "merchant", "listed_by"),
    [(None, None, "platform"), ("r", None, "reseller"), ("r", "m", "merchant"), ("r", "n", None)],
)
async def test_a_lead_whose_phone_is_on_a_do_not_call_list_ends(
    dialing: Dialing, reseller: str | None, merchant: str | None, listed_by: str | None
) -> None:
    await dialing.run(
        "INSERT INTO do_not_call (id, phone, reseller_id, merchant_id, reason, created_by)"
        " VALUES ($1, $2, $3, $4, 'asked', 'test')",
        uuid4(),
        ADA,
        reseller,
        merchant,
    )
    lead = await dialing.lead(ADA)
    intents = await dialing.intend(dialing.grant(lead))
    if listed_by is None:
        assert len(intents.committed) == 1
        return
    assert (refused(intents).reason, refused(intents).subject) == (R.BLACKLISTED, listed_by)
    found = await dialing.lead_row(lead)
    assert (found["outcome"], found["outcome_reason"]) == ("BLACKLISTED", f"{listed_by.upper()}_LIST")


async def test_an_entry_that_has_expired_no_longer_counts(dialing: Dialing) -> None:
    await dialing.run(
        "INSERT INTO do_not_call (id, phone, reason, created_by, expires_at)"
        " VALUES ($1, $2, 'asked', 'test', now() - interval '1 second')",
        uuid4(),
        ADA,
    )
    assert len((await dialing.intend(dialing.grant(await dialing.lead(ADA)))).committed) == 1


async def test_a_destination_that_is_not_allowed_ends_the_lead(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(destinations=Destinations(allow=("+91",))))
    lead = await dialing.lead(ADA)
    assert refused(await dialing.intend(dialing.grant(lead))).reason is R.DESTINATION
    found = await dialing.lead_row(lead)
    assert (found["outcome"], found["outcome_reason"]) == ("INVALID_PHONE", "DESTINATION_NOT_ALLOWED")


async def test_a_policy_that_cannot_be_read_stops_its_flow_and_nobody_else(dialing: Dialing) -> None:
    await dialing.run(
        "INSERT INTO policies (scope, subject, policy, updated_by)"
        """ VALUES ('merchant', 'm', '{"windows": "?"}', 'test')"""
    )
    mine, other = dialing.grant(await dialing.lead()), dialing.grant(await dialing.lead(merchant="n"))
    intents = await dialing.intend(mine, other)
    assert [intent.attempt_id for intent in intents.committed] == [other.attempt_id]
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.blocks, refusal.subject) == (R.PAUSED, Blocks.FLOW, "policy_unreadable")


async def test_a_lead_without_its_pre_checks_is_refused_and_keeps_its_due_time(
    dialing: Dialing,
) -> None:
    check = HttpCheck(url="https://example.com/may-i-call")
    await dialing.policy(CallingPolicy(prechecks=(check,)))
    lead = await dialing.lead()
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.subject, refusal.is_gone) == (R.PRECHECK, "needed", False)
    assert (await dialing.lead_row(lead))["version"] == 1


# Persons


async def test_the_eighth_call_to_a_person_in_an_hour_waits_across_merchants(
    dialing: Dialing,
) -> None:
    for n in range(7):
        await dialing.attempt(ADA, ago_s=3000 - n, merchant="n")
    now = await dialing.now()
    lead = await dialing.lead(ADA)
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.subject, refusal.blocks) == (R.LIMIT, "calls_per_person", Blocks.LEAD)
    assert refusal.until is not None
    assert refusal.until.timestamp() % ROUND_S == 0, "another tenant's calls are not told to the second"
    assert timedelta(seconds=595) < refusal.until - now < timedelta(seconds=605 + ROUND_S)
    assert (await dialing.lead_row(lead))["due_at"] == refusal.until


async def test_a_limit_by_a_merchants_own_calls_ends_at_the_exact_time(dialing: Dialing) -> None:
    for _ in range(7):
        await dialing.attempt(ADA, ago_s=3000)
    oldest = await dialing.value("SELECT min(send_at) FROM attempts")
    refusal = refused(await dialing.intend(dialing.grant(await dialing.lead(ADA))))
    assert refusal.until == oldest + timedelta(hours=1)


async def test_fault_16_refused_and_absent_attempts_do_not_count_towards_limits(dialing: Dialing) -> None:
    """A limiter that counts what was refused refills itself."""
    for state in ("rejected", "absent") * 4:
        await dialing.attempt(ADA, state=state)
    for _ in range(6):
        await dialing.attempt(ADA)
    lead = await dialing.lead(ADA)
    assert len((await dialing.intend(dialing.grant(lead))).committed) == 1
    for _ in range(3):
        refused(await dialing.intend(dialing.grant(await dialing.lead(ADA))))
    assert await dialing.value("SELECT count(*) FROM attempts WHERE state = 'dialing'") == 1


@pytest.mark.parametrize("state", ["dialing", "in_doubt", "accepted", "ringing", "answered", "unknown"])
async def test_an_attempt_that_may_have_rung_counts_towards_limits(dialing: Dialing, state: str) -> None:
    await dialing.policy(CallingPolicy(calls_per_person=CallsPerPerson(max_calls=1)), "platform", "")
    await dialing.attempt(ADA, state=state)
    assert refused(await dialing.intend(dialing.grant(await dialing.lead(ADA)))).reason is R.LIMIT


async def test_a_merchants_limit_counts_its_own_calls_in_its_own_window(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(person_limits=(PersonLimit(max_calls=2, window_h=24),)))
    await dialing.attempt(ADA, ago_s=7200)
    await dialing.attempt(ADA, ago_s=7200, merchant="n")
    await dialing.attempt(ADA, ago_s=90_000)
    assert len((await dialing.intend(dialing.grant(await dialing.lead(ADA)))).committed) == 1
    await dialing.run("UPDATE attempts SET state = 'ended' WHERE state = 'dialing'")
    refusal = refused(await dialing.intend(dialing.grant(await dialing.lead(ADA))))
    assert (refusal.reason, refusal.subject) == (R.LIMIT, "person_limits")
    assert refusal.until is not None
    assert timedelta(hours=21) < refusal.until - await dialing.now() < timedelta(hours=23)


async def test_a_limit_may_end_the_lead_instead(dialing: Dialing) -> None:
    limit = PersonLimit(max_calls=1, window_h=24, then="finish")
    await dialing.policy(CallingPolicy(person_limits=(limit,)))
    await dialing.attempt(ADA)
    lead = await dialing.lead(ADA)
    assert refused(await dialing.intend(dialing.grant(lead))).is_gone
    found = await dialing.lead_row(lead)
    assert (found["outcome"], found["outcome_reason"]) == ("CALL_LIMIT_REACHED", "PERSON_LIMITS")


async def test_a_batch_cannot_exceed_a_persons_limit_by_itself(dialing: Dialing) -> None:
    """From two numbers, so that only the limit stands between them."""
    await dialing.policy(CallingPolicy(calls_per_person=CallsPerPerson(max_calls=1)), "platform", "")
    other = await dialing.add_number(account="other")
    grants = [
        dialing.grant(await dialing.lead(ADA), 1),
        dialing.grant(await dialing.lead(ADA, "n"), 1, number=other),
    ]
    intents = await dialing.intend(*grants)
    assert len(intents.committed) == 1
    assert next(iter(intents.refused.values())).subject == "calls_per_person"


@pytest.mark.parametrize(("then", "status"), [("defer", "BACKLOG"), ("abort", "FINISHED")])
async def test_a_person_contacted_recently_is_deferred_or_ended_by_the_policy(
    dialing: Dialing, then: str, status: str
) -> None:
    rule = RecentContact.model_validate({"cooldown_h": 24, "then": then})
    await dialing.policy(CallingPolicy(recent_contact=rule))
    now = await dialing.now()
    talked_at = now - timedelta(hours=3)
    await dialing.attempt(ADA, ago_s=3 * 3600 + 20, answered_at=talked_at)
    lead = await dialing.lead(ADA)
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.subject, refusal.until) == (
        R.LIMIT,
        "recent_contact",
        talked_at + timedelta(hours=24),
    )
    found = await dialing.lead_row(lead)
    assert found["status"] == status
    assert found["outcome"] in (None, "PRECHECK_FAILED")


async def test_an_unanswered_call_is_no_contact(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(recent_contact=RecentContact()))
    await dialing.attempt(ADA, ago_s=60)
    assert len((await dialing.intend(dialing.grant(await dialing.lead(ADA)))).committed) == 1


# Merchants


async def test_attempts_over_the_merchants_daily_limit_wait_for_its_midnight(
    dialing: Dialing,
) -> None:
    await dialing.policy(CallingPolicy(attempts_per_day=2, timezone="Asia/Kolkata"))
    intents = await dialing.intend(*[dialing.grant(lead) for lead in await dialing.leads(3)])
    assert len(intents.committed) == 2
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.subject, refusal.blocks) == (R.LIMIT, "attempts_per_day", Blocks.FLOW)
    assert refusal.until is not None
    assert refusal.until.strftime("%H:%M") == "18:30"
    assert refusal.moved is None, "a million leads are not rewritten one by one: their flow waits"
    assert refused(await dialing.intend(dialing.grant(await dialing.lead()))).until == refusal.until
    assert len((await dialing.intend(dialing.grant(await dialing.lead(merchant="n")))).committed) == 1


async def test_a_new_daily_limit_counts_the_attempts_already_made_that_day(dialing: Dialing) -> None:
    await dialing.intend(*[dialing.grant(lead) for lead in await dialing.leads(3)])
    await dialing.policy(CallingPolicy(attempts_per_day=3))
    assert refused(await dialing.intend(dialing.grant(await dialing.lead()))).subject == "attempts_per_day"


async def test_fault_16_what_no_carrier_took_is_given_back_to_the_merchants_day(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(attempts_per_day=2))
    await dialing.intend(*[dialing.grant(lead) for lead in await dialing.leads(2)])
    await dialing.run("UPDATE attempts SET state = 'rejected', holds_channel = false WHERE channel_no = 1")
    assert len((await dialing.intend(dialing.grant(await dialing.lead()))).committed) == 1
    assert refused(await dialing.intend(dialing.grant(await dialing.lead()))).subject == "attempts_per_day"


async def test_the_intent_reserves_spend_and_a_batch_cannot_exceed_the_daily_maximum(
    dialing: Dialing,
) -> None:
    price = Price(per_call_micros=100, per_minute_micros=1000, reserve_minutes=2)
    await dialing.policy(CallingPolicy(spend_per_day_micros=5000, price=price))
    intents = await dialing.intend(*[dialing.grant(lead) for lead in await dialing.leads(3)])
    assert len(intents.committed) == 2
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.blocks) == (R.SPEND, Blocks.FLOW)
    assert await dialing.value("SELECT spent_micros FROM merchant_days") == 4200
    assert await dialing.value("SELECT sum(reserved_micros) FROM attempts") == 4200


async def test_hard_concurrency_counts_live_calls_of_the_merchant_and_of_the_campaign(
    dialing: Dialing,
) -> None:
    campaign = uuid4()
    await dialing.run("UPDATE merchants SET max_concurrent = 3 WHERE id = 'm'")
    await dialing.policy(CallingPolicy(max_concurrent=1), "campaign", f"m/{campaign}")
    await dialing.attempt(ADA, state="answered")
    await dialing.attempt("+12125550009", state="ended")
    mine = [dialing.grant(lead) for lead in await dialing.leads(2, campaign_id=campaign)]
    others = [dialing.grant(lead) for lead in await dialing.leads(2)]
    intents = await dialing.intend(*mine, *others)
    assert [intent.attempt_id for intent in intents.committed] == [mine[0].attempt_id, others[0].attempt_id]
    assert [(r.reason, r.subject, r.blocks) for r in intents.refused.values()] == [
        (R.LIMIT, "campaign_concurrency", Blocks.FLOW),
        (R.LIMIT, "merchant_concurrency", Blocks.FLOW),
    ]


# Paces and pods


async def test_race_4_starts_are_spaced_and_what_cannot_start_within_a_second_is_refused(
    dialing: Dialing,
) -> None:
    grants = [dialing.grant(lead) for lead in await dialing.leads(6)]
    intents = await dialing.intend(*grants, account_pace=lambda carrier, account: 4.0)
    waits = [round(intent.send_in_s, 3) for intent in intents.committed]
    assert waits == [0.0, 0.25, 0.5, 0.75, 1.0]
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.blocks) == (R.PACE, Blocks.ACCOUNT)
    assert refusal.until == await dialing.value("SELECT next_start_at FROM paces")
    assert refusal.until == intents.committed[-1].send_at + timedelta(seconds=0.25)


async def test_a_pace_carries_no_call_over_the_end_of_its_window(dialing: Dialing) -> None:
    """And one that is refused for that takes nobody's turn."""
    in_time, too_late, open_all_day = await dialing.leads(3)
    await dialing.run(
        "UPDATE leads SET closes_at = clock_timestamp() + interval '300 ms' WHERE id = ANY($1)",
        [in_time, too_late],
    )
    grants = [dialing.grant(lead) for lead in (in_time, too_late, open_all_day)]
    intents = await dialing.intend(*grants, account_pace=lambda carrier, account: 2.0)
    assert [intent.lead_id for intent in intents.committed] == [in_time, open_all_day]
    assert all(intent.closes_at is None or intent.send_at < intent.closes_at for intent in intents.committed)
    assert [round(intent.send_in_s, 1) for intent in intents.committed] == [0.0, 0.5]
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.moved is not None) == (R.WINDOW, True)


async def test_race_4_the_next_intent_goes_on_where_the_last_one_ended(dialing: Dialing) -> None:
    def slow(carrier: str, account: str) -> float:
        return 0.01

    first, second = [dialing.grant(lead) for lead in await dialing.leads(2)]
    (before,) = (await dialing.intend(first, account_pace=slow)).committed
    (after,) = (await dialing.intend(second, account_pace=slow)).refused.values()
    assert after.until == before.send_at + timedelta(seconds=100)


async def test_numbers_and_campaigns_have_paces_of_their_own(dialing: Dialing) -> None:
    campaign = uuid4()
    slow_number = await dialing.add_number(starts_per_s=2.0)
    await dialing.policy(CallingPolicy(starts_per_s=1.5), "campaign", f"m/{campaign}")
    by_number = [dialing.grant(lead, number=slow_number) for lead in await dialing.leads(4)]
    by_campaign = [dialing.grant(lead) for lead in await dialing.leads(3, campaign_id=campaign)]
    intents = await dialing.intend(*by_number, *by_campaign)
    assert [round(intent.send_in_s, 2) for intent in intents.committed] == [0.0, 0.5, 1.0, 0.0, 0.67]
    assert [(r.reason, r.blocks) for r in intents.refused.values()] == [
        (R.PACE, Blocks.NUMBER),
        (R.PACE, Blocks.FLOW),
    ]


async def test_a_channel_conflict_does_not_advance_the_accounts_pace(dialing: Dialing) -> None:
    """Else repeated channel conflicts would use up the pace."""
    await dialing.attempt(ADA, state="answered", channel=9)
    for lead in await dialing.leads(3):
        await dialing.intend(dialing.grant(lead, 9), account_pace=lambda carrier, account: 0.1)
    assert await dialing.value("SELECT count(*) FROM paces") == 0
    (intent,) = (
        await dialing.intend(dialing.grant(await dialing.lead(), 1), account_pace=lambda c, a: 0.1)
    ).committed
    assert intent.send_in_s == 0


async def test_a_channel_conflict_does_not_count_towards_the_merchants_day(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(attempts_per_day=2))
    await dialing.attempt(ADA, state="answered", channel=9)
    for lead in await dialing.leads(3):
        assert refused(await dialing.intend(dialing.grant(lead, 9))).reason is R.CHANNEL
    assert await dialing.value("SELECT coalesce(sum(attempts), 0)::int FROM merchant_days") == 0


async def test_race_17_an_account_with_many_in_doubt_attempts_gets_one_probe_in_five_seconds(
    dialing: Dialing,
) -> None:
    for n in range(4):
        await dialing.attempt(f"+1212555100{n}", state="in_doubt", channel=20 + n)
    await dialing.run("UPDATE numbers SET max_channels = 40")
    grants = [dialing.grant(lead, channel) for channel, lead in enumerate(await dialing.leads(3), start=1)]
    intents = await dialing.intend(*grants)
    assert len(intents.committed) == 1
    assert {refusal.reason for refusal in intents.refused.values()} == {R.PACE}
    probed_at = intents.committed[0].send_at
    assert next(iter(intents.refused.values())).until == probed_at + timedelta(seconds=5)


async def test_in_doubt_attempts_below_5_percent_of_the_channels_do_not_slow_the_account(
    dialing: Dialing,
) -> None:
    for n in range(4):
        await dialing.attempt(f"+1212555100{n}", state="in_doubt", channel=20 + n)
    await dialing.run("UPDATE numbers SET max_channels = 100")
    grants = [dialing.grant(lead, channel) for channel, lead in enumerate(await dialing.leads(3), start=1)]
    assert len((await dialing.intend(*grants)).committed) == 3
