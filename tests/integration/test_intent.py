"""From grants to committed attempts: what goes in, what is refused, and what every refusal says."""

from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from tests.support.dispatch.dialing import ME, Dialing, open_dialing
from tests.support.store.reading import rows_read
from trunkline.control.continuity import ContinuityMark
from trunkline.dispatch import gates, intent
from trunkline.dispatch.carrier_responses import slow_account
from trunkline.dispatch.intent import Intents
from trunkline.leads.calling_policy import Effective, resolve
from trunkline.model import Blocks, Grant, Refusal, RefusalReason
from trunkline.store import dispatch
from trunkline.store.dispatch import LockedLead
from trunkline.store.sql import query

R = RefusalReason


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


def refused(intents: Intents) -> Refusal:
    """The only one there is, and nothing else."""
    assert intents.committed == ()
    (refusal,) = intents.refused.values()
    return refusal


async def test_a_grant_becomes_an_attempt_that_may_be_sent(dialing: Dialing) -> None:
    lead = await dialing.lead("+12125550001")
    grant = dialing.grant(lead, 3)
    intents = await dialing.intend(grant)
    (intent,) = intents.committed
    assert intents.refused == {}
    assert (intent.attempt_id, intent.lead_id, intent.to_phone) == (grant.attempt_id, lead, "+12125550001")
    assert (intent.carrier, intent.account, intent.send_in_s) == ("twilio", "default", 0.0)
    row = await dialing.row("SELECT * FROM attempts")
    assert (row["id"], row["state"], row["channel_no"], row["dialer"]) == (grant.attempt_id, "dialing", 3, ME)
    assert row["send_at"] == intent.send_at
    found = await dialing.lead_row(lead)
    assert (found["status"], found["attempt_count"], found["version"]) == ("PROCESSING", 1, 2)


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("UPDATE leads SET version = 2", "BACKLOG"),
        ("UPDATE leads SET status = 'PROCESSING'", "PROCESSING"),
        ("UPDATE leads SET status = 'FINISHED', outcome = 'X', finished_at = now()", "FINISHED"),
        ("DELETE FROM leads", "gone"),
    ],
)
async def test_race_7_a_lead_that_changed_since_its_grant_is_not_dialled(
    dialing: Dialing, change: str, subject: str
) -> None:
    grant = dialing.grant(await dialing.lead())
    await dialing.run(change)
    refusal = refused(await dialing.intend(grant))
    assert (refusal.reason, refusal.until, refusal.subject) == (R.LEAD, None, subject)
    assert refusal.is_gone
    assert await dialing.value("SELECT count(*) FROM attempts") == 0


async def test_race_24_a_lead_not_due_by_postgres_clock_is_refused_until_its_due_time(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead(due_in_s=60)
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.until) == (R.NOT_DUE, (await dialing.lead_row(lead))["due_at"])


async def age_ms(dialing: Dialing, grant: Grant) -> float:
    assert grant.granted_ms is not None
    return (await dialing.now()).timestamp() * 1000 - grant.granted_ms


async def granted_ago(dialing: Dialing, ago_ms: int) -> Grant:
    granted_ms = round((await dialing.now()).timestamp() * 1000) - ago_ms
    return dialing.grant(await dialing.lead(), granted_ms=granted_ms)


async def test_race_7_a_grant_older_than_three_seconds_is_refused_as_stale(dialing: Dialing) -> None:
    grant = await granted_ago(dialing, 3001)
    assert refused(await dialing.intend(grant)).reason is R.STALE_GRANT


async def test_race_7_a_grant_younger_than_three_seconds_is_committed(dialing: Dialing) -> None:
    """Unless the test itself sleeps over it: then another one."""
    for _ in range(20):
        grant = await granted_ago(dialing, 2500)
        intents = await dialing.intend(grant)
        if await age_ms(dialing, grant) < 3000:
            assert len(intents.committed) == 1
            return
    pytest.fail("every grant was slept over")


async def test_a_refusal_for_a_taken_channel_names_its_owner(dialing: Dialing) -> None:
    owner = await dialing.attempt("+12125559999", state="answered", channel=5)
    lead = await dialing.lead()
    refusal = refused(await dialing.intend(dialing.grant(lead, 5)))
    assert (refusal.reason, refusal.blocks, refusal.owner) == (R.CHANNEL, Blocks.CHANNEL, owner)
    found = await dialing.lead_row(lead)
    assert (found["status"], found["version"]) == ("BACKLOG", 1)


