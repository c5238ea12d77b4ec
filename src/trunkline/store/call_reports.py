"""The context that agents get for their calls, and their reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from trunkline.model import CallReport
from trunkline.store.database import Connection
from trunkline.store.rows import pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("call_reports")


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call as its agent needs it."""

    attempt_id: UUID
    call_id: str | None
    direction: str
    carrier: str
    to_phone: str = field(repr=False)
    from_phone: str = field(repr=False)
    attempt_no: int
    reseller_id: str
    merchant_id: str
    campaign_id: UUID | None
    lead_id: UUID | None
    request_id: str | None
    payload: Mapping[str, Any] | None = field(repr=False)
    max_attempts: int | None
    timezone: str | None
    # How often the call was assigned to another agent, and the last state that any of them stored.
    turn: int = 0
    state: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)

    @property
    def person_phone(self) -> str:
        """The phone of the person who talks with the agent."""
        return self.from_phone if self.direction == "inbound" else self.to_phone


async def context(conn: Connection, attempt_id: UUID) -> CallContext | None:
    return pick_or_none(CallContext, await conn.fetchrow(_SQL.context, attempt_id))


async def insert(tx: Connection, attempt_id: UUID, report: CallReport, turn: int = 0) -> bool:
    """Whether it is the first report of this agent on its call."""
    inserted = await tx.fetchval(
        _SQL.insert,
        attempt_id,
        report.disposition,
        report.opt_out,
        report.callback_at,
        report.transcript_ref,
        report.recording_ref,
        dict(report.data),
        turn,
    )
    return inserted is not None


async def get(conn: Connection, attempt_id: UUID) -> CallReport | None:
    return pick_or_none(CallReport, await conn.fetchrow(_SQL.get, attempt_id))


async def add_recordings(tx: Connection, recordings: Sequence[tuple[UUID, str]]) -> None:
    """The addresses of recordings, as carriers report them, for existing attempts."""
    if recordings:
        ids, refs = zip(*recordings, strict=True)
        await tx.execute(_SQL.add_recordings, ids, refs)


async def save_state(conn: Connection, attempt_id: UUID, turn: int, state: Mapping[str, Any]) -> bool:
    """False if there is no such call, or another agent has it by now."""
    return await conn.fetchval(_SQL.save_state, attempt_id, turn, dict(state)) is not None


async def join(conn: Connection, attempt_id: UUID) -> None:
    """The call's agent has taken it."""
    await conn.execute(_SQL.join, attempt_id)
