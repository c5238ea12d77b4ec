"""Progress reports of running jobs."""

from collections.abc import Sequence
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("jobs")


async def write(conn: Connection, reports: Sequence[tuple[UUID, int, float, str | None]]) -> None:
    """Id, fence, fraction and note of each. A report under a fence that is no longer valid is dropped."""
    await conn.execute(
        _SQL.write_progress,
        [r[0] for r in reports],
        [r[1] for r in reports],
        [r[2] for r in reports],
        [r[3] for r in reports],
    )
