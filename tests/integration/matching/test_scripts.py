"""How scripts are run, and which projection they accept. On one server and on a real cluster, as all in this folder."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.bus.matching import entry, match
from trunkline.bus import connection, epoch, schedule, server
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.server import Server
from trunkline.errors import BusUnavailable, ProjectionLost
from trunkline.model import Flow


async def test_the_probe_script_returns_the_servers_time(bus: Bus) -> None:
    assert abs(await bus.server_time_s() - datetime.now(UTC).timestamp()) < 60


async def test_a_script_flushed_from_the_server_is_loaded_again(bus: Bus) -> None:
    await bus.server_time_s()
    await bus.client.script_flush()
    assert await bus.server_time_s() > 0


async def test_an_unreachable_server_raises_bus_unavailable(key_prefix: str) -> None:
    bus = connection.connect("redis://127.0.0.1:1", Keys(prefix=key_prefix))
    with pytest.raises(BusUnavailable):
        await bus.server_time_s()
    await bus.close()


async def test_five_hundred_concurrent_scripts_all_return(bus: Bus) -> None:
    times = await asyncio.gather(*(bus.server_time_s() for _ in range(500)))
    assert len(times) == 500


async def test_a_failing_script_fails_no_other(bus: Bus) -> None:
    await bus.client.set(f"{bus.projection}leads", "not a hash")
    ok, broken = await asyncio.gather(
        bus.server_time_s(), schedule.add(bus, [entry()]), return_exceptions=True
    )
    assert isinstance(ok, float)
    assert isinstance(broken, BusUnavailable)


async def test_add_without_a_clock_offset_uses_that_of_the_last_match(bus: Bus) -> None:
    in_ten_minutes = entry(due_at=datetime.now(UTC) + timedelta(minutes=10))
    await schedule.match(bus, [uuid4()], clock_offset_ms=-600_000)
    assert await schedule.add(bus, [in_ten_minutes]) == 0, (
        "Postgres is ten minutes behind: it is due in twenty"
    )
    await schedule.match(bus, [uuid4()], clock_offset_ms=600_000)
    assert await schedule.add(bus, [in_ten_minutes]) == 1


async def test_a_script_refuses_a_projection_of_another_run_id(bus: Bus) -> None:
    await schedule.add(bus, [entry()])
    await bus.client.hset(bus.keys.epoch, "run_id", "another")
    with pytest.raises(ProjectionLost):
        await match(bus)
    assert await epoch.read(bus) == 0


async def test_after_projection_lost_the_run_id_is_read_again(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may keep our connection open while another process takes the server's place."""
    await match(bus)
    await bus.scripts.close()
    if isinstance(bus.scripts, Server):  # in a cluster scripts read the run id themselves
        with monkeypatch.context() as earlier:
            earlier.setattr(server, "_RUN_ID", re.compile(r"^(run_id):", re.MULTILINE))
            with pytest.raises(ProjectionLost):
                await match(bus)
    await epoch.ensure(bus)
    await match(bus)


async def test_of_two_concurrent_rebuilds_the_newer_epoch_wins(bus: Bus) -> None:
    await bus.client.delete(bus.keys.epoch)
    older = await epoch.begin(bus, 7)
    assert await epoch.begin(bus, 8) is None, "the older one is still at it"
    await bus.client.hset(bus.keys.epoch, "seen_at", 0)
    newer = await epoch.begin(bus, 8)
    assert older is not None
    assert newer is not None
    with pytest.raises(ProjectionLost):
        await schedule.add(older, [entry()])
    assert await schedule.add(newer, [entry()]) == 1
    assert await epoch.publish(bus, 7) is False
    assert await epoch.publish(bus, 8) is True
    assert await epoch.begin(bus, 8) is None


async def test_keys_of_older_epochs_are_swept(bus: Bus) -> None:
    await schedule.add(bus, [entry()])
    old = bus.projection
    building = await epoch.begin(bus, 2)
    assert building is not None
    await schedule.add(building, [entry()])
    await epoch.publish(bus, 2)
    assert await epoch.sweep(bus) > 0
    assert [key async for key in bus.client.scan_iter(match=f"{old}*")] == []
    assert await schedule.sizes(bus, [Flow("p", "r", "m")]) == [1]
