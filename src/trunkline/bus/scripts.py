"""Loads the Lua files. The script `match` is `lua/match.lua`, sent by its SHA and in full only when it is not known.

A line `-- @include name` is replaced by `lua/includes/name.lua`: the server knows no modules, and what several scripts
do with one structure must be written once.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    source = _assembled(f"{name}.lua")
    # The server names a script by its SHA-1; nothing is secured by it.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _assembled(path: str) -> str:
    return _INCLUDE.sub(lambda found: _assembled(f"includes/{found[1]}.lua"), _read(path))


def _read(path: str) -> str:
    return (files("trunkline.bus") / "lua" / path).read_text(encoding="utf-8")
