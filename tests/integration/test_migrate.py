"""Migrations: forward, twice, at once, and never over a change of history."""

import asyncio
import inspect
import re
from datetime import timedelta

import asyncpg
import pytest

from tests.support.world import world_settings
from trunkline.app import Platform
from trunkline.errors import MigrationError, StoreUnavailable
from trunkline.jobs import client
from trunkline.mailbox import application
from trunkline.states import LIVE
from trunkline.store import mailboxes, migrate
from trunkline.store.sql import query
from trunkline.telephony.simulator import Simulator, SimulatorConfig


async def test_migrations_run_twice_are_applied_once(empty_database_url: str) -> None:
    applied = await migrate.migrate(empty_database_url)
    assert applied == [m.name for m in migrate.known()]
    assert await migrate.migrate(empty_database_url) == []


async def test_concurrent_migrations_apply_each_file_once(empty_database_url: str) -> None:
    results = await asyncio.gather(*(migrate.migrate(empty_database_url) for _ in range(4)))
    assert sorted(name for applied in results for name in applied) == [m.name for m in migrate.known()]


async def test_pending_lists_the_migrations_not_yet_applied(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    try:
        assert await migrate.pending(connection) == [m.name for m in migrate.known()]
        await migrate.migrate(empty_database_url)
        assert await migrate.pending(connection) == []
    finally:
        await connection.close()


async def test_a_process_does_not_start_on_a_schema_that_lacks_a_migration(
    empty_database_url: str, redis_url: str, key_prefix: str
) -> None:
    *older, newest = [each.name for each in migrate.known()]
    await migrate.migrate(empty_database_url, older)
    settings = world_settings(empty_database_url, redis_url, key_prefix, Simulator(SimulatorConfig()))
    with pytest.raises(MigrationError, match=rf"lacks 1 .*{newest}.*Run `trunkline migrate`"):
        async with Platform.open(settings):
            pass


async def test_a_migration_that_was_changed_afterwards_is_refused(empty_database_url: str) -> None:
    await migrate.migrate(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("UPDATE schema_migrations SET checksum = 'other' WHERE name LIKE '0001%'")
    await connection.close()
    with pytest.raises(MigrationError, match="0001_tenants was changed"):
        await migrate.migrate(empty_database_url)


async def test_migration_0038_renames_outcomes_and_fills_answered_at(empty_database_url: str) -> None:
    """And calls that must have been answered, were."""
    before = [m.name for m in migrate.known() if m.name < "0038"]
    await migrate.migrate(empty_database_url, only=before)
    connection = await asyncpg.connect(empty_database_url)
    try:
        await connection.execute(_LEADS_BEFORE_0038)
        await migrate.migrate(empty_database_url)
        rows = await connection.fetch(
            "SELECT l.outcome, l.outcome_reason, a.agent, a.ended_at - a.answered_at AS talked"
            " FROM leads AS l JOIN attempts AS a ON a.lead_id = l.id ORDER BY l.request_id"
        )
        talked = timedelta(seconds=30)
        assert [tuple(row) for row in rows] == [
            ("NO_AGENT", None, "none", talked),
            ("BUSY", None, None, None),
            ("BUSY", None, None, talked),
            ("NO_ANSWER", "FAILED", None, None),
            ("ANSWERED", None, None, talked),
        ]
        counts = await connection.fetch(
            "SELECT outcome, sum(leads)::int AS leads FROM campaign_counts GROUP BY 1"
            " HAVING sum(leads) <> 0 ORDER BY 1"
        )
        assert [tuple(row) for row in counts] == [
            ("ANSWERED", 1),
            ("BUSY", 2),
            ("NO_AGENT", 1),
            ("NO_ANSWER", 1),
        ]
    finally:
        await connection.close()


_LEADS_BEFORE_0038 = """
INSERT INTO resellers (id, name) VALUES ('r', 'r');
INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'm');
INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'p');
WITH told (n, outcome, reason, agent_joined, end_reason, is_answered, duration_s) AS (VALUES
    (1, 'BUSY', 'NO_AGENT', false, 'completed', true, 30),
    (2, 'NO_ANSWER', 'BUSY', NULL::boolean, 'busy', false, NULL::int),
    (3, 'BUSY', NULL, NULL, 'completed', true, 30),  -- the agent's own word
    (4, 'NO_ANSWER', 'FAILED', NULL, 'failed', false, NULL),
    (5, 'ANSWERED', NULL, NULL, 'completed', false, 30)  -- and the webhook was lost
), made AS (
    INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, campaign_id,
                       scheduled_at, due_at, status, outcome, outcome_reason, finished_at, attempt_count)
    SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'r', 'm', n::text, sha256('x'), '+1212555000' || n, 'p',
           gen_random_uuid(), now(), now(), 'FINISHED', outcome, reason, now(), 1
    FROM told RETURNING id
)
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, holds_channel, dialer, answered_at, ended_at, end_reason,
                      duration_s, agent_joined)
SELECT gen_random_uuid(), ('00000000-0000-0000-0000-00000000000' || n)::uuid, 1, 'r', 'm', gen_random_uuid(), 1,
       'twilio', 'default', '+1212555000' || n, '+14155550100', 'ended', false, 'd',
       CASE WHEN is_answered THEN now() - interval '30 s' END, now(), end_reason, duration_s, agent_joined
FROM told WHERE (SELECT count(*) FROM made) = 5;
"""


async def test_migrating_an_unreachable_database_is_reported_in_one_line() -> None:
    with pytest.raises(StoreUnavailable, match="Check DATABASE_URL"):
        await migrate.migrate("postgresql://nobody@127.0.0.1:1/nothing")


async def test_the_unique_indexes_on_attempts_cover_the_live_states(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for index in ("attempts_one_live_per_lead", "attempts_one_live_per_pair"):
            definition = await connection.fetchval(
                "SELECT indexdef FROM pg_indexes WHERE indexname = $1", index
            )
            predicate = definition.split(" WHERE ")[1]
            named = {state for state in migrate_states() if f"'{state}'" in predicate}
            assert named == {state.value for state in LIVE}, index
    finally:
        await connection.close()


def migrate_states() -> set[str]:
    from trunkline.states import AttemptState

    return {state.value for state in AttemptState}


async def test_the_mailbox_migrations_alone_support_every_mailbox_query(empty_database_url: str) -> None:
    """It makes their part of the schema alone."""
    await migrate.migrate(empty_database_url, only=application.MIGRATIONS)
    asked = set(re.findall(r"\b_SQL\.(\w+)", inspect.getsource(mailboxes)))
    assert {"append", "claim", "claim_one", "complete"} <= asked
    connection = await asyncpg.connect(empty_database_url)
    try:
        for name in asked:
            await connection.prepare(query(f"mailbox/{name}"))
    finally:
        await connection.close()


def test_every_migration_of_jobs_or_mailboxes_is_applied_for_applications() -> None:
    """A migration that changes their tables belongs to a library, or is stated here to be the platform's alone."""
    of_the_platform = {"0016_mailbox_kinds", "0026_console"}
    changes = r"\b(?:TABLE|VIEW|FUNCTION|ON)\s+(?:IF (?:NOT )?EXISTS\s+)?"
    job_table = re.compile(changes + r"(?:job_(?:outbox|keys|pauses|progress|history|dead|schedules)|jobs)\b")
    mailbox_table = re.compile(changes + r"mailbox(?:es|_\w+)\b")
    for migration in migrate.known():
        sql = re.sub(r"--.*", "", migration.sql)
        if migration.name in of_the_platform:
            continue
        if job_table.search(sql):
            assert migration.name in client.MIGRATIONS, f"{migration.name} is missing in jobs/client.py"
        if mailbox_table.search(sql):
            assert migration.name in application.MIGRATIONS, (
                f"{migration.name} is missing in mailbox/application.py"
            )


async def test_a_library_has_a_schema_of_its_own_beside_a_platform(database_url: str) -> None:
    applied = await migrate.migrate(database_url, only=client.MIGRATIONS, schema='App "1"')
    assert applied == sorted(client.MIGRATIONS)
    assert await migrate.migrate(database_url, only=client.MIGRATIONS, schema='App "1"') == []
    connection, schema = await asyncpg.connect(database_url), '"App ""1"""'
    try:
        async with connection.transaction():
            await connection.execute(f"SELECT {schema}.enqueue_job('ship')")
        assert await connection.fetchval("SELECT count(*) FROM job_outbox") == 0
        assert await connection.fetchval(f"SELECT count(*) FROM {schema}.job_outbox") == 1
        assert await connection.fetchval("SHOW search_path") == '"$user", public'
    finally:
        await connection.close()


async def test_mailboxes_in_the_public_schema_refuse_another_schema(empty_database_url: str) -> None:
    await migrate.migrate(empty_database_url, only=application.MIGRATIONS)
    with pytest.raises(MigrationError, match='Open them with schema="public"'):
        await migrate.migrate(empty_database_url, only=application.MIGRATIONS, schema="trunkline")
    assert await migrate.migrate(empty_database_url, only=application.MIGRATIONS, schema="public") == []
