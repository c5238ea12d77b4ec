"""What do functions in PL/pgSQL save? Each beside the same work without it, in turns, on one connection.

Of those that are one statement, the peers are the same statement in a function of language SQL, and as it is planned
anew at each call, which language SQL does before Postgres 18. Of those that are several, it is the statements, sent one
by one in a transaction. Milliseconds, the median of calls; nobody waits for the disk. Which functions are PL/pgSQL for
another reason (triggers; exceptions that are caught) is in docs/decisions/0053-schema-baseline.md.
"""

import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg

from bench.platform import SCALE
from bench.report import Report, finish
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate

Call = Callable[[], Awaitable[object]]

OURS, SQL, ANEW, STATEMENTS = "ours", "in SQL", "planned anew", "statements"

TURNS = max(1, int(400 * SCALE))
WARM = 20
AT_ONCE = 8
# Below this a function is not worth a second language.
SAVES_GOAL = 0.05

SET_UP = """
INSERT INTO resellers (id, name) VALUES ('r', 'r');
INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'm');
INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'p');
INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, scheduled_at, due_at)
SELECT gen_random_uuid(), 'r', 'm', n::text, sha256('x'), '+12125550' || lpad(n::text, 4, '0'), 'p', now(), now()
FROM generate_series(1, 5000) AS n;
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer)
SELECT gen_random_uuid(), id, 1, 'r', 'm', gen_random_uuid(), 1, 'c', 'a', phone, '+14155550100', 'd' FROM leads;
"""

APPEND = (
    "SELECT set_config('lock_timeout', '1000', true)",
    "SELECT id, appended, processing_status FROM mailboxes WHERE kind = 'k' AND key = $1 FOR NO KEY UPDATE",
    "INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload) VALUES ($1, $2, $3, 't', '{}')"
    " ON CONFLICT ON CONSTRAINT mailbox_events_once DO NOTHING",
    "UPDATE mailboxes SET appended = $2 WHERE kind = 'k' AND key = $1",
)


SINGLE = ("attempts_lock", "mailbox_complete", "enqueue_jobs")
CLAIMED_AGAIN = """
UPDATE mailboxes SET processing_status = 'processing', claimable_at = now(), fence = 1, processed = 0
WHERE kind = 'k' AND key IN ('c', 'd');
UPDATE mailbox_events SET processed_at = NULL WHERE seq = 1;
"""


class Bench:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", attempts: list[UUID]):
        self._connection = connection
        self._attempts = attempts
        self._place = 0

    def calls(self) -> dict[str, dict[str, Call]]:
        """By function: the one that is measured, and its peers."""
        made: dict[str, Callable[[str], Call]] = {
            "attempts_lock": self._lock,
            "mailbox_complete": self._complete,
            "enqueue_jobs": self._enqueue,
        }
        return {
            name: {OURS: made[name](name), SQL: made[name](f"{name}_sql"), ANEW: made[name](f"{name}_anew")}
            for name in SINGLE
        } | {"mailbox_append_one": {OURS: self._append_by_function, STATEMENTS: self._append_by_statements}}

    def _lock(self, name: str) -> Call:
        return lambda: self._connection.fetch(f"SELECT {name}($1)", self._next())

    def _complete(self, name: str) -> Call:
        return lambda: self._connection.fetch(
            f"SELECT * FROM {name}('k', $1, $2, $3, '1000', '1000')", ["c", "d"], [1, 1], [1, 1]
        )

    def _enqueue(self, name: str) -> Call:
        return lambda: self._connection.fetch(f"SELECT {name}($1)", json.dumps([_job()]))

    async def _append_by_function(self) -> None:
        await self._connection.fetch(
            "SELECT * FROM mailbox_append_one('k', 'a', $1, 't', '{}', 1000)", uuid4().hex
        )

    async def _append_by_statements(self) -> None:
        patience, lock, insert, update = APPEND
        async with self._connection.transaction():
            await self._connection.fetch(patience)
            row = await self._connection.fetchrow(lock, "b")
            assert row is not None, "made before"
            await self._connection.fetch(insert, row["id"], row["appended"] + 1, uuid4().hex)
            await self._connection.fetch(update, "b", row["appended"] + 1)

    def _next(self) -> list[UUID]:
        self._place = (self._place + AT_ONCE) % (len(self._attempts) - AT_ONCE)
        return self._attempts[self._place : self._place + AT_ONCE]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


async def measure(folder: Path) -> None:
    async with Engines(folder, durable=False, redis_url="redis://unused") as engines:
        await migrate(engines.database_url)
        connection = await asyncpg.connect(engines.database_url)
        await connection.execute("SET synchronous_commit = off")
        await connection.execute(SET_UP)
        for name in SINGLE:
            definition = await connection.fetchval(
                "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1", name
            )
            await connection.execute(in_sql(name, definition))
            await connection.execute(definition.replace(f".{name}(", f".{name}_anew("))
            await connection.execute(f"ALTER FUNCTION {name}_anew SET plan_cache_mode = force_custom_plan")
        for key in "abcd":
            await connection.fetch(f"SELECT mailbox_append_one('k', '{key}', 'first', 't', '{{}}', 1000)")
        attempts = [row["id"] for row in await connection.fetch("SELECT id FROM attempts ORDER BY id")]
        took = {}
        for name, calls in Bench(connection, attempts).calls().items():
            took[name] = await in_turns(
                connection, calls, CLAIMED_AGAIN if name == "mailbox_complete" else ""
            )
        await connection.close()
    saved = min(1 - each[OURS] / max(each.values()) for each in took.values())
    finish(
        Report(
            "functions",
            {f"{name} ms": round(each[OURS], 3) for name, each in took.items()},
            {
                peer: {f"{name} ms": round(each[peer], 3) for name, each in took.items() if peer in each}
                for peer in (SQL, ANEW, STATEMENTS)
            },
            round(saved, 3),
            f"each saves at least {SAVES_GOAL:.0%}, on the oldest Postgres too",
            saved >= SAVES_GOAL,
        )
    )


async def in_turns(
    connection: "asyncpg.Connection[asyncpg.Record]", calls: Mapping[str, Call], before: str
) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS + WARM):
        for name, call in calls.items():
            if before:
                await connection.execute(before)
            began = time.perf_counter()
            await call()
            if turn >= WARM:
                taken[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(times) for name, times in taken.items()}


def in_sql(name: str, definition: str) -> str:
    """The same function in language SQL."""
    for pattern, by in (
        (rf"\.{name}\(", f".{name}_sql("),
        (r"LANGUAGE plpgsql", "LANGUAGE sql"),
        (r"#variable_conflict use_column\n", ""),
        (r"DECLARE\n.*?BEGIN\n|BEGIN\n", ""),
        (r"\bRETURN QUERY\b", ""),
        (r"\bPERFORM\b", "SELECT"),
        (
            r"SELECT json_agg\(row_to_json\(p\)\) INTO enqueued",
            "SELECT coalesce(json_agg(row_to_json(p))::text, '[]')",
        ),
        (r"    RETURN coalesce\(enqueued, '\[\]'\);\n", ""),
        (r"\nEND (?=\$)", "\n"),
    ):
        definition = re.sub(pattern, by, definition, flags=re.DOTALL)
    return definition


def _job() -> dict[str, object]:
    return {
        "id": str(uuid4()),
        "job_type": "ship",
        "priority": 50,
        "max_attempts": 4,
        "unique_key": uuid4().hex,
        "payload": "{}",
    }


if __name__ == "__main__":
    main()
