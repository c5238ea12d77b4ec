"""Explains why a lead is not called now."""

from uuid import UUID

from trunkline.api.auth import ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import require_found
from trunkline.api.resources import Routes
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.why import why
from trunkline.schema.leads import Why

router = Routes("/leads", "leads")


@router.get("/{lead_id}/why", name="why", summary="Explain why a lead is not called")
async def why_lead(lead_id: UUID, who: ReadKey, api: Deps) -> Why:
    """What keeps it from being called now, or what refused it last. Every gate is listed with its present state: stops,
    the rollout, dialers, due time, numbers, lists, window, limits, pace, agents, channels, Valkey's projection.

    A time may be rounded if the exact one would reveal another tenant's calls.
    """
    async with api.store.reading() as connection:
        return require_found(
            await why(connection, Policies(), who.tenant, lead_id, api.deps.dispatch), "lead"
        )
