"""Two dialers, an operator and a dying network at once. Each test holds one of them still at the worst moment.

No test sleeps: a transaction is held open, and the test asks Postgres whether the other one waits.
"""

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from tests.support.dispatch.dialing import ME, Dialing, open_dialing
from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from trunkline.dispatch import intent
from trunkline.dispatch.carrier_responses import slow_account
from trunkline.dispatch.intent import IntentBatch, disown
from trunkline.leads.calling_policy import CallingPolicy, Price
from trunkline.leads.limits import CallsPerPerson
from trunkline.model import Refusal, RefusalReason
from trunkline.states import AttemptState
from trunkline.store import attempts, numbers, prechecks
from trunkline.store.attempts import Result
from trunkline.store.database import Connection, connect

R = RefusalReason
ADA, BOB = "+12125550001", "+12125550002"


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def other(dialing: Dialing) -> UUID:
    """A number of another account, so that no account stands between two dialers."""
    return await dialing.add_number(account="other")


def reasons(refused: Iterable[Refusal]) -> list[tuple[RefusalReason, str | None]]:
    return [(refusal.reason, refusal.subject) for refusal in refused]


# Counting


async def test_race_12_two_dialers_who_both_see_six_of_seven_calls_place_one(
    dialing: Dialing, other: UUID
) -> None:
    for _ in range(6):
        await dialing.attempt(ADA)
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(ADA)))
    second = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(ADA, "n"), number=other)))
    await dialing.commit(first)
    assert reasons((await second).refused.values()) == [(R.LIMIT, "calls_per_person")]


@pytest.mark.parametrize(
    ("policy", "subject"),
    [
        (CallingPolicy(attempts_per_day=1), "attempts_per_day"),
        (CallingPolicy(spend_per_day_micros=15, price=Price(per_call_micros=10)), "spend_per_day"),
    ],
)
async def test_race_12_two_dialers_cannot_both_use_the_last_of_a_merchants_day(
    dialing: Dialing, other: UUID, policy: CallingPolicy, subject: str
) -> None:
    await dialing.policy(policy)
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    second = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), number=other)))
    await dialing.commit(first)
    assert [refusal.subject for refusal in (await second).refused.values()] == [subject]


async def test_race_12_two_dialers_cannot_both_take_a_merchants_last_call_at_once(
    dialing: Dialing, other: UUID
) -> None:
    await dialing.run("UPDATE merchants SET max_concurrent = 1")
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    second = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), number=other)))
    await dialing.commit(first)
    assert reasons((await second).refused.values()) == [(R.LIMIT, "merchant_concurrency")]


async def test_race_4_two_dialers_of_one_account_take_turns(dialing: Dialing) -> None:
    def pace(carrier: str, account: str) -> float:
        return 0.01

    first, batch = await dialing.half_an_intent(dialing.grant(await dialing.lead()), account_pace=pace)
    second = await dialing.blocked(
        dialing.intend(dialing.grant(await dialing.lead(merchant="n")), account_pace=pace)
    )
    await dialing.commit(first)
    (before,) = (attempt.intent for attempt in batch.attempts)
    (after,) = (await second).refused.values()
    assert (after.reason, after.until) == (R.PACE, before.send_at + timedelta(seconds=100))


async def test_a_rolled_back_intent_does_not_count_towards_a_persons_limit(
    dialing: Dialing, other: UUID
) -> None:
    await dialing.policy(CallingPolicy(calls_per_person=CallsPerPerson(max_calls=1)), "platform", "")
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(ADA)))
    second = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(ADA), number=other)))
    await first.execute("ROLLBACK")
    assert len((await second).committed) == 1


async def test_limits_are_counted_at_read_committed_whatever_the_servers_default(
    dialing: Dialing, other: UUID
) -> None:
    """At REPEATABLE READ the count would see the world as it was before the lock was waited for."""
    name = await dialing.value("SELECT current_database()")
    await dialing.run(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    await dialing.policy(CallingPolicy(calls_per_person=CallsPerPerson(max_calls=1)), "platform", "")
    strict = await connect(dialing.url)
    try:
        first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(ADA)))
        here = dialing.database
        dialing.database = strict
        grant = dialing.grant(await dialing.lead(ADA), number=other)
        second = await dialing.blocked(dialing.intend(grant))
        dialing.database = here
        await dialing.commit(first)
        assert reasons((await second).refused.values()) == [(R.LIMIT, "calls_per_person")]
    finally:
        await strict.close()


