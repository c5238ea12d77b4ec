"""A whole world in the test's own process: the platform, a simulated carrier on the wire, simulated pods, a client.

async with open_world(database_url, redis_url, domain) as world:
    lead = await world.client.create_lead(merchant_id="m", phone="+15005551000")
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from tests.support.waiting import eventually
from trunkline.agent.simulated import SimulatedPods
from trunkline.app import Platform
from trunkline.bus import channels
from trunkline.client import LeadWithAttempts, TrunklineClient
from trunkline.settings import Settings, load_settings
from trunkline.telephony.simulator import Simulator, SimulatorConfig

ADMIN_KEY = "an-admin-key-for-tests-only"
# Every pod is for one call at a time, and for everybody.
ALL_STANDARD = '{"standard": {"type": "exclusive", "target": 1}}'
SECRET_KEY = "a-secret-key-for-tests-only-0123456789"
# Simulated calls of 44 s last about a fifth of a second, counted from when they have an agent.
TIME_SCALE = 0.005
CARRIER = SimulatorConfig(time_scale=TIME_SCALE)


@dataclass(frozen=True, slots=True)
class World:
    platform: Platform
    carrier: Simulator
    pods: SimulatedPods
    client: TrunklineClient

    async def finished(self, lead_id: UUID | str, timeout_s: float = 20) -> LeadWithAttempts:
        """The lead, once it has ended."""

        async def is_finished() -> LeadWithAttempts | None:
            lead = await self.client.get_lead(lead_id)
            return lead if lead.status == "FINISHED" else None

        return await eventually(is_finished, timeout_s=timeout_s, what=f"lead {lead_id} finished")

    async def channels_are_free(self) -> None:
        """Wait until Valkey knows of no holder."""

        async def none_held() -> bool:
            return not await channels.holders(self.platform.bus)

        await eventually(none_held, what="every channel free")


def world_settings(
    database_url: str, redis_url: str, domain: str, carrier: Simulator, **more: object
) -> Settings:
    account = carrier.config.accounts[0]
    given: dict[str, object] = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "TRUNKLINE_DOMAIN": domain,
        "ROUTER_KEY_PREFIX": f"{domain}-voice",
        "TIER_CONFIG": ALL_STANDARD,
        "HTTP_PORT": 0,
        "METRICS_PORT": 0,
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "TWILIO_BASE_URL": carrier.base_url,
        "TWILIO_ACCOUNT_SID": account.sid,
        "TWILIO_AUTH_TOKEN": account.auth_token,
        "TWILIO_CALLS_PER_SECOND": account.calls_per_s,
        "SEND_LATE_MAX": "30s",  # a busy machine is no reason to send nothing
        "CALL_TIME_LIMIT": "24h",  # a simulated day is seven minutes
    }
    return load_settings({}, **(given | more))


@asynccontextmanager
async def open_world(
    database_url: str, redis_url: str, domain: str, *, pods: int = 4, **more: object
) -> AsyncIterator[World]:
    """With a reseller `r`, its merchant `m` and its pool `p`, which has no number yet."""
    async with Simulator(CARRIER) as carrier:
        settings = world_settings(database_url, redis_url, domain, carrier, **more)
        async with (
            Platform.open(settings) as platform,
            SimulatedPods(pods, platform.base_url, ADMIN_KEY) as simulated,
            TrunklineClient(platform.base_url, ADMIN_KEY) as client,
        ):
            await client.create_reseller("r", "Reseller")
            await client.create_pool("p", "Pool", reseller_id="r")
            await client.create_merchant(
                "m", "Merchant", reseller_id="r", default_region="US", default_pool="p"
            )
            yield World(platform, carrier, simulated, client)
