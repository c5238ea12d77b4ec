"""Wakes workers after a commit: those of this process directly, those of others by NOTIFY.

A wakeup names the lanes that have new jobs and the time from which to look, never the jobs themselves. It is a hint:
one that is lost, duplicated, or of another version costs one poll of the outbox, and no more.

NOTIFY takes a database-wide lock at commit, so it is never part of a caller's transaction. The notifier sends it on a
connection of its own, and wakeups that come in during a send go with the next. The listener has another one, past any
pooler, and reconnects whenever it breaks.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from trunkline.event_loop import OnDemandTask, ends_within
from trunkline.loops.base import Loop
from trunkline.store.database import CANNOT_CONNECT, UNAVAILABLE, describe
from trunkline.store.driver import SingleConnection, connect_single
from trunkline.store.jobs import BEGINNING, Inserted, Lane
from trunkline.store.sql import Area
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

_SQL = Area("jobs")
_SESSION_SQL = Area("session")

CHANNEL = "trunkline_jobs"
# Postgres accepts up to 8,000 bytes. A lane takes about 40.
PAYLOAD_MAX = 7_500
# A running job was cancelled: every worker checks its own jobs.
CANCELLED = "!"
# The minimum time between two sends: at a higher rate workers are busy anyway, and claim again by themselves.
GAP_S = 0.002
SEND_TIMEOUT_S = 2.0
# A worker that gets no wakeup polls within a second, so wakeups are dropped while the connection is down.
RECONNECT_AFTER_S = 1.0
CONNECT_TIMEOUT_S = 5.0
# A half-open connection looks like an idle one, so the listener sends a query on it.
ALIVE_EVERY_S = 10.0
ALIVE_TIMEOUT_S = 5.0

Places = dict[Lane, datetime]
# None: there may be jobs in any lane.
OnWakeup = Callable[[Places | None], None]


def merge(into: Places, places: Iterable[tuple[Lane, datetime]]) -> None:
    for lane, run_at in places:
        known = into.get(lane)
        into[lane] = run_at if known is None or run_at < known else known


def encode(places: Mapping[Lane, datetime]) -> Iterator[str]:
    """As few payloads as possible."""
    line: list[str] = []
    length = 0
    for lane, run_at in places.items():
        # Rounded down, so that the position is never behind the job.
        microseconds = int((run_at - BEGINNING).total_seconds() * 1_000_000) - 1
        word = f"{lane.job_type} {lane.priority} {int(lane.keyed)} {microseconds}"
        if length + len(word) > PAYLOAD_MAX:
            yield ",".join(line)
            line, length = [], 0
        line.append(word)
        length += len(word) + 1
    if line:
        yield ",".join(line)


def decode(payload: str) -> Places | None:
    """None for an unreadable or empty payload: poll all lanes."""
    places: Places = {}
    try:
        for word in payload.split(","):
            job_type, priority, keyed, run_at = word.split(" ")
            lane = Lane(job_type, int(priority), keyed == "1")
            places[lane] = datetime.fromtimestamp(int(run_at) / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return places


class JobNotifier:
    """One per process. Without a URL it wakes this process alone."""

    def __init__(self, direct_url: str | None):
        self._url = direct_url
        self._connection: SingleConnection | None = None
        self._places: Places = {}
        self._messages: set[str] = set()
        self._sender = OnDemandTask(self._flush, "notifier")
        self._listeners: list[OnWakeup] = []
        self._silent_until_s = 0.0

    @property
    def pid(self) -> int | None:
        """The server process that sends this notifier's wakeups: the listener of this process ignores them."""
        return self._connection.get_server_pid() if self._connection is not None else None

    async def warm(self) -> None:
        """Connect now, so that the first wakeup does not have to."""
        if self._url is not None:
            await self._send([])

    def add_listener(self, listener: OnWakeup) -> None:
        """Wake a worker of this process directly, without the network."""
        self._listeners.append(listener)

    def wake(self, *jobs: Inserted) -> None:
        """Call it after the commit that made these jobs pending. Never waits."""
        self.wake_lanes((job.lane, job.run_at) for job in jobs)

    def wake_lanes(self, places: Iterable[tuple[Lane, datetime]]) -> None:
        new: Places = {}
        merge(new, places)
        if not new:
            return
        for listener in self._listeners:
            listener(new)
        merge(self._places, new.items())
        self._send_soon()

    def broadcast(self, message: str) -> None:
        """Send every worker a message that is not about a lane."""
        self._messages.add(message)
        self._send_soon()

    async def close(self) -> None:
        await self._sender.idle()
        if self._connection is not None:
            self._connection.terminate()

    def _send_soon(self) -> None:
        if self._url is not None:
            self._sender.start()

    async def _flush(self) -> None:
        while self._places or self._messages:
            payloads = [*self._messages, *encode(self._places)]
            self._places, self._messages = {}, set()
            if self._connection is not None or asyncio.get_running_loop().time() >= self._silent_until_s:
                await self._send(payloads)
            await asyncio.sleep(GAP_S)

    async def _send(self, payloads: list[str]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect_single(self._url, application_name="trunkline notifier")
                for payload in payloads:
                    await self._connection.execute(_SQL.notify, CHANNEL, payload)
        except CANNOT_CONNECT as error:
            log.warning("jobs.wakeup_lost", channel=CHANNEL, error=describe(error))
            self._silent_until_s = asyncio.get_running_loop().time() + RECONNECT_AFTER_S
            if self._connection is not None:
                self._connection.terminate()
                self._connection = None


class Listener(Loop):
    """Receives wakeups. Each new connection begins with a poll, for those that were lost meanwhile."""

    name = "job_listener"

    def __init__(
        self, direct_url: str, notifier: JobNotifier, *, on_wakeup: OnWakeup, on_cancel: Callable[[], None]
    ):
        super().__init__(interval_s=0.05)
        self._url = direct_url
        # Of this process: its wakeups arrived already.
        self._notifier = notifier
        self._on_wakeup = on_wakeup
        self._on_cancel = on_cancel
        self._broken = asyncio.Event()
        self.listening = asyncio.Event()

    async def run_once(self) -> int:
        """One connection, until it breaks."""
        self._broken.clear()
        connection = await connect_single(
            self._url, application_name="trunkline listener", timeout_s=CONNECT_TIMEOUT_S
        )
        try:
            connection.add_termination_listener(lambda _: self._broken.set())
            await connection.add_listener(CHANNEL, self._on_notification)
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
            if await ends_within(ALIVE_EVERY_S, self._broken.wait()):
                break
            try:
                await connection.fetchval(_SESSION_SQL.now, timeout=ALIVE_TIMEOUT_S)
            except UNAVAILABLE as error:
                log.warning("jobs.listener_deaf", error=describe(error))
                self._broken.set()
        if not self.stopping:
            log.warning("jobs.listener_lost", channel=CHANNEL)

    def _on_notification(self, _connection: object, pid: int, channel: str, payload: Any) -> None:
        metrics.JOB_NOTIFICATIONS_RECEIVED.labels(channel).inc()
        if payload == CANCELLED:
            self._on_cancel()
            return
        places = decode(payload)
        if places is None or pid != self._notifier.pid:
            self._on_wakeup(places)
