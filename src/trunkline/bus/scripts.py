"""Loads the Lua files. `script("match")` is `lua/match.lua`, sent by its SHA and in full only when it is not known."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    source = (files("trunkline.bus") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    # The server names a script by its SHA-1; nothing is secured by it.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
