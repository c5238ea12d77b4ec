"""Valkey's idea of Postgres' clock: it may lag by a little, and is never ahead."""

from trunkline.bus import connection
from trunkline.bus.keys import Keys
from trunkline.clock import SystemClock
from trunkline.dispatch.grants import ClockOffset
from trunkline.store import database as store_database


async def test_the_offset_of_a_clock_to_itself_is_never_ahead(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    database, bus = (
        await store_database.connect(database_url),
        connection.connect(redis_url, Keys(key_prefix)),
    )
    try:
        offset, found = ClockOffset(database, bus, SystemClock()), []
        for _ in range(30):
            offset.invalidate()
            found.append(await offset.ms())
        assert max(found) <= 0
        assert offset.last_ms == found[-1]
    finally:
        await bus.close()
        await database.close()
