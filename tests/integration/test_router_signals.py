"""The router's alarm of vanished pods, and the gauges an autoscaler follows."""

from tests.support.router.world import RouterWorld
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys, RouterKeys
from trunkline.bus.router import WaitRule
from trunkline.router.alarms import PodAlarms
from trunkline.router.config import RouterConfig
from trunkline.router.pod_gauges import PodGauges
from trunkline.router.pods import Pods
from trunkline.router.registry import PodRegistry
from trunkline.router.streams import StreamKeys
from trunkline.store import alarms
from trunkline.store.database import connect as connect_database
from trunkline.telemetry import metrics


async def test_a_mass_vanishing_raises_pods_vanished_once(database_url: str) -> None:
    database = await connect_database(database_url, pool_size=1)
    for vanished in (4, 5):
        await PodAlarms(database).vanished(vanished, 6)
    async with database.connection() as conn:
        found = [alarm for alarm in await alarms.list_open(conn) if alarm.name == "pods_vanished"]
    assert len(found) == 1
    await database.close()


async def test_without_postgres_reporting_a_mass_vanishing_does_not_fail(database_url: str) -> None:
    database = await connect_database(database_url, pool_size=1)
    await database.close()
    await PodAlarms(database).vanished(4, 6)


async def test_free_capacity_and_the_wait_queue_are_gauges(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    database = await connect_database(database_url, pool_size=1)
    bus, keys = connect(redis_url, Keys(prefix=key_prefix)), RouterKeys(key_prefix)
    world = RouterWorld(bus, keys)
    await world.begin(
        '{"standard": {"target": 1}, "basic": {"type": "shared", "target": 1, "max_concurrent": 3}}'
    )
    await world.pods(2)
    await world.allocate("call-1")
    await world.allocate("call-2")
    config = RouterConfig()
    registry = PodRegistry(database, bus, keys, config)
    gauges = PodGauges(Pods(bus, keys, StreamKeys.from_secrets(["secret"]), config, database, registry))

    await gauges.run_once()
    text = metrics.render()[0].decode()
    assert 'trunkline_router_free_capacity{tier="standard"} 0.0' in text
    assert 'trunkline_router_free_capacity{tier="basic"} 2.0' in text

    for number in range(3, 7):
        await world.allocate(f"call-{number}", wait=WaitRule(most_ms=60_000))
    await gauges.run_once()
    text = metrics.render()[0].decode()
    assert 'trunkline_router_free_capacity{tier="basic"} 0.0' in text
    assert 'trunkline_router_waiting{tier="standard"} 2.0' in text
    assert "trunkline_router_calls 4.0" in text
    await bus.close()
    await database.close()
