"""Named places where a test may end the process, as if its machine had lost power there.

`crash_point("dialer.after_intent")` does nothing, at the price of one comparison, unless the process was
started with both `TRUNKLINE_TESTING=1` and `TRUNKLINE_CRASH_AT=dialer.after_intent:3`: then the third passing
of that line ends it at once, without cleaning up. Names are declared in `trunkline.testing.crashpoints`.

The variables are read here and not by the settings: they are no setting, and must work in any process.
"""

import logging
import os
from collections.abc import Mapping

from trunkline.errors import TrunklineError

CRASH_AT = "TRUNKLINE_CRASH_AT"
TESTING = "TRUNKLINE_TESTING"
EXIT_STATUS = 137  # as after SIGKILL

log = logging.getLogger(__name__)


class Fuse:
    """Burns down with each passing of one name."""

    def __init__(self, name: str, passings_left: int) -> None:
        self.name = name
        self.passings_left = passings_left

    def passed(self, name: str) -> None:
        if name != self.name:
            return
        self.passings_left -= 1
        if self.passings_left == 0:
            os.write(2, f"crash point {name} reached: the process ends here\n".encode())
            os._exit(EXIT_STATUS)


def fuse_from(environment: Mapping[str, str]) -> Fuse | None:
    wanted = environment.get(CRASH_AT)
    if wanted is None:
        return None
    if environment.get(TESTING) != "1":
        log.error("%s=%s is ignored: crash points are for tests, with %s=1", CRASH_AT, wanted, TESTING)
        return None
    name, _, count = wanted.partition(":")
    if not name or not count.isdecimal() or int(count) == 0:
        raise TrunklineError(f"{CRASH_AT}={wanted} is not a name, a colon and a count from 1")
    log.critical("this process will end itself at passing %s of crash point %s", count, name)
    return Fuse(name, int(count))


_fuse = fuse_from(os.environ)


def crash_point(name: str) -> None:
    if _fuse is not None:
        _fuse.passed(name)