# Numbers


async def test_race_10_a_maximum_lowered_during_the_intent_is_obeyed(dialing: Dialing) -> None:
    operator = await dialing.open_transaction()
    await operator.execute("UPDATE numbers SET max_channels = 3")
    dialled = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), 7)))
    await dialing.commit(operator)
    assert reasons((await dialled).refused.values()) == [(R.CHANNEL, "above_maximum")]


async def test_race_10_a_number_that_changes_its_account_during_the_intent_is_not_dialled_under_the_old_ones_lock(
    dialing: Dialing,
) -> None:
    """The account's lock was chosen by what was read before it. Its pace is another one's by now."""
    operator = await dialing.open_transaction()
    await operator.execute("UPDATE numbers SET account = 'other'")
    dialled = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead())))
    await dialing.commit(operator)
    assert reasons((await dialled).refused.values()) == [(R.CHANNEL, "number_changed")]
    (again,) = (await dialing.intend(dialing.grant(await dialing.lead()))).committed
    assert again.account == "other"


async def test_race_10_a_change_that_needs_an_idle_number_waits_for_the_intent(dialing: Dialing) -> None:
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(), 7))
    operator = await dialing.open_transaction()
    held = await dialing.blocked(numbers.lock_and_count_held(operator, dialing.number))
    await dialing.commit(first)
    assert await held == 1
    await operator.execute("ROLLBACK")


async def test_two_dialers_lock_a_number_without_waiting_for_each_other(dialing: Dialing) -> None:
    """Its row is locked FOR SHARE; they only wait for the account, which the second one does not have here."""
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(), 1))
    row = await dialing.value("SELECT id FROM numbers WHERE id = $1 FOR SHARE NOWAIT", dialing.number)
    assert row == dialing.number
    await dialing.commit(first)


async def test_race_13_with_a_call_above_the_maximum_live_calls_are_counted(dialing: Dialing) -> None:
    """Ten channels became three while channel eight talks: channels one to three are free, and two may be used."""
    await dialing.attempt(BOB, state="answered", channel=8)
    await dialing.run("UPDATE numbers SET max_channels = 3")
    grants = [dialing.grant(lead, channel) for channel, lead in enumerate(await dialing.leads(3), start=1)]
    intents = await dialing.intend(*grants)
    assert len(intents.committed) == 2
    assert reasons(intents.refused.values()) == [(R.CHANNEL, "number_full")]


async def test_race_10_a_call_of_unknown_fate_above_the_maximum_does_not_stop_an_idle_number(
    dialing: Dialing,
) -> None:
    await dialing.attempt(BOB, state="unknown", channel=10, holds=True)
    await dialing.run("UPDATE numbers SET max_channels = 3")
    assert len((await dialing.intend(dialing.grant(await dialing.lead(), 1))).committed) == 1


async def test_race_13_two_dialers_count_a_crowded_number_one_after_the_other(dialing: Dialing) -> None:
    await dialing.attempt(BOB, state="answered", channel=8)
    await dialing.run("UPDATE numbers SET max_channels = 2")
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(), 1))
    with pytest.raises(asyncpg.LockNotAvailableError):
        await dialing.value("SELECT id FROM numbers WHERE id = $1 FOR SHARE NOWAIT", dialing.number)
    second = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), 2)))
    await dialing.commit(first)
    assert reasons((await second).refused.values()) == [(R.CHANNEL, "number_full")]


async def test_race_13_a_number_that_becomes_crowded_while_it_is_waited_for_is_not_counted_under_a_shared_lock(
    dialing: Dialing,
) -> None:
    await dialing.attempt(BOB, state="answered", channel=8)
    operator = await dialing.open_transaction()
    await operator.execute("UPDATE numbers SET max_channels = 3")
    dialled = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), 1)))
    await dialing.commit(operator)
    assert reasons((await dialled).refused.values()) == [(R.CHANNEL, "number_full")]
    assert len((await dialing.intend(dialing.grant(await dialing.lead(), 1))).committed) == 1


# Channels and persons


