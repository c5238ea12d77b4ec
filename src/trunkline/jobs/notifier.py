"""Wakes workers after a commit: those of this process directly, those of others by NOTIFY.

NOTIFY takes a database-wide lock at commit, so it is never part of a caller's transaction. The notifier sends it on a
connection of its own, and wakeups that come in during a send go with the next.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from trunkline.jobs import wakeups
from trunkline.store.database import CANNOT_CONNECT, describe
from trunkline.store.driver import SingleConnection, connect_single
from trunkline.store.jobs import Inserted, Lane
from trunkline.store.sql import Area
from trunkline.telemetry import get_logger

log = get_logger(__name__)

_SQL = Area("jobs")
# The minimum time between two sends: at a higher rate workers are busy anyway, and claim again by themselves.
GAP_S = 0.002
TIMEOUT_S = 2.0
# A worker that gets no wakeup polls within a second, so wakeups are dropped while the connection is down.
RECONNECT_AFTER_S = 1.0

Listen = Callable[[wakeups.Places | None], None]


class JobNotifier:
    """One per process. Without a URL it wakes this process alone."""

    def __init__(self, direct_url: str | None):
        self._url = direct_url
        self._connection: SingleConnection | None = None
        self._places: wakeups.Places = {}
        self._messages: set[str] = set()
        self._flusher: asyncio.Task[None] | None = None
        self._listeners: list[Listen] = []
        self._silent_until_s = 0.0

    @property
    def pid(self) -> int | None:
        """The server process that sends this notifier's wakeups: the listener of this process ignores them."""
        return self._connection.get_server_pid() if self._connection is not None else None

    async def warm(self) -> None:
        """Connect now, so that the first wakeup does not have to."""
        if self._url is not None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._connected()
            except CANNOT_CONNECT as error:
                self._disconnect(error)

    def add_listener(self, listener: Listen) -> None:
        """Wake a worker of this process directly, without the network."""
        self._listeners.append(listener)

    def wake(self, *jobs: Inserted) -> None:
        """Call it after the commit that made these jobs pending. Never waits."""
        self.wake_lanes((job.lane, job.run_at) for job in jobs)

    def wake_lanes(self, places: Iterable[tuple[Lane, datetime]]) -> None:
        new: wakeups.Places = {}
        wakeups.merge(new, places)
        if not new:
            return
        for listener in self._listeners:
            listener(new)
        wakeups.merge(self._places, new.items())
        self._flush_soon()

    def broadcast(self, message: str) -> None:
        """Send every worker a message that is not about a lane."""
        self._messages.add(message)
        self._flush_soon()

    async def close(self) -> None:
        if self._flusher is not None:
            await asyncio.gather(self._flusher, return_exceptions=True)
        if self._connection is not None:
            self._connection.terminate()

    def _flush_soon(self) -> None:
        if self._url is not None and (self._flusher is None or self._flusher.done()):
            self._flusher = asyncio.create_task(self._flush(), name="notifier")

    async def _flush(self) -> None:
        while self._places or self._messages:
            payloads = [*self._messages, *wakeups.encode(self._places)]
            self._places, self._messages = {}, set()
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._send(payloads)
            except CANNOT_CONNECT as error:
                self._disconnect(error)
            await asyncio.sleep(GAP_S)

    async def _send(self, payloads: list[str]) -> None:
        if self._connection is None and asyncio.get_running_loop().time() < self._silent_until_s:
            return
        connection = await self._connected()
        for payload in payloads:
            await connection.execute(_SQL.notify, wakeups.CHANNEL, payload)

    async def _connected(self) -> SingleConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect_single(self._url, application_name="trunkline notifier")
        return self._connection

    def _disconnect(self, error: BaseException) -> None:
        log.warning("jobs.wakeup_lost", channel=wakeups.CHANNEL, error=describe(error))
        self._silent_until_s = asyncio.get_running_loop().time() + RECONNECT_AFTER_S
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
