"""Alarms of the router: very many pods vanished, a pod does not end its call, two clusters use one pod name."""

from collections.abc import Mapping, Sequence
from typing import Any

from trunkline.control.raising import raise_alarm
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class PodAlarms:
    """Postgres may be away for the same reason; the log and the metrics show the fault too."""

    def __init__(self, database: Database):
        self._database = database

    async def vanished(self, vanished: int, total: int) -> None:
        await self._raise("pods_vanished", "", {"vanished": vanished, "pods": total})

    async def hangs(self, pod: str, calls: Sequence[str]) -> None:
        await self._raise("pod_hangs", pod, {"calls": list(calls)})

    async def two_clusters(self, pod: str) -> None:
        await self._raise("pod_name_twice", pod, {})

    async def _raise(self, name: str, subject: str, detail: Mapping[str, Any]) -> None:
        try:
            await raise_alarm(self._database, name, subject, detail=detail)
        except UNAVAILABLE as error:
            log.error("router.alarm_unwritten", alarm=name, error=str(error))
