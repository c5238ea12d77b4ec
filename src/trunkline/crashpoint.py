"""Named places where a test may end the process, as if its machine had lost power there.

`crash_point("dialer.after_intent")` does nothing, at the price of one comparison, unless the process was
started with both `TRUNKLINE_TESTING=1` and `TRUNKLINE_CRASH_AT=dialer.after_intent:3`: then the third passing
of that line ends it at once, without cleaning up. `TRUNKLINE_STOP_AT` stops it there instead, as a machine that is
paused, until a SIGCONT. The tests have a list of all names.

The variables are read here and not by the settings: they are no settings, and must work in any process.
"""

import logging
import os
import signal
from collections.abc import Mapping

from trunkline.errors import TrunklineError

CRASH_AT = "TRUNKLINE_CRASH_AT"
STOP_AT = "TRUNKLINE_STOP_AT"
TESTING = "TRUNKLINE_TESTING"
EXIT_STATUS = 137  # as after SIGKILL

log = logging.getLogger(__name__)


class Fuse:
    """Counts down with each passing of one name."""

    def __init__(self, name: str, passings_left: int, *, stops: bool = False) -> None:
        self.name = name
        self.passings_left = passings_left
        self.stops = stops

    def passed(self, name: str) -> None:
        if name != self.name:
            return
        self.passings_left -= 1
        if self.passings_left == 0:
            what = "stops" if self.stops else "ends"
            os.write(2, f"crash point {name} reached: the process {what} here\n".encode())
            if not self.stops:
                os._exit(EXIT_STATUS)
            os.kill(os.getpid(), signal.SIGSTOP)


def fuse_from(environment: Mapping[str, str]) -> Fuse | None:
    variable = CRASH_AT if CRASH_AT in environment else STOP_AT
    wanted = environment.get(variable)
    if wanted is None:
        return None
    if environment.get(TESTING) != "1":
        log.error("%s=%s is ignored: crash points are for tests, with %s=1", variable, wanted, TESTING)
        return None
    name, _, count = wanted.partition(":")
    if not name or not count.isdecimal() or int(count) == 0:
        raise TrunklineError(f"{variable}={wanted} is not a name, a colon and a count from 1")
    what = "end" if variable == CRASH_AT else "stop"
    log.critical("this process will %s itself at passing %s of crash point %s", what, count, name)
    return Fuse(name, int(count), stops=variable == STOP_AT)


_fuse = fuse_from(os.environ)


def crash_point(name: str) -> None:
    if _fuse is not None:
        _fuse.passed(name)
