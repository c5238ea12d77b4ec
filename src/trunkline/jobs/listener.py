"""Hears pokes: LISTEN on a connection of its own, past any pooler, made anew whenever it breaks.

Each new connection begins with a look at everything, because nobody knows what was said while we were deaf. A
half-open connection is silent like a quiet evening, so we speak on it now and then.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from trunkline.jobs import pokes
from trunkline.loops.base import Loop
from trunkline.store.database import UNAVAILABLE, describe
from trunkline.store.sql import query
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

_ALIVE = query("jobs/now")
CONNECT_TIMEOUT_S = 5.0
ALIVE_EVERY_S = 10.0
ALIVE_TIMEOUT_S = 5.0


class Listener(Loop):
    name = "job_listener"

    def __init__(
        self,
        direct_url: str,
        *,
        on_poke: Callable[[pokes.Places | None], None],
        on_cancel: Callable[[], None],
        own_pid: Callable[[], int | None] = lambda: None,
    ):
        super().__init__(interval_s=0.05)
        self._url = direct_url
        self._on_poke = on_poke
        self._on_cancel = on_cancel
        self._own_pid = own_pid
        self._broken = asyncio.Event()
        self.listening = asyncio.Event()

    async def run_once(self) -> int:
        """One life of the connection."""
        self._broken.clear()
        connection = await asyncpg.connect(
            self._url, timeout=CONNECT_TIMEOUT_S, server_settings={"application_name": "trunkline listener"}
        )
        try:
            connection.add_termination_listener(self._ended)
            await connection.add_listener(pokes.CHANNEL, self._heard)
            self.listening.set()
            self._on_poke(None)
            await self._keep(connection)
        finally:
            self.listening.clear()
            connection.terminate()
        return 0

    def stop(self) -> None:
        super().stop()
        self._broken.set()

    async def _keep(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        while not self._broken.is_set():
            try:
                async with asyncio.timeout(ALIVE_EVERY_S):
                    await self._broken.wait()
            except TimeoutError:
                await self._check(connection)
        if not self.stopping:
            log.warning("job_listener_lost", channel=pokes.CHANNEL)

    async def _check(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        try:
            await connection.fetchval(_ALIVE, timeout=ALIVE_TIMEOUT_S)
        except UNAVAILABLE as error:
            log.warning("job_listener_deaf", error=describe(error))
            self._broken.set()

    def _ended(self, _connection: object) -> None:
        self._broken.set()

    def _heard(self, _connection: object, pid: int, channel: str, payload: Any) -> None:
        metrics.JOB_NOTIFICATIONS_RECEIVED.labels(channel).inc()
        if payload == pokes.CANCELLED:
            self._on_cancel()
            return
        places = pokes.decode(payload)
        if places is None or pid != self._own_pid():
            self._on_poke(places)
