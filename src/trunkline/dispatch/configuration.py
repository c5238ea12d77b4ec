"""What the match obeys, read from Postgres: numbers, weights, limits, stops."""

from trunkline.bus.channels import Configuration
from trunkline.store import schedule
from trunkline.store.database import Connection


async def read(conn: Connection) -> Configuration:
    numbers = await schedule.numbers(conn)
    caps = await schedule.merchant_caps(conn)
    return Configuration(
        numbers=tuple(limit for limit, _ in numbers),
        weights=await schedule.weights(conn),
        caps={f"m/{merchant}": cap for merchant, cap in caps.items()},
    )
