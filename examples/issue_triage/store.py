"""The issues as this application knows them."""

from pathlib import Path

from examples.issue_triage.issues import Issue, from_json, to_json
from trunkline.store.database import Connection, Database

SCHEMA = (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")

_LOAD = "SELECT title, body, author, state, labels, discussions FROM issues WHERE key = $1"
_SAVE = """
INSERT INTO issues (key, title, body, author, state, labels, discussions) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (key) DO UPDATE
SET title = $2, body = $3, author = $4, state = $5, labels = $6, discussions = $7, updated_at = now()
"""
_ADD_REPLY = "INSERT INTO replies (key, upto, body) VALUES ($1, $2, $3)"
_MARK_POSTED = "UPDATE replies SET posted_at = now() WHERE key = $1 AND upto = $2"


async def prepare(database: Database) -> None:
    async with database.connection() as conn:
        await conn.execute(SCHEMA)


async def load(database: Database, key: str) -> Issue:
    async with database.connection() as conn:
        row = await conn.fetchrow(_LOAD, key)
    if row is None:
        return Issue()
    title, body, author, state, labels, discussions = row
    return Issue(title, body, author, state, tuple(labels), from_json(discussions))


async def save(tx: Connection, key: str, issue: Issue) -> None:
    comments = to_json(issue.discussions.values())
    await tx.execute(
        _SAVE, key, issue.title, issue.body, issue.author, issue.state, list(issue.labels), comments
    )


async def add_reply(tx: Connection, key: str, upto: int, body: str) -> None:
    await tx.execute(_ADD_REPLY, key, upto, body)


async def mark_posted(tx: Connection, key: str, upto: int) -> None:
    await tx.execute(_MARK_POSTED, key, upto)