async def test_race_5_attempts_are_inserted_by_number_and_channel_without_a_deadlock(
    dialing: Dialing,
) -> None:
    """An inbound call takes channel 1, then its neighbour 2. In any other order than theirs this is a deadlock."""
    await dialing.run("ALTER TABLE attempts ALTER COLUMN dialer SET DEFAULT 'inbound'")
    inbound = await dialing.open_transaction()
    await _ring_in(inbound, dialing.number, 1)
    grants = [dialing.grant(await dialing.lead(), channel) for channel in (2, 1)]
    outbound, batch = await dialing.open_transaction(), IntentBatch(grants, ME, dialing.rules(), {})
    dialled = await dialing.blocked(batch.write(outbound, 5000))
    await _ring_in(inbound, dialing.number, 2)
    await dialing.commit(inbound)
    await dialled
    assert batch.attempts == []
    assert [refusal.reason for refusal in batch._refusals.values()] == [R.CHANNEL, R.CHANNEL]
    assert None not in [refusal.owner for refusal in batch._refusals.values()]


async def _ring_in(tx: Connection, number: UUID, channel: int) -> None:
    await tx.execute(
        "INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no,"
        " carrier, account, to_phone, from_phone)"
        " VALUES (gen_random_uuid(), 'inbound', 1, 'r', 'm', $1, $2, 'twilio', 'default', '+1', '+2')",
        number,
        channel,
    )


async def test_race_5_a_channel_that_is_being_freed_is_waited_for_and_taken(dialing: Dialing) -> None:
    old = await dialing.attempt(BOB, state="answered", channel=1)
    fold = await dialing.open_transaction()
    await fold.execute("UPDATE attempts SET state = 'ended', holds_channel = false WHERE id = $1", old)
    dialled = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), 1)))
    await dialing.commit(fold)
    assert len((await dialled).committed) == 1


async def test_race_6_slowing_an_account_does_not_deadlock_with_an_intent_that_waits_for_its_channel(
    dialing: Dialing,
) -> None:
    """The writer of a 429 frees a channel; an intent of the same account waits for exactly that."""
    old = await dialing.attempt(BOB, state="dialing", channel=1)
    writer = await dialing.open_transaction()
    await writer.execute("UPDATE attempts SET state = 'rejected', holds_channel = false WHERE id = $1", old)
    dialled = await dialing.blocked(dialing.intend(dialing.grant(await dialing.lead(), 1)))
    await slow_account(dialing.database, "twilio", "default", 30)
    await dialing.commit(writer)
    assert len((await dialled).committed) == 1
    assert await dialing.value("SELECT next_start_at > now() + interval '20 s' FROM paces")


async def test_race_6_the_same_people_in_two_campaigns_do_not_deadlock(dialing: Dialing) -> None:
    first, _ = await dialing.half_an_intent(
        dialing.grant(await dialing.lead(ADA)), dialing.grant(await dialing.lead(BOB))
    )
    second = await dialing.blocked(
        dialing.intend(
            dialing.grant(await dialing.lead(BOB, "n")), dialing.grant(await dialing.lead(ADA, "n"))
        )
    )
    await dialing.commit(first)
    assert [refusal.reason for refusal in (await second).refused.values()] == [R.PERSON, R.PERSON]


async def test_race_6_a_bulk_load_of_the_same_merchant_does_not_wait_for_an_intent(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(attempts_per_day=10))
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    assert await dialing.leads(3)
    await dialing.commit(first)


async def test_race_6_a_pre_check_of_a_lead_does_not_wait_for_its_intent(dialing: Dialing) -> None:
    """Its row names the lead, which the intent has locked: not its key."""
    lead = await dialing.lead()
    first, _ = await dialing.half_an_intent(dialing.grant(lead))
    async with dialing.database.connection() as conn:
        await conn.execute("SET lock_timeout = '5s'")
        assert lead in await prechecks.claim(conn, {lead: (b"", 5.0)}, fresh_for_s=0)
    await dialing.commit(first)


async def test_race_6_results_are_locked_by_id_whatever_their_order(dialing: Dialing) -> None:
    """Two writers of the same calls in another order would wait for each other. Here the other one has the first call:
    whoever waits for it must not have the second by then."""
    first, second = sorted([await dialing.attempt(f"+1212555100{n}", channel=n) for n in (1, 2)])
    # The first comes last, in the table as in the list.
    await dialing.run("UPDATE attempts SET account = account WHERE id = $1", first)
    other = await dialing.open_transaction()
    await other.execute("SELECT FROM attempts WHERE id = $1 FOR NO KEY UPDATE", first)
    results = [Result(each, AttemptState.ACCEPTED, f"CA-{each}") for each in (second, first)]

    async def write() -> None:
        async with dialing.database.transaction() as tx:
            # An index on ids has them in order by chance; a plan that reads the table has not.
            for plan in ("indexscan", "indexonlyscan", "bitmapscan"):
                await tx.execute(f"SET LOCAL enable_{plan} = off")
            await attempts.write_results(tx, results)

    writing = await dialing.blocked(write())
    await other.execute("SELECT FROM attempts WHERE id = $1 FOR NO KEY UPDATE NOWAIT", second)
    await dialing.commit(other)
    await writing