async def test_a_refusal_for_a_person_being_called_names_that_attempt(dialing: Dialing) -> None:
    from_phone = await dialing.value("SELECT e164 FROM numbers")
    owner = await dialing.attempt("+12125550001", state="ringing", channel=5, from_phone=from_phone)
    refusal = refused(await dialing.intend(dialing.grant(await dialing.lead("+12125550001"), 6)))
    assert (refusal.reason, refusal.blocks, refusal.owner) == (R.PERSON, Blocks.PERSON, owner)


async def test_two_leads_of_one_person_in_one_batch_are_one_call(dialing: Dialing) -> None:
    first, second = [dialing.grant(await dialing.lead("+12125550001")) for _ in range(2)]
    intents = await dialing.intend(first, second)
    assert [intent.attempt_id for intent in intents.committed] == [first.attempt_id]
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.owner) == (R.PERSON, first.attempt_id)


async def test_a_refusal_never_names_an_attempt_that_was_not_committed(dialing: Dialing) -> None:
    """Of two leads of one person the first meets a taken channel: the second was refused because of nothing."""
    await dialing.attempt("+12125559999", state="answered", channel=5)
    first = dialing.grant(await dialing.lead("+12125550001"), 5)
    second = dialing.grant(await dialing.lead("+12125550001"), 6)
    intents = await dialing.intend(first, second)
    reasons = {grant.attempt_id: refusal for grant, refusal in intents.refused.items()}
    assert reasons[first.attempt_id].reason is R.CHANNEL
    assert (reasons[second.attempt_id].owner, reasons[second.attempt_id].blocks) == (None, Blocks.LEAD)
    assert reasons[second.attempt_id].until is not None


async def test_a_lead_granted_twice_in_one_batch_is_dialled_once(dialing: Dialing) -> None:
    lead = await dialing.lead()
    intents = await dialing.intend(dialing.grant(lead), dialing.grant(lead))
    assert len(intents.committed) == 1
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.is_gone) == (R.LEAD, True)


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("UPDATE numbers SET status = 'draining'", "number_not_active"),
        ("DELETE FROM numbers", "number_not_active"),
        ("UPDATE numbers SET max_channels = 2", "above_maximum"),
        # Moved into another owner's pool, which the match does not know yet.
        (
            "INSERT INTO pools (id, name) VALUES ('other', 'Other'); UPDATE numbers SET pool_id = 'other'",
            "number_changed",
        ),
    ],
)
async def test_a_number_that_may_not_dial_refuses_and_blocks_itself(
    dialing: Dialing, change: str, subject: str
) -> None:
    grant = dialing.grant(await dialing.lead(), 3)
    await dialing.run(change)
    refusal = refused(await dialing.intend(grant))
    assert (refusal.reason, refusal.blocks, refusal.subject) == (R.CHANNEL, Blocks.NUMBER, subject)
    assert refusal.until is not None


async def test_a_batch_commits_its_good_grants_beside_refused_ones(dialing: Dialing) -> None:
    owner = await dialing.attempt("+12125559999", state="answered", channel=5)
    good = [dialing.grant(lead, channel) for channel, lead in enumerate(await dialing.leads(4), start=1)]
    taken = dialing.grant(await dialing.lead(), 5)
    early = dialing.grant(await dialing.lead(due_in_s=9), 6)
    gone = dialing.grant(uuid4(), 7)
    intents = await dialing.intend(taken, *good, early, gone)
    assert {intent.attempt_id for intent in intents.committed} == {grant.attempt_id for grant in good}
    assert {(g.attempt_id, r.reason, r.owner) for g, r in intents.refused.items()} == {
        (taken.attempt_id, R.CHANNEL, owner),
        (early.attempt_id, R.NOT_DUE, None),
        (gone.attempt_id, R.LEAD, None),
    }


async def test_fault_7_a_stop_is_checked_again_at_the_intent(dialing: Dialing) -> None:
    asked = []

    def stopped(
        reseller: str, merchant: str, campaign: UUID | None, number: UUID, carrier: str
    ) -> str | None:
        asked.append((reseller, merchant, campaign, number, carrier))
        return "kill switch"

    lead = await dialing.lead()
    refusal = refused(await dialing.intend(dialing.grant(lead), stopped=stopped))
    assert (refusal.reason, refusal.subject) == (R.PAUSED, "kill switch")
    assert asked == [("r", "m", None, dialing.number, "twilio")]
    assert (await dialing.lead_row(lead))["version"] == 1


