"""A Postgres whose clock can be set, for one database: its clock functions are found before the server's own."""

from typing import Any

import asyncpg

SETTABLE = """
CREATE SCHEMA settable_clock;
CREATE TABLE settable_clock.jump (by interval NOT NULL);
INSERT INTO settable_clock.jump VALUES ('0');
CREATE FUNCTION settable_clock.now() RETURNS timestamptz STABLE LANGUAGE sql AS
    'SELECT pg_catalog.now() + by FROM settable_clock.jump';
CREATE FUNCTION settable_clock.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS
    'SELECT pg_catalog.statement_timestamp() + by FROM settable_clock.jump';
CREATE FUNCTION settable_clock.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
    'SELECT pg_catalog.clock_timestamp() + by FROM settable_clock.jump';
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT d.adrelid::regclass AS relation, a.attname FROM pg_attrdef AS d
        JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE pg_get_expr(d.adbin, d.adrelid) = 'now()'
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT settable_clock.now()',
                       found.relation, found.attname);
    END LOOP;
    -- Functions that look for their tables in the schema in which they were made.
    FOR found IN
        SELECT p.oid::regprocedure AS relation, p.pronamespace::regnamespace AS home FROM pg_proc AS p
        WHERE EXISTS (SELECT FROM unnest(p.proconfig) AS c (setting) WHERE c.setting LIKE 'search_path=%')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = settable_clock, pg_catalog, %s, public',
                       found.relation, found.home);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I SET search_path = settable_clock, pg_catalog, public', current_database());
END $$;
"""


async def make_settable(database_url: str) -> None:
    """Call it after the migrations and before anybody else connects."""
    await _execute(database_url, SETTABLE)


async def jump(database_url: str, by_s: float) -> None:
    """Set the clock forward, or back, for every session at once."""
    await _execute(database_url, "UPDATE settable_clock.jump SET by = by + make_interval(secs => $1)", by_s)


async def _execute(database_url: str, statement: str, *values: Any) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()
