"""The doctor looks at the pods that there really are."""

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.cli.doctor import examine_router
from trunkline.settings import load_settings


async def test_doctor_warns_that_the_only_agent_serves_gold_merchants_only(
    redis_url: str, key_prefix: str
) -> None:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    world = RouterWorld(bus, RouterKeys(key_prefix))
    await world.begin()
    settings = load_settings({}, REDIS_URL=redis_url, ROUTER_KEY_PREFIX=key_prefix)

    await world.beat("agent-0")
    assert await world.allocate("call-1", "a-standard-merchant") == "none"
    finding = await examine_router(settings, redis_url)
    assert (finding.state, "in gold" in finding.detail) == ("warning", True)

    await world.beat("agent-1")
    assert await world.allocate("call-2", "a-standard-merchant") == "agent-1"
    assert (await examine_router(settings, redis_url)).state == "ok"
    await bus.close()
