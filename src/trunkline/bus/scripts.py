"""Loads the Lua files, and sends them. The script `match` is `lua/match.lua`, sent by its SHA, and in full when the
server lacks it.

A line `-- @include name` is replaced by `lua/includes/name.lua`: the server has no modules, and what several scripts do
with one structure must be written once.

A key whose name is known before the script runs, `key('leads')`, is declared: the text that is sent has `KEYS[n]`, and
`declared` adds the key after those that the caller names. Then come the keys of arguments, as the header says:
`-- @keys ARGV[3]: pod lease` is `pod:<pod>` and `lease:<pod>`, `-- @keys ARGV[5..] by 2: ended` is `ended:<call>` of
every second argument, and `<>` stands for the argument. `lua/includes/keys.lua` builds those that a script finds.
"""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from trunkline.bus.server import Command, Commands, ServerRunId

Word = str | bytes | int | float | ServerRunId

# Limits the time for which one batch keeps the server busy to a few ms.
BATCH_MAX = 100

_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
_NAMED = re.compile(r"\bkey\('([\w:]+)'\)")
_KEYS = re.compile(r"\bKEYS\[(\d+)\]")
_ARGUMENT_KEYS = re.compile(r"^-- @keys ARGV\[(\d+)(\.\.)?\](?: by (\d+))?: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ArgumentKeys:
    """Keys that contain an argument: what stands before and after it in each of them."""

    where: slice
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    name: str
    source: str
    sha: str
    # What follows the prefix, ARGV[1], in the keys that are declared after those of the caller.
    names: tuple[str, ...] = ()
    argument_keys: tuple[ArgumentKeys, ...] = ()

    def declared(self, keys: Sequence[str], args: Sequence[object]) -> Sequence[str]:
        """All keys that it declares, given the keys that its header lists and its arguments."""
        if not self.names and not self.argument_keys:
            return keys
        prefix = str(args[0])
        all_keys = [*keys, *_composed(self, prefix)]
        for each in self.argument_keys:
            named = dict.fromkeys(args[each.where])
            all_keys += [
                f"{prefix}{head}{argument}{tail}"
                for argument in named
                if argument != ""
                for head, tail in each.parts
            ]
        return all_keys


@lru_cache(maxsize=512)
def _composed(lua: Script, prefix: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in lua.names)


@cache
def script(name: str) -> Script:
    text = _assembled(f"{name}.lua")
    names = tuple(dict.fromkeys(_NAMED.findall(text)))
    first = 1 + max(map(int, _KEYS.findall(text)), default=0)
    source = _NAMED.sub(lambda match: f"KEYS[{first + names.index(match[1])}]", text)
    # The server names a script by its SHA-1; it secures nothing.
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha, names, tuple(map(_argument_keys, _ARGUMENT_KEYS.finditer(text))))


def _argument_keys(line: re.Match[str]) -> ArgumentKeys:
    first, is_open, step, names = line.groups()
    start = int(first) - 1
    where = slice(start, None, int(step or 1)) if is_open else slice(start, start + 1)
    parts = (name.partition("<>") if "<>" in name else (f"{name}:", "", "") for name in names.split())
    return ArgumentKeys(where, tuple((head, tail) for head, _, tail in parts))


def _assembled(path: str) -> str:
    return _INCLUDE.sub(lambda match: _assembled(f"includes/{match[1]}.lua"), _read(path))


def _read(path: str) -> str:
    return (files("trunkline.bus") / "lua" / path).read_text(encoding="utf-8")


@dataclass(slots=True)
class _Call:
    script: Script
    keys: Sequence[str]
    args: Sequence[Word]
    reply: "asyncio.Future[Any]"


class Pipe:
    """Many callers, one connection: scripts that are requested while a batch is in flight leave together in the next.

    Measured, this matters most: a round trip costs the client ten times what the script costs the server, and a pool of
    connections runs out under a burst where a pipe only gets fuller. Each script still runs by itself and has its own
    reply; one that fails does not affect the others.
    """

    def __init__(self, commands: Commands):
        self._commands = commands
        self._waiting: list[_Call] = []
        self._sender: asyncio.Task[None] | None = None

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        call = _Call(script, keys, args, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all(), name="bus pipe")
        return await call.reply

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            try:
                await self._send(batch)
            except Exception as error:  # no connection, or it broke: whether the scripts ran is unknown
                for call in batch:
                    _set_reply(call, error)

    async def _send(self, batch: list[_Call]) -> None:
        # A caller that was cancelled before its script left does not want it to run.
        pending = [call for call in batch if not call.reply.done()]
        replies = await self._execute(pending, by_sha=True)
        unknown: list[_Call] = []
        for call, reply in zip(pending, replies, strict=True):
            if isinstance(reply, NoScriptError):
                unknown.append(call)
            else:
                _set_reply(call, reply)
        if unknown:
            # The server did not have these scripts, and has not run them. EVAL runs and stores them.
            for call, reply in zip(unknown, await self._execute(unknown, by_sha=False), strict=True):
                _set_reply(call, reply)

    async def _execute(self, calls: list[_Call], *, by_sha: bool) -> list[Any]:
        return await self._commands.exchange([_command(call, by_sha=by_sha) for call in calls])


def _command(call: _Call, *, by_sha: bool) -> Command:
    # By its name: the client's own method for it refuses a cluster, though all keys of a script share a slot.
    head = ("EVALSHA", call.script.sha) if by_sha else ("EVAL", call.script.source)
    return (*head, len(call.keys), *call.keys, *call.args)


def _set_reply(call: _Call, reply: Any) -> None:
    if call.reply.done():
        return
    if isinstance(reply, Exception):
        call.reply.set_exception(reply)
    else:
        call.reply.set_result(reply)
