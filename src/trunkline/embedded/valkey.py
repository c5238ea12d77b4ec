"""The embedded Valkey."""

import re
from signal import Signals
from typing import ClassVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from trunkline.embedded.leftovers import folder_mark
from trunkline.embedded.ports import LOOPBACK
from trunkline.embedded.process import Child, Step
from trunkline.embedded.server import Server
from trunkline.errors import EmbeddedError

CONNECT_LIMIT_S = 5

# Every write reaches the kernel before its reply: a killed server loses nothing, a crashed machine at most a second.
# Nothing may be evicted: with a lost channel count a number could exceed its limit.
DURABLE = {"appendonly": "yes", "appendfsync": "everysec", "save": '""', "maxmemory-policy": "noeviction"}
NOT_DURABLE = {**DURABLE, "appendfsync": "no"}


class Valkey(Server):
    title = "Valkey"
    program = "valkey-server"
    stop_steps: ClassVar = (Step(Signals.SIGTERM, 15), Step(Signals.SIGKILL, 5))

    @property
    def settings(self) -> dict[str, str]:
        """Besides its address and its password."""
        return DURABLE if self._durable else NOT_DURABLE

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    def client(self) -> "Redis":
        """A plain client for one request, without retries."""
        return Redis.from_url(
            self.url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=CONNECT_LIMIT_S,
            socket_connect_timeout=CONNECT_LIMIT_S,
        )

    async def prepare(self) -> None:
        if not self.folder.exists():
            self.folder.mkdir(mode=0o700)
            self.account.own(self.folder)
        elif not self.folder.is_dir():
            raise EmbeddedError(f"{self.folder} is not a folder: move it away")

    def spawn(self, port: int) -> Child:
        """Settings are passed by stdin: every user could read a password in the arguments."""
        settings = {
            "bind": LOOPBACK,
            "port": str(port),
            "requirepass": self._password,
            "dir": ".",
            **self.settings,
        }
        title = f"{{title}} {{listen-addr}} {folder_mark(self.folder)}"
        return Child.spawn(
            [self._binaries.valkey_server, "-", "--proc-title-template", title],
            cwd=self.folder,
            account=self.account,
            log=self.log_file,
            stdin="".join(f"{name} {value}\n" for name, value in settings.items()).encode(),
        )

    async def answers(self) -> bool:
        """Connects only after its log says that it is ready: until then the port may be another server's, which must
        not get the password."""
        if "Ready to accept connections" not in self.output:
            return False
        client = self.client()
        try:
            await client.ping()
        except (RedisError, OSError):
            return False
        finally:
            await client.aclose()
        return True

    def complaint(self, output: str) -> str | None:
        """Important lines are marked «#»: the last one is why it ended, except for advice on the kernel."""
        found = re.findall(r"^\d+:[A-Z] .*? # (?!WARNING)(.+)$", output, re.MULTILINE)
        return found[-1].rstrip(".") if found else None