@pytest.mark.parametrize("scope", ["kill_switch", "promoter"])
async def test_fault_7_a_stop_not_yet_refreshed_in_this_process_holds_at_the_intent(
    dialing: Dialing, scope: str
) -> None:
    lead = await dialing.lead()
    await dialing.run(
        "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s)"
        " VALUES ($1, '', 'platform', 'fire', 'test', 0)",
        scope,
    )
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.subject) == (R.PAUSED, scope)
    await dialing.run("UPDATE controls SET ends_at = clock_timestamp()")
    assert len((await dialing.intend(dialing.grant(lead))).committed) == 1


async def test_an_intent_refuses_on_a_database_restored_to_an_earlier_moment(dialing: Dialing) -> None:
    installation = uuid4()
    await dialing.run("UPDATE continuity SET installation = $1, beat = 7", installation)
    lead = await dialing.lead()
    for mark in (ContinuityMark(installation, 8), ContinuityMark(uuid4(), 7)):
        refusal = refused(await dialing.intend(dialing.grant(lead), guardian=SimpleNamespace(mark=mark)))
        assert (refusal.reason, refusal.subject) == (R.PAUSED, "database_went_back")
    intents = await dialing.intend(
        dialing.grant(lead), guardian=SimpleNamespace(mark=ContinuityMark(installation, 7))
    )
    assert len(intents.committed) == 1


