"""Loads the Lua files. The script `match` is `lua/match.lua`, sent by its SHA, and in full when the server lacks it.

A line `-- @include name` is replaced by `lua/includes/name.lua`: the server has no modules, and what several scripts do
with one structure must be written once.

A key whose name is known before the script runs, `key('leads')`, is declared: the text that is sent has `KEYS[n]`, and
`declared` adds the key after those that the caller names. Then come the keys of arguments, as the header says:
`-- @keys ARGV[3]: pod lease` is `pod:<pod>` and `lease:<pod>`, `-- @keys ARGV[5..] by 2: ended` is `ended:<call>` of
every second argument, and `<>` stands for the argument. `lua/includes/keys.lua` builds those that a script finds.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

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
