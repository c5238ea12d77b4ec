"""How much a transaction has read, by Postgres' own count."""

from trunkline.store.database import Connection


async def rows_read(tx: Connection, table: str) -> int:
    """By this transaction: rows of the table, and entries of its indexes."""
    read: int = await tx.fetchval(
        "SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::int FROM pg_class AS c"
        " LEFT JOIN pg_index AS i ON i.indexrelid = c.oid WHERE $1::regclass IN (c.oid, i.indrelid)",
        table,
    )
    return read
