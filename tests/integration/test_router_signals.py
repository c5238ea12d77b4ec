"""The router's alarm of vanished pods, and the gauges an autoscaler follows."""

from functools import partial

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import WaitRule
from trunkline.router.pods import Alarm, PodGauges, raise_if_reachable
from trunkline.store import alarms
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database
from trunkline.telemetry import metrics


async def vanished(database: Database, count: int) -> None:
    alarm: Alarm = partial(raise_if_reachable, database)
    await alarm("pods_vanished", "", {"vanished": count, "pods": 6})


async def test_a_mass_vanishing_raises_pods_vanished_once(database_url: str) -> None:
    database = await connect_database(database_url, pool_size=1)
    for count in (4, 5):
        await vanished(database, count)
    async with database.connection() as conn:
        found = [alarm for alarm in await alarms.list_open(conn) if alarm.name == "pods_vanished"]
    assert len(found) == 1
    await database.close()


async def test_without_postgres_reporting_a_mass_vanishing_does_not_fail(database_url: str) -> None:
    database = await connect_database(database_url, pool_size=1)
    await database.close()
    await vanished(database, 4)


async def test_free_capacity_and_the_wait_queue_are_gauges(redis_url: str, key_prefix: str) -> None:
    bus, keys = connect(redis_url, Keys(prefix=key_prefix)), RouterKeys(key_prefix)
    world = RouterWorld(bus, keys)
    await world.begin(
        '{"standard": {"target": 1}, "basic": {"type": "shared", "target": 1, "max_concurrent": 3}}'
    )
    await world.pods(2)
    await world.allocate("call-1")
    await world.allocate("call-2")
    gauges = PodGauges(world.router_bus)

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
