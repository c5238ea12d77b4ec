"""The connection to Valkey: one server, or a cluster.

The client's own retries are off. A command that timed out may have run, and only its caller knows whether running it
twice does harm. The one repetition is after NOSCRIPT (`pipe.py`), which the server answers without having run anything.
"""

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

from prometheus_client import Histogram
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from trunkline.bus.keys import Keys
from trunkline.bus.line import Client, Lines
from trunkline.bus.packing import PACKING, Life
from trunkline.bus.pipe import Pipe, Word
from trunkline.bus.scripts import Script, script
from trunkline.errors import BusUnavailable, MemoryLost
from trunkline.telemetry import metrics

# Commands answer in well under a millisecond; a server that needs longer than this is in trouble.
COMMAND_TIMEOUT_S = 2.0
_RING = script("ring")
# A blocking read may wait this long at the server before its socket is considered dead.
BLOCK_MAX_S = 5.0


class Bus:
    """Runs scripts and commands under the keys of one dispatch domain."""

    def __init__(self, client: Client, blocking: Client, keys: Keys):
        self.client = client
        self.blocking = blocking
        self.keys = keys
        # The epoch of the memory that this process knows; 0 until it was read. See `epoch.py`.
        self.epoch = 0
        self._pipe = Pipe(client)
        self._waits = Lines(blocking)
        self._ringing: asyncio.Task[None] | None = None
        self._rings_again = False

    def at_epoch(self, epoch: int) -> "Bus":
        """The same connection, writing another epoch's memory."""
        other = copy(self)
        other.epoch = epoch
        return other

    @property
    def memory(self) -> str:
        return self.keys.memory(self.epoch)

    @property
    def known(self) -> Life:
        """The memory that this process knows, by its number and the life of the server: what scripts check first."""
        return Life(f"{self.epoch}@")

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any:
        """Run a script once. Every failure to get its answer is `BusUnavailable`."""
        started = time.perf_counter()
        try:
            return await self._pipe.run(lua, keys, args)
        except ResponseError as error:
            if str(error).startswith("EPOCH"):
                self.epoch = 0
                raise MemoryLost("Valkey has lost its memory, or it is being rebuilt") from error
            raise BusUnavailable(f"Valkey did not run {lua.name}: {error}") from error
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"Valkey did not run {lua.name}: {_words(error)}") from error
        finally:
            _seconds_of(lua.name).observe(time.perf_counter() - started)

    async def read(self, command: Any) -> Any:
        """Await a plain command, with the same one exception for everything that can go wrong."""
        try:
            return await command
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"Valkey did not answer: {_words(error)}") from error

    def ring(self) -> None:
        """Wake a dialer, soon: however many ask for it in one moment, it is done once more. A hint that may be lost."""
        self._rings_again = True
        if self._ringing is None or self._ringing.done():
            self._ringing = asyncio.create_task(self._ring(), name="bell")

    async def _ring(self) -> None:
        while self._rings_again:
            self._rings_again = False
            try:
                await self.run(_RING, [self.keys.bell])
            except BusUnavailable:
                return

    async def wait(self, *command: Word) -> Any:
        """A command that waits at the server, for at most `BLOCK_MAX_S`. Its reply is as it came over the wire."""
        return await self.read(self._waits.ask(*command))

    async def close(self) -> None:
        if self._ringing is not None:
            await asyncio.gather(self._ringing, return_exceptions=True)
        await self.client.aclose()
        await self.blocking.aclose()


def connect(url: str, keys: Keys, *, pool_size: int = 10, cluster: bool = False) -> Bus:
    """Prepare the clients. They connect at their first command, so this never fails for a server that is away."""
    try:
        return Bus(
            _client(url, cluster, pool_size, COMMAND_TIMEOUT_S),
            _client(url, cluster, pool_size, BLOCK_MAX_S + COMMAND_TIMEOUT_S),
            keys,
        )
    except ValueError as error:
        raise BusUnavailable(f"REDIS_URL cannot be used: {error}") from error


@cache
def _seconds_of(script: str) -> Histogram:
    """Finding it by its label costs more than observing."""
    return metrics.BUS_SCRIPT_SECONDS.labels(script=script)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _as_it_came(response: Any, **_options: Any) -> Any:
    return response


def _client(url: str, cluster: bool, pool_size: int, socket_timeout_s: float) -> Client:
    options: dict[str, Any] = {
        "decode_responses": True,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": COMMAND_TIMEOUT_S,
        # One for scripts or waits, which is kept, beside those for plain commands.
        "max_connections": pool_size + 1,
    }
    if cluster:
        nodes: RedisCluster = RedisCluster.from_url(url, **options)
        nodes.set_response_callback("XREADGROUP", _as_it_came)
        return nodes
    client: Redis = Redis.from_url(url, **options)
    client.connection_pool.connection_class = PACKING[client.connection_pool.connection_class]
    return client
