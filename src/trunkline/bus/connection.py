"""The connection to Valkey: one server, or a cluster.

The client's own retries are off. A command that timed out may have run, and only its caller knows whether running it
twice does harm. The one repetition is after NOSCRIPT (`scripts.py`), which the server returns without having run
anything.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cache
from typing import Any

from prometheus_client import Histogram
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from trunkline.bus.keys import Keys, Projection
from trunkline.bus.scripts import Pipe, Script, Word, script
from trunkline.bus.server import Cluster, Commands, Server, ServerRunId
from trunkline.errors import BusUnavailable, ProjectionLost
from trunkline.telemetry import metrics

# Commands take well under a millisecond; a server that needs longer than this is in trouble.
COMMAND_TIMEOUT_S = 2.0
_WAKE_DIALERS = script("wake_dialers")
_PROBE = script("probe")
# A blocking read may wait this long at the server before its socket is considered dead.
BLOCK_MAX_S = 5.0
_WAIT_TIMEOUT_S = BLOCK_MAX_S + COMMAND_TIMEOUT_S

# What a command without a reply raises. RuntimeError: uvloop's, for a write to a connection that the server has reset
# while the client still takes it for open.
_UNANSWERED = (RedisError, OSError, RuntimeError)

Client = Redis | RedisCluster


class Bus:
    """Runs scripts and commands under the keys of one dispatch domain."""

    def __init__(self, client: Client, scripts: Commands, waits: Commands, keys: Keys):
        self.client = client
        self.scripts = scripts
        self.waits = waits
        self.keys = keys
        # The epoch of the projection that this process has read; 0 until then. See `epoch.py`.
        self.epoch = 0
        self._pipe = Pipe(scripts)
        self._waking: asyncio.Task[None] | None = None
        self._wakes_again = False

    def at_epoch(self, epoch: int) -> "Bus":
        """The same connection, writing another epoch's projection."""
        other = copy(self)
        other.epoch = epoch
        return other

    @property
    def projection(self) -> Projection:
        return self.keys.projection(self.epoch)

    @property
    def epoch_argument(self) -> ServerRunId:
        """The epoch number that this process has read, and the server's run id: scripts check it first."""
        return ServerRunId(f"{self.epoch}@")

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any:
        """Run a script once. Every failure to get its reply is `BusUnavailable`."""
        started = time.perf_counter()
        try:
            return await self._pipe.run(lua, lua.declared(keys, args), args)
        except ResponseError as error:
            if str(error).startswith("EPOCH"):
                self.epoch = 0
                raise ProjectionLost("Valkey has lost its projection, or it is being rebuilt") from error
            raise BusUnavailable(f"Valkey did not run {lua.name}: {error}") from error
        except _UNANSWERED as error:
            raise BusUnavailable(f"Valkey did not run {lua.name}: {_describe(error)}") from error
        finally:
            _seconds_of(lua.name).observe(time.perf_counter() - started)

    async def change(self, lua: Script, args: Iterable[Word]) -> int:
        """Run a script that changes the projection of dispatch; it checks its epoch first. Returns how much changed."""
        keys = (self.keys.epoch, self.keys.dialer_wakeups)
        return int(await self.run(lua, keys, [self.projection, self.epoch_argument, *args]))

    async def read(self, command: Any) -> Any:
        """Await a plain command; every failure is `BusUnavailable`."""
        try:
            return await command
        except _UNANSWERED as error:
            raise BusUnavailable(f"Valkey did not answer: {_describe(error)}") from error

    async def server_time_s(self) -> float:
        """Valkey's time, in seconds since the epoch, by a script that only runs: the health check of Valkey. PING
        succeeds even while every script is refused."""
        seconds, microseconds = await self.run(_PROBE, [self.keys.probe])
        return int(seconds) + int(microseconds) / 1e6

    def wake_dialers(self) -> None:
        """Wake a dialer, soon: requests that come while a wakeup is sent share one more. A hint that may be lost."""
        self._wakes_again = True
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake_dialers(), name="wake_dialers")

    async def _wake_dialers(self) -> None:
        while self._wakes_again:
            self._wakes_again = False
            try:
                await self.run(_WAKE_DIALERS, [self.keys.dialer_wakeups])
            except BusUnavailable:
                return

    async def wait(self, *command: Word) -> Any:
        """A blocking command, for at most `BLOCK_MAX_S`. Its reply is as it came over the wire."""
        return await self.read(self.waits.ask(*command))

    async def close(self) -> None:
        if self._waking is not None:
            await asyncio.gather(self._waking, return_exceptions=True)
        await self.scripts.close()
        await self.waits.close()
        await self.client.aclose()


class DialerWakeups:
    """Waits for wakeups of dialers: a lead became due, or a channel was freed. A wakeup is a hint. A dialer that takes
    one and dies delays the others by at most their longest wait, one second.

    The time limit of a wait is enforced here and not at the server: Valkey ends blocking reads at its own tick, ten
    times a second, and a dialer that waits for a lead due in 7 ms would be 50 ms late. So one blocking read outlives
    many waits, and takes the next wakeup.
    """

    def __init__(self, bus: Bus):
        self._bus = bus
        self._listening: asyncio.Task[bool] | None = None

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a wakeup; True if there was one, also since the last wait. False may come early."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="dialer_wakeups")
        await asyncio.wait({self._listening}, timeout=timeout_s)
        if not self._listening.done():
            return False
        listening, self._listening = self._listening, None
        return listening.result()

    async def close(self) -> None:
        """Stop listening. A wakeup that comes at the same time may be lost: it is a hint."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> bool:
        return await self._bus.wait("BLPOP", self._bus.keys.dialer_wakeups, BLOCK_MAX_S) is not None


def connect(url: str, keys: Keys, *, pool_size: int = 10, cluster: bool = False) -> Bus:
    """Prepare the clients. They connect at their first command, so this never fails for a server that is down."""
    try:
        if cluster:
            nodes = _cluster(url, pool_size, COMMAND_TIMEOUT_S)
            return Bus(nodes, Cluster(nodes), Cluster(_cluster(url, pool_size, _WAIT_TIMEOUT_S)), keys)
        return Bus(
            Redis.from_url(url, **_options(pool_size, COMMAND_TIMEOUT_S)),
            _server(url, pool_size, COMMAND_TIMEOUT_S),
            _server(url, pool_size, _WAIT_TIMEOUT_S),
            keys,
        )
    except ValueError as error:
        raise BusUnavailable(f"REDIS_URL cannot be used: {error}") from error


@cache
def _seconds_of(script: str) -> Histogram:
    """Cached: finding it by its label costs more than observing."""
    return metrics.BUS_SCRIPT_SECONDS.labels(script=script)


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


def _raw_response(response: Any, **_options: Any) -> Any:
    return response


def _options(pool_size: int, timeout_s: float) -> dict[str, Any]:
    return {
        "decode_responses": True,
        # Named, because its default differs between releases of the client.
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": COMMAND_TIMEOUT_S,
        "max_connections": pool_size,
    }


def _server(url: str, pool_size: int, timeout_s: float) -> Server:
    return Server(
        url, timeout_s=timeout_s, connect_timeout_s=COMMAND_TIMEOUT_S, connections_max=pool_size + 1
    )


def _cluster(url: str, pool_size: int, timeout_s: float) -> RedisCluster:
    # One connection for scripts or waits beside those for plain commands.
    nodes: RedisCluster = RedisCluster.from_url(url, **_options(pool_size + 1, timeout_s))
    nodes.set_response_callback("XREADGROUP", _raw_response)
    return nodes
