"""The alarm that very many pods are missing at once."""

from trunkline.control.raising import raise_alarm
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)


async def raise_mass_unready(database: Database, vanished: int, total: int) -> None:
    """Postgres may be away for the same reason; the gauge says it too."""
    try:
        await raise_alarm(database, "pods_vanished", detail={"vanished": vanished, "pods": total})
    except UNAVAILABLE as error:
        log.error("router.alarm_unwritten", error=str(error))
