"""Explains why a lead is not called now."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import AliasChoices, Field

from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import READ_ERRORS, Out, require_found
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.why import Why, why
from trunkline.schema.leads import Decision

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])


class GateCheckOut(Out):
    gate: str
    open: bool = Field(validation_alias=AliasChoices("is_open", "open"))
    detail: str | None
    until: datetime | None = Field(description="When the gate opens, if that is known.")
    set_by: str | None = Field(
        description="What closed the gate: a person or key, a layer of the policy, a setting."
    )


class WhyOut(Out):
    lead_id: UUID
    status: str
    answer: str = Field(
        description="A sentence for people: which gate refuses the lead, who set that, and when it ends."
    )
    refused_by: str | None = Field(
        description="The gate that refuses the lead; null: no gate does, or the lead does not wait."
    )
    next_at: datetime | None = Field(description="When the lead may be called, if that is known.")
    checks: list[GateCheckOut] = Field(
        description="Every gate that the lead has to pass, with its present state."
    )
    decisions: list[Decision] = Field(
        validation_alias=AliasChoices("history", "decisions"),
        description="Every refusal of the lead so far, by reason.",
    )


@router.get(
    "/{lead_id}/why",
    name="why",
    response_model=WhyOut,
    responses=READ_ERRORS,
    summary="Explain why a lead is not called",
)
async def why_lead(lead_id: UUID, who: ReadKey, api: Deps) -> Why:
    """What keeps it from being called now, or what refused it last. Every gate is listed with its present state: stops,
    the rollout, dialers, due time, numbers, lists, window, limits, pace, agents, channels, Valkey's projection.

    A time may be rounded if the exact one would reveal another tenant's calls.
    """
    async with api.store.reading() as connection:
        return require_found(
            await why(connection, Policies(), who.tenant, lead_id, api.deps.dispatch), "lead"
        )
