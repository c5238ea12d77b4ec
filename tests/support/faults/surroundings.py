"""What a process takes from its machine and a test wants to change while it runs: the wall clock, and names of hosts.

A file of JSON says what is so: `{"clock_s": -300, "resolves": false}`. A process that was forked with the path in its
environment reads the wall clock through `trunkline.clock` and resolves hosts of `.test` through this file.
"""

import json
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import uvloop

from trunkline.clock import SystemClock

SURROUNDINGS = "TEST_SURROUNDINGS"
DOMAIN = ".test"
HOST = "127.0.0.1"


def write(path: Path, *, clock_s: float = 0.0, resolves: bool = True) -> None:
    """In one step, so that nobody reads half of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"clock_s": clock_s, "resolves": resolves}), encoding="ascii")
    new.replace(path)


def surround(path: Path) -> None:
    """This process lives by the file from now on."""
    true_now, true_lookup = SystemClock.now, uvloop.Loop.getaddrinfo

    def now(clock: SystemClock) -> datetime:
        return true_now(clock) + timedelta(seconds=_read(path)["clock_s"])

    async def getaddrinfo(loop: uvloop.Loop, host: Any, *args: Any, **named: Any) -> Any:
        if isinstance(host, str) and host.endswith(DOMAIN):
            if not _read(path)["resolves"]:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            host = HOST
        return await true_lookup(loop, host, *args, **named)

    setattr(SystemClock, "now", now)  # noqa: B010, mypy refuses the assignment
    setattr(uvloop.Loop, "getaddrinfo", getaddrinfo)  # noqa: B010


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
    return found
