"""Valkey's servers: one, or a cluster.

For one server, hiredis packs the commands and parses the replies; redis-py reads the URL and makes the TLS context.
Between them is one `asyncio.Protocol`: a batch is one write, one time limit and as many replies, over connections that
stay open between batches. The measurement behind this, and the other clients that were measured, are in
docs/decisions/0007-bus.md. For a cluster redis-py knows the nodes, follows their redirects and holds the connections.
"""

import asyncio
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, cast

from hiredis import Reader, pack_command
from redis.asyncio import ConnectionPool, RedisCluster, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import InvalidResponse, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

Command = Iterable[Any]


class ServerRunId:
    """Stands in a command for the run id of the server that gets it, behind a prefix. A connection never outlives the
    process at its other end, so the id that was read when it was opened is valid for every command on it. A script that
    reads it itself (INFO) costs 17 % more."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str = ""):
        self._prefix = prefix

    def of(self, run_id: str) -> str:
        return self._prefix + run_id


SERVER_RUN_ID = ServerRunId()
_RUN_ID = re.compile(r"^run_id:(\w+)", re.MULTILINE)
_INCOMPLETE = object()


class Commands(ABC):
    async def ask(self, *command: Any) -> Any:
        """The reply to one command; an error of the server is raised."""
        (reply,) = await self.exchange([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    @abstractmethod
    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send them together; returns their replies in the same order, errors of the server among them."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections, those in use too. The next exchange opens others."""


class Server(Commands):
    """Lends each of its connections to one exchange at a time."""

    def __init__(self, url: str, *, timeout_s: float, connect_timeout_s: float, connections_max: int):
        """Raises ValueError for a URL that cannot be used. Connects at the first exchange."""
        self._open = _opener(url)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._connections_max = connections_max
        self._idle: list[_Connection] = []
        self._in_use: set[_Connection] = set()
        self._exchanges = 0

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """A failure that is no reply closes the connection: a late reply must not be taken for that of another
        command."""
        connection = self._take()
        self._exchanges += 1
        try:
            if connection is None:
                connection = await self._connected()
            self._in_use.add(connection)
            async with asyncio.timeout(self._timeout_s):
                replies = await connection.exchange(resolve(commands, connection.run_id))
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        else:
            # After a refusal the run id is read again, on another connection: the server may be another process.
            if not any(isinstance(reply, Exception) and str(reply).startswith("EPOCH") for reply in replies):
                self._in_use.discard(connection)
                self._idle.append(connection)
                connection = None
            return replies
        finally:
            self._exchanges -= 1
            if connection is not None:
                self._in_use.discard(connection)
                connection.abort()

    async def close(self) -> None:
        for connection in (*self._idle, *self._in_use):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # sockets are closed in the next turn of the loop

    def _take(self) -> "_Connection | None":
        """An open idle connection, or None if one may be opened."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        if self._exchanges >= self._connections_max:
            raise NotConnected(f"all {self._connections_max} connections are in use")
        return None

    async def _connected(self) -> "_Connection":
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._open()
        except TimeoutError:
            raise NoAnswer(f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise NotConnected(f"no connection: {error}") from error


class Cluster(Commands):
    """The node of a command is not known beforehand, so its run id is sent empty, and scripts read it themselves."""

    def __init__(self, client: RedisCluster):
        self._client = client

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        commands = list(resolve(commands, ""))
        if len(commands) == 1:
            try:
                return [await self._client.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline: Any = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    async def close(self) -> None:
        await self._client.aclose()


class _Connection(asyncio.Protocol):
    """One exchange at a time; its owner waits for the replies or aborts."""

    def __init__(self) -> None:
        self.is_open = False
        self.run_id = ""
        self._transport: asyncio.Transport | None = None
        self._reader = Reader(
            encoding="utf-8", protocolError=InvalidResponse, replyError=_error, notEnoughData=_INCOMPLETE
        )
        self._replies: list[Any] = []
        self._expected = 0
        self._complete: asyncio.Future[list[Any]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._complete is None:  # no command is pending, so the data belongs to none
            self.abort()
            return
        try:
            self._reader.feed(data)
            while len(self._replies) < self._expected:
                reply = self._reader.gets()
                if reply is _INCOMPLETE:
                    return
                self._replies.append(reply)
        except Exception as error:  # not the protocol, or no UTF-8
            self._fail(error)
            self.abort()
            return
        complete, self._complete = self._complete, None
        if not complete.done():
            complete.set_result(self._replies)
        if self._reader.has_data():
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(NotConnected(f"the connection was closed: {error or 'by the server'}"))

    def exchange(self, commands: Iterable[Command]) -> "asyncio.Future[list[Any]]":
        packed = [pack_command(tuple(command)) for command in commands]
        complete = self._complete = asyncio.get_running_loop().create_future()
        self._replies, self._expected = [], len(packed)
        if self._transport is None or not self.is_open:
            self._fail(NotConnected("the connection was closed"))
        else:
            self._transport.write(b"".join(packed))
        return complete

    async def greet(self, commands: Sequence[Command]) -> None:
        """Send the commands that follow from the URL, and read the run id."""
        *done, info = await self.exchange([*commands, ("INFO", "server")])
        for reply in (*done, info):
            if isinstance(reply, Exception):
                raise reply
        match = _RUN_ID.search(info)
        if match is None:
            raise InvalidResponse("the server does not tell its run id: INFO server has no run_id")
        self.run_id = match[1]

    def abort(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        complete, self._complete = self._complete, None
        if complete is not None and not complete.done():
            complete.set_exception(error)


def resolve(commands: Iterable[Command], run_id: str) -> Iterable[Command]:
    for command in commands:
        yield [word.of(run_id) if type(word) is ServerRunId else word for word in command]


def _opener(url: str) -> Callable[[], Coroutine[Any, Any, _Connection]]:
    pool: Any = ConnectionPool.from_url(url)
    options: dict[str, Any] = pool.connection_kwargs
    greeting = _greeting(options)
    is_unix = issubclass(pool.connection_class, UnixDomainSocketConnection)
    tls: ssl.SSLContext | None = None
    if issubclass(pool.connection_class, SSLConnection):
        tls = pool.make_connection().ssl_context.get()

    async def opened() -> _Connection:
        loop = asyncio.get_running_loop()
        if is_unix:
            _, connection = await loop.create_unix_connection(_Connection, options["path"])
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
        try:
            await connection.greet(greeting)
        except BaseException:
            connection.abort()
            raise
        return connection

    return opened


def _greeting(options: dict[str, Any]) -> list[Command]:
    username, password, database = options.get("username"), options.get("password"), options.get("db")
    commands: list[Command] = []
    if username or password:
        commands.append(("AUTH", username or "default", password or ""))
    if name := options.get("client_name"):
        commands.append(("CLIENT", "SETNAME", name))
    if database:
        commands.append(("SELECT", database))
    return commands


def _error(text: str) -> ResponseError:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)
