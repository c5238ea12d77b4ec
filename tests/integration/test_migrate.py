"""Migrations: forward, twice, at once, behind others' locks, and never over a change of history."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import asyncpg
import pytest

from tests.support.waiting import eventually
from tests.support.world import world_settings
from trunkline.app import Platform
from trunkline.errors import MigrationError, StoreUnavailable
from trunkline.states import LIVE, AttemptState
from trunkline.store import mailboxes, migrate
from trunkline.store.migrate import Migration, Patience
from trunkline.store.sql import query
from trunkline.telephony.simulator import Simulator, SimulatorConfig

HURRIED = Patience(lock_timeout_s=0.05, tries=3, pause_s=0.01, others_s=0.2)
STUBBORN = Patience(lock_timeout_s=0.05, tries=10_000, pause_s=0.01)
ADD_NOTE = Migration("0900_pre_leads_note", "ALTER TABLE leads ADD COLUMN note text;")
DROP_TIMEZONE = Migration("0901_post_leads_timezone", "ALTER TABLE leads DROP COLUMN timezone;")
ADD_OTHER_NOTE = Migration("0902_pre_leads_other_note", "ALTER TABLE leads ADD COLUMN other_note text;")
INDEX_NAMES = Migration(
    "0903_pre_tenants_names",
    "-- outside a transaction\n"
    "-- A merchant's name is its own.\n"
    "DROP INDEX CONCURRENTLY IF EXISTS merchants_name_once;\n"
    "CREATE UNIQUE INDEX CONCURRENTLY merchants_name_once\n    ON merchants (name);\n",
)
TWO_OF_A_NAME = """
INSERT INTO resellers (id, name) VALUES ('r', 'r');
INSERT INTO merchants (id, reseller_id, name) VALUES ('m1', 'r', 'same'), ('m2', 'r', 'same');
"""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> "Later":
    return Later(monkeypatch)


class Later:
    """A later version, which has more migrations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._monkeypatch = monkeypatch
        self._today = migrate.known()

    def has(self, *more: Migration) -> None:
        self._monkeypatch.setattr(migrate, "known", lambda: (*self._today, *more))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def columns(url: str, table: str) -> set[str]:
    async with connected(url) as connection:
        rows = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = $1", table
        )
    return {row["column_name"] for row in rows}


async def open_platform(database_url: str, redis_url: str, key_prefix: str) -> None:
    settings = world_settings(database_url, redis_url, key_prefix, Simulator(SimulatorConfig()))
    async with Platform.open(settings):
        pass


async def record(url: str, number: int, name: str) -> None:
    """As if a migration of another version had been applied."""
    async with connected(url) as connection:
        await connection.execute(
            "INSERT INTO schema_migrations (number, name, checksum, applied_at) VALUES ($1, $2, '', now())",
            number,
            name,
        )


async def test_running_twice_applies_once(empty_database_url: str) -> None:
    applied = await migrate.migrate(empty_database_url)
    assert applied == [m.name for m in migrate.known()]
    assert await migrate.migrate(empty_database_url) == []


async def test_two_that_run_at_once_share_the_work(empty_database_url: str) -> None:
    results = await asyncio.gather(*(migrate.migrate(empty_database_url) for _ in range(4)))
    assert sorted(name for applied in results for name in applied) == [m.name for m in migrate.known()]


async def test_what_is_missing_is_known_before_and_after(empty_database_url: str) -> None:
    async with connected(empty_database_url) as connection:
        assert await migrate.pending(connection) == list(migrate.known())
        await migrate.migrate(empty_database_url)
        assert await migrate.pending(connection) == []


async def test_a_process_does_not_start_on_an_empty_database(
    empty_database_url: str, redis_url: str, key_prefix: str
) -> None:
    with pytest.raises(MigrationError, match=r"has no schema of Trunkline .*: run `trunkline migrate`, then"):
        await open_platform(empty_database_url, redis_url, key_prefix)


async def test_a_process_does_not_start_on_a_schema_that_lacks_a_migration(
    database_url: str, redis_url: str, key_prefix: str, later: Later
) -> None:
    later.has(ADD_NOTE)
    with pytest.raises(
        MigrationError,
        match=r"has schema 8 and this version runs on schema 900, but it lacks 1 .*0900_pre_leads_note.*"
        r": run `trunkline migrate`, then start this process again\.$",
    ):
        await open_platform(database_url, redis_url, key_prefix)


