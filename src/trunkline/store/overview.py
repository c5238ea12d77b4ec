"""Figures for people who watch: the progress of a run, the use of channels."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("overview")


@dataclass(frozen=True, slots=True)
class RunProgress:
    backlog: int
    processing: int
    finished: int
    placed: int
    outcomes: dict[str, int]

    @property
    def total(self) -> int:
        return self.backlog + self.processing + self.finished


@dataclass(frozen=True, slots=True)
class ChannelUse:
    e164: str
    max_channels: int
    held: int


async def run_progress(conn: Connection, merchant_ids: Sequence[str], prefix: str) -> RunProgress:
    row = await conn.fetchrow(_SQL.run_progress, merchant_ids, prefix)
    assert row is not None, "an aggregate has one row"
    return RunProgress(
        row["backlog"], row["processing"], row["finished"], row["placed"], dict(row["outcomes"] or {})
    )


async def run_due(conn: Connection, merchant_ids: Sequence[str], prefix: str) -> dict[UUID, datetime]:
    return {row["id"]: row["lead_due_at"] for row in await conn.fetch(_SQL.run_due, merchant_ids, prefix)}


async def channels(conn: Connection) -> list[ChannelUse]:
    return [ChannelUse(**row) for row in await conn.fetch(_SQL.channels)]