# Leads


async def test_race_5_a_lead_that_is_being_aborted_delays_no_other_lead(dialing: Dialing) -> None:
    aborted, good = dialing.grant(await dialing.lead()), dialing.grant(await dialing.lead())
    operator = await dialing.open_transaction()
    await operator.execute(
        "UPDATE leads SET status = 'FINISHED', outcome = 'ABORTED', finished_at = now(), version = 2"
        " WHERE id = $1",
        aborted.lead_id,
    )
    intents = await dialing.intend(aborted, good)
    assert [intent.attempt_id for intent in intents.committed] == [good.attempt_id]
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.subject, refusal.is_gone) == (R.LEAD, "being_changed", False)
    await dialing.commit(operator)
    (again,) = (await dialing.intend(aborted)).refused.values()
    assert (again.subject, again.is_gone) == ("FINISHED", True)


async def test_race_5_an_abort_that_comes_second_finds_a_lead_that_is_being_called(dialing: Dialing) -> None:
    lead = await dialing.lead()
    first, _ = await dialing.half_an_intent(dialing.grant(lead))
    abort = await dialing.blocked(
        dialing.value(
            "UPDATE leads SET status = 'FINISHED', outcome = 'ABORTED', finished_at = now()"
            " WHERE id = $1 AND status = 'BACKLOG' RETURNING id",
            lead,
        )
    )
    await dialing.commit(first)
    assert await abort is None
    assert (await dialing.lead_row(lead))["status"] == "PROCESSING"


async def test_race_20_a_lead_that_breaks_the_intent_breaks_only_its_own(dialing: Dialing) -> None:
    poison = await dialing.lead()
    await dialing.run(
        f"ALTER TABLE attempts ADD CONSTRAINT no_poison CHECK (lead_id <> '{poison}') NOT VALID"
    )
    good = await dialing.leads(2)
    intents = await dialing.intend(*[dialing.grant(lead) for lead in (good[0], poison, good[1])])
    assert [intent.lead_id for intent in intents.committed] == good
    (refusal,) = intents.refused.values()
    assert (refusal.reason, refusal.is_gone) == (R.ERROR, True)
    assert [grant.lead_id for grant in intents.refused] == [poison]
    found = await dialing.lead_row(poison)
    assert (found["status"], found["version"]) == ("BACKLOG", 2)
    assert found["due_at"] > await dialing.now() + timedelta(seconds=20)


async def test_race_20_a_lead_that_always_breaks_its_intent_ends(dialing: Dialing) -> None:
    poison = await dialing.lead()
    await dialing.run("ALTER TABLE attempts ADD CONSTRAINT no_attempts CHECK (false) NOT VALID")
    for _ in range(10):
        await dialing.run("UPDATE leads SET due_at = now(), version = 1")
        await dialing.intend(dialing.grant(poison))
    found = await dialing.lead_row(poison)
    assert (found["status"], found["outcome"], found["outcome_reason"]) == ("FINISHED", "NO_CONFIG", "ERROR")


async def test_race_20_a_gate_that_fails_fails_for_one_lead(dialing: Dialing) -> None:
    def stopped(reseller: str, merchant: str, campaign: object, number: object, carrier: str) -> str | None:
        if merchant == "n":
            raise RuntimeError("a bug")
        return None

    bad, good = dialing.grant(await dialing.lead(merchant="n")), dialing.grant(await dialing.lead())
    intents = await dialing.intend(bad, good, stopped=stopped)
    assert [intent.attempt_id for intent in intents.committed] == [good.attempt_id]
    assert reasons(intents.refused.values()) == [(R.ERROR, "gate")]


# Time