async def test_what_comes_after_a_deploy_keeps_no_process_from_starting(
    database_url: str, redis_url: str, key_prefix: str, later: Later
) -> None:
    later.has(ADD_NOTE, DROP_TIMEZONE)
    assert await migrate.migrate(database_url, phase="pre") == [ADD_NOTE.name]
    assert await migrate.what_is_left(database_url) == [DROP_TIMEZONE.name]
    await open_platform(database_url, redis_url, key_prefix)


async def test_a_process_starts_on_a_schema_that_a_later_version_has_expanded(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    await record(database_url, 900, "0900_pre_leads_note")
    await open_platform(database_url, redis_url, key_prefix)
    assert await migrate.migrate(database_url) == []


async def test_a_process_does_not_start_on_a_schema_that_a_later_version_has_contracted(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    await record(database_url, 901, "0901_post_leads_timezone")
    refusal = (
        r"^The database has schema 901 and this version runs on schema 8, but `trunkline migrate` of a newer version"
        r" has applied 0901_post_leads_timezone: start that version instead\.$"
    )
    with pytest.raises(MigrationError, match=refusal):
        await open_platform(database_url, redis_url, key_prefix)
    with pytest.raises(MigrationError, match=refusal):
        await migrate.migrate(database_url)


async def test_a_later_schema_of_the_platform_is_nothing_to_a_library(database_url: str) -> None:
    await record(database_url, 901, "0901_post_leads_timezone")
    assert await migrate.migrate(database_url, area="mailboxes") == []


@pytest.mark.parametrize("roles", ["api", "router"])
async def test_a_process_under_which_the_schema_changed_is_not_ready_and_says_so(
    database_url: str, redis_url: str, key_prefix: str, roles: str
) -> None:
    settings = world_settings(
        database_url, redis_url, key_prefix, Simulator(SimulatorConfig()), TRUNKLINE_ROLES=roles
    )
    async with (
        Platform.open(settings) as platform,
        aiohttp.ClientSession(platform.base_url) as session,
        connected(database_url) as connection,
    ):

        async def ready() -> tuple[int, str | None]:
            async with session.get("/ready") as response:
                return response.status, (await response.json())["checks"]["postgres"]["error"]

        assert await ready() == (200, None)
        await record(database_url, 901, "0901_post_leads_timezone")
        status, error = await ready()
        assert status == 503
        assert error is not None
        assert "newer version has applied 0901_post_leads_timezone" in error
        await connection.execute("DELETE FROM schema_migrations WHERE number IN (8, 901)")
        status, error = await ready()
        assert status == 503
        assert error is not None
        assert "has schema 7 and this version runs on schema 8" in error
        assert "run `trunkline migrate`" in error


async def test_before_a_deploy_it_expands_and_after_it_contracts(database_url: str, later: Later) -> None:
    later.has(ADD_NOTE, DROP_TIMEZONE)
    with pytest.raises(
        MigrationError, match=r"0900_pre_leads_note comes before .*`trunkline migrate --pre` first"
    ):
        await migrate.migrate(database_url, phase="post")
    assert await migrate.migrate(database_url, phase="pre") == [ADD_NOTE.name]
    assert {"note", "timezone"} <= await columns(database_url, "leads")
    assert await migrate.migrate(database_url, phase="pre") == []
    assert await migrate.migrate(database_url, phase="post") == [DROP_TIMEZONE.name]
    assert "timezone" not in await columns(database_url, "leads")


async def test_a_version_that_was_left_out_is_caught_up_with_in_order(
    database_url: str, later: Later
) -> None:
    later.has(ADD_NOTE, DROP_TIMEZONE, ADD_OTHER_NOTE)
    assert await migrate.migrate(database_url, phase="pre") == [ADD_NOTE.name]
    with pytest.raises(MigrationError, match=r"0901_post_leads_timezone comes before 0902.*--post` first"):
        await migrate.migrate(database_url, phase="pre")
    assert await migrate.migrate(database_url) == [DROP_TIMEZONE.name, ADD_OTHER_NOTE.name]


async def test_a_migration_that_meets_a_held_table_is_tried_again_and_given_up_with_a_sentence(
    database_url: str, later: Later
) -> None:
    later.has(ADD_NOTE)
    async with connected(database_url) as stranger, stranger.transaction():
        await stranger.execute("SELECT FROM leads")
        with pytest.raises(
            MigrationError,
            match=rf"0900_pre_leads_note was tried 3 times .*process {stranger.get_server_pid()}.* Nothing of it was"
            " applied: .*`trunkline migrate` again",
        ):
            await migrate.migrate(database_url, patience=HURRIED)
    assert "note" not in await columns(database_url, "leads")
    assert await migrate.migrate(database_url, patience=HURRIED) == [ADD_NOTE.name]


async def test_a_migration_goes_on_when_the_table_is_let_go(database_url: str, later: Later) -> None:
    later.has(ADD_NOTE)
    async with connected(database_url) as watch, connected(database_url) as stranger:
        held = stranger.transaction()
        await held.start()
        await stranger.execute("SELECT FROM leads")
        migrating = asyncio.create_task(migrate.migrate(database_url, patience=STUBBORN))

        async def waits() -> bool:
            return bool(
                await watch.fetchval(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE application_name = 'trunkline migrate' AND wait_event_type = 'Lock'"
                )
            )

        await eventually(waits, what="the migration waits for the table")
        await held.rollback()
        assert await migrating == [ADD_NOTE.name]


async def test_whoever_finds_another_at_it_for_too_long_says_so(database_url: str, later: Later) -> None:
    later.has(ADD_NOTE)
    async with connected(database_url) as other, other.transaction():
        assert await other.fetchval(query("migrations/try_lock"))
        with pytest.raises(
            MigrationError, match=r"Another process has been migrating .*`trunkline migrate` again"
        ):
            await migrate.migrate(database_url, patience=HURRIED)


async def test_two_at_once_make_an_index_beside_the_traffic_once(database_url: str, later: Later) -> None:
    """Whoever waits for the other has no snapshot, for whose end the index would wait in turn."""
    later.has(INDEX_NAMES)
    results = await asyncio.gather(*(migrate.migrate(database_url) for _ in range(3)))
    assert [name for applied in results for name in applied] == [INDEX_NAMES.name]


async def test_a_file_outside_a_transaction_that_broke_off_is_found_told_and_begun_anew(
    database_url: str, redis_url: str, key_prefix: str, later: Later
) -> None:
    later.has(INDEX_NAMES)
    async with connected(database_url) as connection:
        await connection.execute(TWO_OF_A_NAME)
        with pytest.raises(
            MigrationError, match=r"0903_pre_tenants_names .*broke off half-way .*merchants_name_once"
        ):
            await migrate.migrate(database_url)
        assert await migrate.what_is_left(database_url) == [INDEX_NAMES.name]
        with pytest.raises(MigrationError, match=r"0903_pre_tenants_names was begun at .* and has not ended"):
            await open_platform(database_url, redis_url, key_prefix)
        await connection.execute("UPDATE merchants SET name = id")
        assert await migrate.migrate(database_url) == [INDEX_NAMES.name]
        is_valid = await connection.fetchval(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'merchants_name_once'::regclass"
        )
    assert is_valid
    await open_platform(database_url, redis_url, key_prefix)


async def test_an_index_that_is_not_valid_is_not_taken_for_one(database_url: str, later: Later) -> None:
    later.has(Migration(INDEX_NAMES.name, INDEX_NAMES.sql.replace("DROP INDEX CONCURRENTLY", "-- DROP")))
    async with connected(database_url) as connection:
        await connection.execute(TWO_OF_A_NAME)
        with pytest.raises(MigrationError, match="broke off half-way"):
            await migrate.migrate(database_url)
        later.has(
            Migration(
                INDEX_NAMES.name,
                INDEX_NAMES.sql.replace("TLY merch", "TLY IF NOT EXISTS merch").replace(
                    "DROP INDEX", "-- DROP"
                ),
            )
        )
        with pytest.raises(MigrationError, match=r"not valid \(merchants_name_once\): drop it"):
            await migrate.migrate(database_url)
        assert await migrate.what_is_left(database_url) == [INDEX_NAMES.name]


async def test_a_database_of_before_the_first_release_is_refused_with_what_to_do(
    empty_database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with connected(empty_database_url) as connection:
        await connection.execute(BEFORE_THE_FIRST_RELEASE)
    refusal = (
        r"made before the first release .*export the leads .*docs/how-to/upgrading\.md.*fresh data folder"
    )
    with pytest.raises(MigrationError, match=refusal):
        await migrate.migrate(empty_database_url)
    with pytest.raises(MigrationError, match=refusal):
        await open_platform(empty_database_url, redis_url, key_prefix)
    with pytest.raises(MigrationError, match=r"tables in schema public .*finish what waits there, then drop"):
        await migrate.migrate(empty_database_url, area="jobs", schema="public")
    assert await migrate.migrate(empty_database_url, area="jobs", schema="trunkline")


async def test_tables_of_an_application_do_not_hide_those_of_a_platform(
    empty_database_url: str, redis_url: str, key_prefix: str
) -> None:
    """The embedded engines' role has the name of the schema that applications have by default."""
    await migrate.migrate(empty_database_url)
    assert await migrate.migrate(empty_database_url, area="jobs", schema="trunkline")
    async with connected(empty_database_url) as connection:
        assert await connection.fetchval("SELECT current_user") == "trunkline"
        await migrate.require_schema(connection)
        assert await connection.fetchval("SELECT 'job_outbox'::regclass = 'public.job_outbox'::regclass")


async def test_an_application_whose_tables_would_hide_a_platforms_is_refused(empty_database_url: str) -> None:
    by_role = f"{empty_database_url}?options=-csearch_path%3D%22%24user%22,public"
    await migrate.migrate(empty_database_url)

    with pytest.raises(MigrationError, match=r"Name another one: schema="):
        await migrate.migrate(by_role, area="jobs", schema="trunkline")

    assert await migrate.migrate(by_role, area="jobs", schema="orders")


BEFORE_THE_FIRST_RELEASE = """
CREATE TABLE schema_migrations (name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL);
INSERT INTO schema_migrations VALUES ('0001_tenants', '', now());
"""


async def test_another_programs_history_is_not_ours(empty_database_url: str) -> None:
    async with connected(empty_database_url) as connection:
        await connection.execute("CREATE TABLE schema_migrations (version text PRIMARY KEY)")
    with pytest.raises(MigrationError, match="not Trunkline's: give Trunkline a database of its own"):
        await migrate.migrate(empty_database_url)


async def test_a_migration_that_was_changed_afterwards_is_refused(empty_database_url: str) -> None:
    await migrate.migrate(empty_database_url)
    async with connected(empty_database_url) as connection:
        await connection.execute("UPDATE schema_migrations SET checksum = 'other' WHERE number = 1")
    with pytest.raises(MigrationError, match="0001_baseline_tenants was changed"):
        await migrate.migrate(empty_database_url)


async def test_a_database_that_is_away_is_one_clear_line() -> None:
    with pytest.raises(StoreUnavailable, match="Check DATABASE_URL"):
        await migrate.migrate("postgresql://nobody@127.0.0.1:1/nothing")


async def test_the_indexes_that_guard_the_promise_name_the_live_states(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for index in ("attempts_one_live_per_lead", "attempts_one_live_per_pair"):
            definition = await connection.fetchval(
                "SELECT indexdef FROM pg_indexes WHERE indexname = $1", index
            )
            predicate = definition.split(" WHERE ")[1]
            named = {state.value for state in AttemptState if f"'{state.value}'" in predicate}
            assert named == {state.value for state in LIVE}, index
    finally:
        await connection.close()


async def test_an_application_of_mailboxes_has_all_that_mailboxes_ask_for(empty_database_url: str) -> None:
    """It makes their part of the schema alone."""
    await migrate.migrate(empty_database_url, area="mailboxes")
    asked = set(re.findall(r"\b_SQL\.(\w+)", inspect.getsource(mailboxes)))
    assert {"append", "claim", "claim_one", "complete"} <= asked
    connection = await asyncpg.connect(empty_database_url)
    try:
        for name in asked:
            await connection.prepare(query(f"mailbox/{name}"))
    finally:
        await connection.close()


async def test_a_library_has_a_schema_of_its_own_beside_a_platform(database_url: str) -> None:
    applied = await migrate.migrate(database_url, area="jobs", schema='App "1"')
    assert applied == ["0007_baseline_jobs"]
    assert await migrate.migrate(database_url, area="jobs", schema='App "1"') == []
    connection, schema = await asyncpg.connect(database_url), '"App ""1"""'
    try:
        async with connection.transaction():
            await connection.execute(f"SELECT {schema}.enqueue_job('ship')")
        assert await connection.fetchval("SELECT count(*) FROM job_outbox") == 0
        assert await connection.fetchval(f"SELECT count(*) FROM {schema}.job_outbox") == 1
        assert await connection.fetchval("SHOW search_path") == "public"
    finally:
        await connection.close()


async def test_mailboxes_of_before_there_was_a_schema_are_not_left_behind(empty_database_url: str) -> None:
    await migrate.migrate(empty_database_url, area="mailboxes")
    with pytest.raises(MigrationError, match='Open them with schema="public"'):
        await migrate.migrate(empty_database_url, area="mailboxes", schema="trunkline")
    assert await migrate.migrate(empty_database_url, area="mailboxes", schema="public") == []
