"""Connections that take a batch of commands at once: packed by hiredis, one write, one time limit for all replies.

The asynchronous client packs in Python (16 µs for a script with ten arguments, of which hiredis leaves 2), and its
pipelines take a connection from the pool, start a task for the write and a timer for each reply. Measured with a lone
script, that is two thirds of the CPU that the client needs for it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import pack_command
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import TimeoutError as NoAnswer

Command = Iterable[Any]


class Packing(AbstractConnection):
    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]:
        return [_packed(commands)]

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send them together; their replies in the same order, errors of the server among them. Whatever else goes
        wrong breaks the connection: a reply that comes late must not be taken for that of another command."""
        try:
            async with asyncio.timeout(self.socket_timeout):
                writer = await self._connected()
                writer.write(_packed(commands))
                return [await self._read_response_from_parser() for _ in commands]
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise NoAnswer(f"no answer within {self.socket_timeout:g} s") from None
        except BaseException:
            await self.disconnect(nowait=True)
            raise

    async def _connected(self) -> asyncio.StreamWriter:
        """Connect if it is not, or was closed by the server meanwhile, or has something that nobody asked for."""
        parser: Any = self._parser
        if self.is_connected and await parser.can_read():
            await self.disconnect(nowait=True)
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        assert self._writer is not None, "it is connected"
        return self._writer


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


def _packed(commands: Iterable[Command]) -> bytes:
    return b"".join(map(_packed_one, commands))


def _packed_one(command: Command) -> bytes:
    name, *arguments = command
    # The client writes some names with a space, such as `SCRIPT LOAD`; the server wants two words.
    packed: bytes = pack_command((*name.split(), *arguments))
    return packed