async def test_repeated_refusals_of_a_lead_are_counted_in_one_decision(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead()
    for _ in range(3):
        await dialing.intend(dialing.grant(lead), stopped=lambda *_: "paused by hand")
    row = await dialing.row("SELECT * FROM decisions")
    assert (row["lead_id"], row["reason"], row["subject"], row["times"]) == (
        lead,
        "paused",
        "paused by hand",
        3,
    )
    assert row["until"] > row["first_at"]
    assert row["last_at"] > row["first_at"]


async def test_a_channel_conflict_is_stored_as_a_decision(dialing: Dialing) -> None:
    await dialing.attempt("+12125559999", state="answered", channel=5)
    await dialing.intend(dialing.grant(await dialing.lead(), 5))
    assert await dialing.value("SELECT reason FROM decisions") == "channel"


async def test_a_slowed_account_refuses_intents_until_its_time(dialing: Dialing) -> None:
    await slow_account(dialing.database, "twilio", "default", 30)
    lead = await dialing.lead()
    refusal = refused(await dialing.intend(dialing.grant(lead)))
    assert (refusal.reason, refusal.blocks, refusal.subject) == (
        R.PACE,
        Blocks.ACCOUNT,
        "account",
    )
    assert refusal.until is not None
    assert timedelta(seconds=25) < refusal.until - await dialing.now() <= timedelta(seconds=30)
    other = await dialing.add_number(account="other")
    assert len((await dialing.intend(dialing.grant(lead, number=other))).committed) == 1


async def test_a_second_slow_down_never_shortens_the_first(dialing: Dialing) -> None:
    await slow_account(dialing.database, "twilio", "default", 60)
    first = await dialing.value("SELECT next_start_at FROM paces")
    await slow_account(dialing.database, "twilio", "default", 1)
    assert await dialing.value("SELECT next_start_at FROM paces") == first


async def test_grants_of_missing_leads_write_no_decision(dialing: Dialing) -> None:
    intents = await dialing.intend(dialing.grant(uuid4()), dialing.grant(uuid4()))
    assert [refusal.subject for refusal in intents.refused.values()] == ["gone", "gone"]
    assert await dialing.value("SELECT count(*) FROM decisions") == 0


PLANNED = ["count_limits", "count_conditional", "write_intents", "write_refusals"]


@pytest.mark.parametrize("name", PLANNED)
async def test_a_plan_made_on_empty_tables_is_right_for_full_ones(dialing: Dialing, name: str) -> None:
    """Plans are kept. One that walks over all calls or leads costs nothing on the first day, and every dial later."""
    async with dialing.database.transaction() as tx:
        await dispatch.lock_granted(tx, [], lock_timeout_ms=500, transaction_timeout_ms=0, known=None)
        sql = query(f"dispatch/{name}")
        nulls = ", ".join("NULL" for _ in (await tx.prepare(sql)).get_parameters())
        await tx.execute(f"PREPARE planned AS {sql}")
        rows = await tx.fetch(f"EXPLAIN EXECUTE planned ({nulls})")
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan" not in plan
    assert "attempts_to_check" not in plan, "the index of all live calls, read from end to end"
    assert "Hash Join" not in plan
    if name == "count_limits":
        assert "attempts_one_per_channel" in plan


async def test_locking_and_counting_reads_a_few_calls_of_many_by_a_plan_made_on_empty_tables(
    dialing: Dialing,
) -> None:
    """The same of a function, whose plans nobody sees: how many calls does it read, once there are five hundred?"""
    busy = await dialing.add_number(max_channels=1000)
    lead, calls = await dialing.lead(), 500
    async with dialing.database.transaction() as tx:
        grant = dialing.grant(lead)
        leads = await dispatch.lock_granted(
            tx, [grant], lock_timeout_ms=500, transaction_timeout_ms=0, known=None
        )
        asked = gates.questions([gates.case_of(grant, leads[lead], resolve())])
        assert asked.persons
        assert asked.paces
        assert asked.accounts
        assert asked.numbers
        await dispatch.count(tx, asked, [1])
        await dialing.run(
            "INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no,"
            " carrier, account, to_phone, from_phone, dialer)"
            " SELECT gen_random_uuid(), 'inbound', 1, 'r', 'm', $1, n, 'twilio', 'default', n::text, '+1', 'x'"
            " FROM generate_series(1, $2::int) AS n",
            busy,
            calls,
        )
        before = await rows_read(tx, "attempts")
        await dispatch.count(tx, asked, [1])
        assert await rows_read(tx, "attempts") - before < calls / 10


async def test_locking_a_lead_reads_no_other_by_a_plan_made_on_an_empty_table(dialing: Dialing) -> None:
    """The statement that says how all others are planned is planned before that."""
    grant = dialing.grant(await dialing.lead())
    async with dialing.database.transaction() as tx:
        await tx.execute("SET LOCAL plan_cache_mode = force_generic_plan")

        async def lock() -> int:
            locked = await dispatch.lock_granted(
                tx, [grant], lock_timeout_ms=500, transaction_timeout_ms=0, known=None
            )
            return len(locked)

        assert await lock() == 1
        await dialing.run(
            "INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id,"
            " scheduled_at, due_at)"
            " SELECT gen_random_uuid(), 'r', 'm', n::text, sha256(''), '+12125559999', 'p', now(), now()"
            " FROM generate_series(1, 500) AS n"
        )
        before = await rows_read(tx, "leads")
        assert await lock() == 1
        assert await rows_read(tx, "leads") - before < 50


async def test_locking_leads_is_planned_once_however_many_they_are(dialing: Dialing) -> None:
    """Postgres makes five plans for the values it is given, and then keeps one if it seems no worse."""
    lead = await dialing.lead()
    async with dialing.database.warm_pool.acquire() as conn:
        for _ in range(6):
            async with conn.transaction():
                await dispatch.lock_granted(
                    conn, [dialing.grant(lead)], lock_timeout_ms=500, transaction_timeout_ms=0, known=None
                )
        kept = await conn.fetchval(
            "SELECT generic_plans FROM pg_prepared_statements WHERE statement = $1",
            query("dispatch/lock_granted"),
        )
    assert kept == 1


async def test_a_held_campaign_is_not_dialled_before_the_process_has_refreshed(
    dialing: Dialing,
) -> None:
    """A draft's first leads come in the moment in which it is made: no process has refreshed its stops by then."""
    campaign, other = uuid4(), uuid4()
    held = await dialing.lead(campaign_id=campaign)
    free = await dialing.lead(campaign_id=other)
    stop = (
        "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s, ends_at)"
        " VALUES ('campaign', $1, $2, 'draft', 'test', 0, $3)"
    )
    await dialing.run(stop, f"m/{campaign}", "merchant", None)
    await dialing.run(stop, f"n/{other}", "merchant", None)
    await dialing.run(stop, f"m/{other}", "platform", await dialing.now())
    intents = await dialing.intend(dialing.grant(held), dialing.grant(free))
    assert [intent.lead_id for intent in intents.committed] == [free]
    (refusal,) = intents.refused.values()
    assert refusal.reason == R.PAUSED


async def test_a_lead_whose_gate_raises_is_refused_alone(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(grant: Grant, lead: LockedLead, policy: Effective) -> gates.Case:
        if lead.phone == "+12125550001":
            raise ValueError("a bug")
        return gates.case_of(grant, lead, policy)

    monkeypatch.setattr(intent, "case_of", build)
    poison, sound = await dialing.lead("+12125550001"), await dialing.lead("+12125550002")
    intents = await dialing.intend(dialing.grant(poison), dialing.grant(sound))
    assert [intent.lead_id for intent in intents.committed] == [sound]
    assert [(grant.lead_id, refusal.reason) for grant, refusal in intents.refused.items()] == [
        (poison, RefusalReason.ERROR)
    ]
