"""Processes of the platform, forked from one that has imported everything.

A start then costs milliseconds instead of the second and a half of a core that the imports take, so that a test may
kill and start processes by the dozen. What runs in a child is what `trunkline serve` runs.

    server = ForkServer()
    process = server.start("dispatcher", environment, log_file)
    process.kill()

Other programs of the tests run the same way: `start_program("tests.support.chaos.pods:main", arguments, …)`. A process
whose environment names a `SURROUNDINGS` file has the clock and the names of hosts that this file says; see there.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.faults.surroundings import SURROUNDINGS, surround
from tests.support.waiting import eventually
from trunkline import crashpoint

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class RoleProcess:
    """One process of the platform. Signals go to its pid alone."""

    roles: str
    pid: int
    log: Path
    _server: "ForkServer"

    @property
    def exit_status(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._server.exits.get(self.pid)

    @property
    def is_running(self) -> bool:
        return self.exit_status is None

    def signal(self, what: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.pid, what)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def is_frozen(self) -> bool:
        """Stopped by a signal, from outside or by itself."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0] == "T"

    def is_stopped_at(self, point: str) -> bool:
        """Stopped by itself at a crash point. Whoever stops it elsewhere, as `make stutter` does, is not meant."""
        return self.is_frozen and f"crash point {point} reached" in self.log.read_text(errors="replace")

    async def ended(self, timeout_s: float = 40) -> int:
        await eventually(lambda: not self.is_running, timeout_s=timeout_s, what=f"{self.roles} ended")
        assert self.exit_status is not None
        return self.exit_status


class ForkServer:
    """The parent of the processes. They end with it, and it ends with whoever made it."""

    def __init__(self) -> None:
        self.exits: dict[int, int] = {}
        self._started: list[int] = []
        self._news = threading.Condition()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._listen, name="fork server", daemon=True)
        self._reader.start()

    def start(self, roles: str, environment: Mapping[str, str], log: Path) -> RoleProcess:
        return self._order(roles, environment, log, {})

    def start_program(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> RoleProcess:
        """`program` is `module:function`, which gets the arguments."""
        return self._order(program, environment, log, {"arguments": list(arguments)})

    def _order(
        self, what: str, environment: Mapping[str, str], log: Path, more: Mapping[str, object]
    ) -> RoleProcess:
        assert self._popen.stdin is not None
        order = {"run": what, "environment": dict(environment), "log": str(log), **more}
        with self._news:
            self._popen.stdin.write(json.dumps(order) + "\n")
            self._popen.stdin.flush()
            if not self._news.wait_for(lambda: self._started, timeout=30):
                raise AssertionError("the fork server does not answer")
            return RoleProcess(what, self._started.pop(), log, self)

    def close(self) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.wait(10)
        self._reader.join(10)
        self._popen.stdout.close()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            said: dict[str, int] = json.loads(line)
            with self._news:
                if "started" in said:
                    self._started.append(said["started"])
                else:
                    self.exits[said["ended"]] = said["status"]
                self._news.notify_all()


# The other side, a process of its own.


def _serve() -> None:
    _import_everything()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever runs the tests
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(_told_of_ends(), selectors.EVENT_READ)
        orders = b""
        while True:
            for key, _ in selector.select():
                heard = os.read(key.fd, 65536)
                if key.fd != 0:
                    _reap(children)
                elif not heard:
                    return _end_all(children)
                else:
                    *lines, orders = (orders + heard).split(b"\n")
                    for line in lines:
                        _fork(json.loads(line), children)


def _told_of_ends() -> int:
    """A file in which a byte arrives whenever a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _fork(order: dict[str, Any], children: set[int]) -> None:
    pid = os.fork()
    if pid == 0:
        _live(order)
    children.add(pid)
    _say(started=pid)


def _end_all(children: set[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _import_everything() -> None:
    import trunkline.agent.agent
    import trunkline.cli.running
    import trunkline.jobs
    import trunkline.mailbox  # noqa: F401


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _say(ended=pid, status=os.waitstatus_to_exitcode(status))


def _say(**what: int) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def _live(order: dict[str, Any]) -> None:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _redirect(order["log"])
        os.environ.clear()
        os.environ.update(order["environment"])
        _be_oneself()
        if "arguments" in order:
            module, _, function = order["run"].partition(":")
            getattr(importlib.import_module(module), function)(*order["arguments"])
        else:
            _run(order["run"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _redirect(log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _be_oneself() -> None:
    """What a process that was started has of its own, and a forked one shares: chance, and where it crashes."""
    import uuid_utils

    uuid_utils.reseed_rng()
    random.seed()
    crashpoint._fuse = crashpoint.fuse_from(os.environ)
    if SURROUNDINGS in os.environ:
        surround(Path(os.environ[SURROUNDINGS]))


def _run(roles: str) -> None:
    from trunkline.cli.running import prepare, run, serve_platform
    from trunkline.settings import load_settings

    settings = load_settings(TRUNKLINE_ROLES=roles)
    prepare(settings)
    run(lambda stop: serve_platform(settings, stop))


if __name__ == "__main__":
    _serve()
