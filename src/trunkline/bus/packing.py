"""Connections that take a batch of commands at once: packed by hiredis, one write, one time limit for all replies.

The asynchronous client packs in Python (16 µs for a script with ten arguments, of which hiredis leaves 2), and its
pipelines take a connection from the pool, start a task for the write and a timer for each reply. Measured with a lone
script, that is two thirds of the CPU that the client needs for it.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import pack_command
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as NoAnswer

Command = Iterable[Any]


class Life:
    """Stands in a command for the life of the server, its run id, behind a word of its own. A connection never outlives
    the process at its other end, so what was read when it was opened holds for every command on it. A script that reads
    it itself (INFO) is a sixth dearer."""

    __slots__ = ("_word",)

    def __init__(self, word: str = ""):
        self._word = word

    def of(self, run_id: str) -> str:
        return self._word + run_id


LIFE = Life()
_RUN_ID = re.compile(r"^run_id:(\w+)", re.MULTILINE)


class Packing(AbstractConnection):
    _life: str | None = None

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]:
        return [_packed(commands)]

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send them together; their replies in the same order, errors of the server among them. Whatever else goes
        wrong breaks the connection: a reply that comes late must not be taken for that of another command."""
        try:
            async with asyncio.timeout(self.socket_timeout):
                writer = await self._connected()
                writer.write(_packed(self._told(commands)))
                replies = [await self._read_response_from_parser() for _ in commands]
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise NoAnswer(f"no answer within {self.socket_timeout:g} s") from None
        except BaseException:
            await self.disconnect(nowait=True)
            raise
        if any(isinstance(reply, Exception) and str(reply).startswith("EPOCH") for reply in replies):
            self._life = None  # ask again: it may be another one
        return replies

    async def _connected(self) -> asyncio.StreamWriter:
        """Connect if it is not, or was closed by the server meanwhile, or has something that nobody asked for."""
        parser: Any = self._parser
        if self.is_connected and await parser.can_read():
            await self.disconnect(nowait=True)
        if not self.is_connected:
            self._life = None
            await self.connect()  # type: ignore[no-untyped-call]  # the client has no types there
        assert self._writer is not None, "it is connected"
        if self._life is None:
            self._writer.write(_packed([("INFO", "server")]))
            self._life = _run_id(await self._read_response_from_parser())
        return self._writer

    def _told(self, commands: Sequence[Command]) -> Iterable[Command]:
        return told(commands, self._life or "")


def told(commands: Iterable[Command], run_id: str) -> Iterable[Command]:
    for command in commands:
        yield [word.of(run_id) if type(word) is Life else word for word in command]


class PackingConnection(Packing, Connection):
    pass


class PackingTlsConnection(Packing, SSLConnection):
    pass


class PackingUnixConnection(Packing, UnixDomainSocketConnection):
    pass


PACKING: dict[type[AbstractConnection], type[Packing]] = {
    Connection: PackingConnection,
    SSLConnection: PackingTlsConnection,
    UnixDomainSocketConnection: PackingUnixConnection,
}


def _run_id(info: Any) -> str:
    if isinstance(info, Exception):
        raise info
    found = _RUN_ID.search(info if isinstance(info, str) else info.decode())
    if found is None:
        raise InvalidResponse("the server does not say which life it is in: INFO server has no run_id")
    return found[1]


def _packed(commands: Iterable[Command]) -> bytes:
    return b"".join(map(_packed_one, commands))


def _packed_one(command: Command) -> bytes:
    name, *arguments = command
    # The client writes some names with a space, such as `SCRIPT LOAD`; the server wants two words.
    packed: bytes = pack_command((*name.split(), *arguments))
    return packed
