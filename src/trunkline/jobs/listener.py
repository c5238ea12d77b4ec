"""Receives wakeups: LISTEN on a connection of its own, past any pooler, reconnected whenever it breaks.

Each new connection begins with a poll, for the wakeups that were lost meanwhile. A half-open connection looks like an
idle one, so the listener sends a query on it every 10 s.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from trunkline.jobs import wakeups
from trunkline.loops.base import Loop
from trunkline.store.database import UNAVAILABLE, describe
from trunkline.store.driver import SingleConnection, connect_single
from trunkline.store.sql import Area
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

_SQL = Area("jobs")
CONNECT_TIMEOUT_S = 5.0
ALIVE_EVERY_S = 10.0
ALIVE_TIMEOUT_S = 5.0


class Listener(Loop):
    name = "job_listener"

    def __init__(
        self,
        direct_url: str,
        *,
        on_wakeup: Callable[[wakeups.Places | None], None],
        on_cancel: Callable[[], None],
        own_pid: Callable[[], int | None] = lambda: None,
    ):
        super().__init__(interval_s=0.05)
        self._url = direct_url
        self._on_wakeup = on_wakeup
        self._on_cancel = on_cancel
        self._own_pid = own_pid
        self._broken = asyncio.Event()
        self.listening = asyncio.Event()

    async def run_once(self) -> int:
        """One connection, until it breaks."""
        self._broken.clear()
        connection = await connect_single(
            self._url, application_name="trunkline listener", timeout_s=CONNECT_TIMEOUT_S
        )
        try:
            connection.add_termination_listener(self._ended)
            await connection.add_listener(wakeups.CHANNEL, self._on_notification)
            self.listening.set()
            self._on_wakeup(None)
            await self._listen(connection)
        finally:
            self.listening.clear()
            connection.terminate()
        return 0

    def stop(self) -> None:
        super().stop()
        self._broken.set()

    async def _listen(self, connection: SingleConnection) -> None:
        while not self._broken.is_set():
            try:
                async with asyncio.timeout(ALIVE_EVERY_S):
                    await self._broken.wait()
            except TimeoutError:
                await self._check(connection)
        if not self.stopping:
            log.warning("jobs.listener_lost", channel=wakeups.CHANNEL)

    async def _check(self, connection: SingleConnection) -> None:
        try:
            await connection.fetchval(_SQL.now, timeout=ALIVE_TIMEOUT_S)
        except UNAVAILABLE as error:
            log.warning("jobs.listener_deaf", error=describe(error))
            self._broken.set()

    def _ended(self, _connection: object) -> None:
        self._broken.set()

    def _on_notification(self, _connection: object, pid: int, channel: str, payload: Any) -> None:
        metrics.JOB_NOTIFICATIONS_RECEIVED.labels(channel).inc()
        if payload == wakeups.CANCELLED:
            self._on_cancel()
            return
        places = wakeups.decode(payload)
        if places is None or pid != self._own_pid():
            self._on_wakeup(places)