@pytest.mark.usefixtures("impatient")
async def test_race_7_a_stopped_dialer_delays_only_leads_that_need_its_locks(
    dialing: Dialing, other: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first holds Ada and its account. The batch of the second fails on Ada, and its others go in without her."""
    first, _ = await dialing.half_an_intent(dialing.grant(await dialing.lead(ADA, "n"), number=other))
    grants = [dialing.grant(lead) for lead in (*await dialing.leads(2), await dialing.lead(ADA))]
    monkeypatch.setattr(intent, "TRANSACTION_TIMEOUT_MS", 60_000)
    intents = await dialing.intend(*grants)
    assert len(intents.committed) == 2
    assert reasons(intents.refused.values()) == [(R.CONTENDED, None)]
    await first.execute("ROLLBACK")


@pytest.mark.usefixtures("impatient")
async def test_race_7_postgres_ends_the_transaction_of_a_dialer_stopped_inside_its_intent(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = await asyncpg.connect(dialing.url)
    await stopped.execute("BEGIN")
    batch = IntentBatch([dialing.grant(await dialing.lead())], "stopped", dialing.rules(), {})
    await batch.write(stopped, 500)
    monkeypatch.setattr(intent, "TRANSACTION_TIMEOUT_MS", 60_000)  # it alone is thrown out
    lead = await dialing.lead()

    async def goes_in() -> bool:
        return bool((await dialing.intend(dialing.grant(lead))).committed)

    await eventually(goes_in, timeout_s=10)
    assert await dialing.value("SELECT count(*) FROM attempts") == 1
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await stopped.execute("COMMIT")
    stopped.terminate()


async def test_the_intents_timeouts_end_with_its_transaction(dialing: Dialing) -> None:
    """Behind a transaction pooler the next client has the same server connection."""
    single = await connect(dialing.url, pool_size=1)
    dialing.database, here = single, dialing.database
    await dialing.intend(dialing.grant(await dialing.lead()))
    assert await dialing.value("SELECT current_setting('lock_timeout')") == "0"
    assert await dialing.value("SELECT current_setting('transaction_timeout')") == "0"
    dialing.database = here
    await single.close()


# A COMMIT that is not answered


async def test_race_8_after_a_lost_commit_reply_nothing_is_sent_and_the_attempt_is_disowned(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead()
    grant = dialing.grant(lead)
    async with TcpProxy.before(dialing.url) as proxy:
        behind = await connect(proxy.url, pool_size=1)
        dialing.database, here = behind, dialing.database
        proxy.swallow_reply(after=b"COMMIT;")
        intents = await dialing.intend(grant)
        dialing.database = here
        behind.pool.terminate()
    assert (intents.committed, intents.refused) == ((), {})
    assert [attempt.grant for attempt in intents.lost] == [grant]
    assert await dialing.state_of(grant.attempt_id) == "dialing", "it had gone through"
    (entry,) = await disown(dialing.database, intents.lost, ME)
    row = await dialing.row("SELECT * FROM attempts")
    assert (row["state"], row["end_reason"], row["holds_channel"]) == ("rejected", "not_sent", False)
    found = await dialing.lead_row(lead)
    assert (found["status"], found["attempt_count"], found["version"]) == ("BACKLOG", 0, 3)
    assert (entry.lead_id, entry.version) == (lead, 3)
    assert len((await dialing.intend(dialing.grant(lead, 1, version=3))).committed) == 1


async def test_race_8_a_lead_that_was_aborted_before_its_attempt_was_disowned_is_called_no_more(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead()
    first, batch = await dialing.half_an_intent(dialing.grant(lead))
    await dialing.commit(first)
    await dialing.run("UPDATE leads SET cancel_requested_at = now(), cancel_reason = 'sold out'")
    assert await disown(dialing.database, batch.attempts, "another dialer") == []
    found = await dialing.lead_row(lead)
    assert (found["status"], found["outcome"], found["outcome_reason"]) == ("FINISHED", "ABORTED", "sold out")
    assert found["finished_at"] is not None


async def test_race_8_disowning_waits_for_the_commit_that_is_in_flight(dialing: Dialing) -> None:
    """A reader would see nothing and call the lead again."""
    first, batch = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    disowning = await dialing.blocked(disown(dialing.database, batch.attempts, "another dialer"))
    await dialing.commit(first)
    assert len(await disowning) == 1
    assert await dialing.state_of(batch.attempts[0].grant.attempt_id) == "rejected"


async def test_race_8_a_commit_that_failed_leaves_its_id_unusable_and_its_lead_as_it_was(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead()
    first, batch = await dialing.half_an_intent(dialing.grant(lead))
    disowning = await dialing.blocked(disown(dialing.database, batch.attempts, "another dialer"))
    await first.execute("ROLLBACK")
    assert await disowning == []
    assert await dialing.state_of(batch.attempts[0].grant.attempt_id) == "rejected"
    found = await dialing.lead_row(lead)
    assert (found["status"], found["version"], found["attempt_count"]) == ("BACKLOG", 1, 0)
    (refusal,) = (await dialing.intend(batch.attempts[0].grant)).refused.values()
    assert refusal.reason is R.CHANNEL, "the id is taken"


async def test_race_8_disowning_late_does_not_touch_the_call_that_another_dialer_placed(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead()
    first, batch = await dialing.half_an_intent(dialing.grant(lead, 1))
    await first.execute("ROLLBACK")
    (newer,) = (await dialing.intend(dialing.grant(lead, 2))).committed
    assert await disown(dialing.database, batch.attempts, "another dialer") == []
    assert await dialing.state_of(newer.attempt_id) == "dialing"
    assert (await dialing.lead_row(lead))["status"] == "PROCESSING"
    newest = await dialing.value("SELECT id FROM attempts ORDER BY intent_at DESC LIMIT 1")
    assert newest == newer.attempt_id, "or its answer would be hung up as superseded"


async def test_race_6_disowning_locks_leads_before_attempts(dialing: Dialing) -> None:
    """A fold holds the lead and goes on to its attempts. In the other order this is a deadlock."""
    lead = await dialing.lead()
    first, batch = await dialing.half_an_intent(dialing.grant(lead))
    await dialing.commit(first)
    fold = await dialing.open_transaction()
    await fold.execute("SELECT id FROM leads WHERE id = $1 FOR NO KEY UPDATE", lead)
    disowning = await dialing.blocked(disown(dialing.database, batch.attempts, "another dialer"))
    await fold.execute("UPDATE attempts SET state = 'ringing' WHERE lead_id = $1", lead)
    await dialing.commit(fold)
    assert await disowning == []
    assert await dialing.state_of(batch.attempts[0].grant.attempt_id) == "ringing"


async def test_race_8_disowning_twice_is_disowning_once(dialing: Dialing) -> None:
    first, batch = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    await dialing.commit(first)
    assert len(await disown(dialing.database, batch.attempts, "another dialer")) == 1
    assert await disown(dialing.database, batch.attempts, "another dialer") == []
    assert await dialing.value("SELECT attempt_count FROM leads") == 0


async def test_a_dialer_can_disown_its_own_attempts_only(dialing: Dialing) -> None:
    first, batch = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    await dialing.commit(first)
    assert await disown(dialing.database, batch.attempts, "somebody else") == []
    assert await dialing.state_of(batch.attempts[0].grant.attempt_id) == "dialing"


async def test_an_intent_whose_server_is_lost_before_the_commit_raises_and_leaves_nothing(
    dialing: Dialing,
) -> None:
    lead = await dialing.lead()
    async with TcpProxy.before(dialing.url) as proxy:
        behind = await connect(proxy.url, pool_size=1)
        dialing.database, here = behind, dialing.database
        proxy.swallow_reply(after=b"wanted AS MATERIALIZED")
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await dialing.intend(dialing.grant(lead))
        dialing.database = here
        behind.pool.terminate()

    async def is_rolled_back() -> bool:
        return bool(
            await dialing.value("SELECT id FROM leads WHERE status = 'BACKLOG' FOR UPDATE SKIP LOCKED")
        )

    await eventually(is_rolled_back)
    assert await dialing.value("SELECT count(*) FROM attempts") == 0


async def test_disowning_an_attempt_that_was_never_committed_raises_no_daily_limit(dialing: Dialing) -> None:
    """It is written down as not sent, and was never counted: there is nothing to give back."""
    await dialing.policy(CallingPolicy(attempts_per_day=2))
    for _ in range(2):
        connection, batch = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
        await connection.execute("ROLLBACK")
        await disown(dialing.database, batch.attempts, "another dialer")
    assert await dialing.value("SELECT count(*) FROM attempts WHERE state = 'rejected'") == 2
    placed = [len((await dialing.intend(dialing.grant(lead))).committed) for lead in await dialing.leads(4)]
    assert placed == [1, 1, 0, 0]


async def test_disowning_a_committed_attempt_gives_its_daily_count_back(dialing: Dialing) -> None:
    await dialing.policy(CallingPolicy(attempts_per_day=2))
    connection, batch = await dialing.half_an_intent(dialing.grant(await dialing.lead()))
    await dialing.commit(connection)
    await disown(dialing.database, batch.attempts, "another dialer")
    placed = [len((await dialing.intend(dialing.grant(lead))).committed) for lead in await dialing.leads(3)]
    assert placed == [1, 1, 0]
