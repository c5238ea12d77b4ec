"""`why` of a whole platform: its processes know more than Postgres does, and say it."""

from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider

from tests.support.waiting import eventually
from tests.support.world import World, open_world
from trunkline.schema.leads import Why

PROVIDER = f"{__name__}:nobody"


def nobody() -> InMemoryProvider:
    """A flag service that leaves everybody to another system."""
    return InMemoryProvider({"event_dispatch": InMemoryFlag("off", {"on": True, "off": False})})


async def becomes(world: World, lead_id: object, refused_by: str) -> Why:
    """What `why` says once this is what refuses the lead."""

    async def asked() -> Why | None:
        found = await world.client.why(str(lead_id))
        return found if found["refused_by"] == refused_by else None

    return await eventually(asked, what=f"why says {refused_by}")


async def test_why_names_the_flag_service_that_leaves_a_lead_out(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_world(database_url, redis_url, key_prefix, FEATURE_FLAG_PROVIDER=PROVIDER) as world:
        lead = await world.client.create_lead(merchant_id="m", phone="+12125550100")
        found = await becomes(world, lead.id, "event_dispatch")
        assert "says the flag service" in found["answer"]


async def test_why_names_a_pool_without_numbers_and_then_missing_agents(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_world(database_url, redis_url, key_prefix, pods=0) as world:
        lead = await world.client.create_lead(merchant_id="m", phone="+12125550100")
        await becomes(world, lead.id, "number")
        await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=2)
        found = await becomes(world, lead.id, "agents")
        assert "no agent is registered" in found["answer"]
