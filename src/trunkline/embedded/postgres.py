"""The embedded Postgres."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from signal import Signals
from typing import ClassVar

import asyncpg

from trunkline.embedded.account import require_name
from trunkline.embedded.leftovers import folder_mark
from trunkline.embedded.ports import LOOPBACK
from trunkline.embedded.process import Child, Step
from trunkline.embedded.server import Server
from trunkline.errors import EmbeddedError

USER = "trunkline"
DATABASE = "postgres"  # the one that initdb makes

# Written to postgresql.conf when the folder is made: an operator may change them there.
TUNING = {
    "max_connections": "100",
    "shared_buffers": "128MB",  # taken page by page as it is used: idle stays small
    "huge_pages": "off",
    "io_method": "sync",  # no reader processes of its own: three fewer to keep
    "max_logical_replication_workers": "0",
    "idle_in_transaction_session_timeout": "60s",  # a stuck transaction holds back the vacuum of everything
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # DETAIL of a refused row quotes its values, and rows hold phone numbers.
    "log_error_verbosity": "terse",
}
# A process may be killed at any time without loss; only a dead machine needs these.
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}

INITDB_OPTIONS = (
    f"--username={USER}",
    "--auth=scram-sha-256",
    "--pwfile=/dev/stdin",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
    "--data-checksums",
    "--no-instructions",
)


class Postgres(Server):
    title = "Postgres"
    program = "postgres"
    # Fast shutdown, then one that recovers at the next start, then none at all.
    stop_steps: ClassVar = (Step(Signals.SIGINT, 30), Step(Signals.SIGQUIT, 10), Step(Signals.SIGKILL, 5))

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self.port}/{database}"

    async def start(self) -> None:
        """A server that refuses the password does not belong to this folder's secret."""
        await super().start()
        try:
            connection = await asyncpg.connect(self.url())
        except asyncpg.InvalidPasswordError:
            raise EmbeddedError(
                f"Postgres in {self.folder} refuses the password in {self.folder.parent / 'password'}: "
                "restore the file from a backup, or move the data folder away to begin anew"
            ) from None
        await connection.close()

    async def prepare(self) -> None:
        if self.folder.exists():
            self._check_version()
            # No leftover server runs, and its pid may be reused by now, which would prevent a start.
            (self.folder / "postmaster.pid").unlink(missing_ok=True)
        else:
            await self._make_folder()

    def spawn(self, port: int) -> Child:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",
            "cluster_name": folder_mark(self.folder),
            # Without "$user": an application's tables are in a schema of this role's name, and would come first.
            "search_path": "public",
            **({} if self._durable else NOT_DURABLE),
        }
        return Child.spawn(
            [self._binaries.postgres, "-D", _as_seen_from_inside(self.folder), *_options("-c", settings)],
            cwd=self.folder,
            account=self.account,
            log=self.log_file,
            death_signal=Signals.SIGINT,
        )

    async def answers(self) -> bool:
        """The last line of the pid file shows that it accepts connections; the first must be its own pid."""
        try:
            lines = (self.folder / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def complaint(self, output: str) -> str | None:
        found = re.findall(r"(?:FATAL|PANIC):\s+(.+)", output)
        return found[-1].rstrip(".") if found else None

    async def _make_folder(self) -> None:
        """`initdb` runs in another folder, which is renamed at the end: an existing folder is complete."""
        require_name(self.account)
        for abandoned in self.folder.parent.glob("postgres.new.*"):
            shutil.rmtree(abandoned)
        new = Path(tempfile.mkdtemp(prefix="postgres.new.", dir=self.folder.parent))
        self.account.own(new)
        try:
            await self._initdb(new)
            _move(new, self.folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    async def _initdb(self, new: Path) -> None:
        sync = () if self._durable else ("--no-sync",)
        command = [self._binaries.initdb, "-D", _as_seen_from_inside(new), *INITDB_OPTIONS, *sync]
        child = Child.spawn(
            [*command, *_options("--set", TUNING)],
            cwd=new,
            account=self.account,
            log=self.log_file.with_name("initdb.log"),
            stdin=f"{self._password}\n".encode(),
        )
        try:
            status = await child.exited()
        finally:
            await child.stop([Step(Signals.SIGTERM, 10), Step(Signals.SIGKILL, 5)])
        if status != 0:
            errors = (line for line in child.output.splitlines() if "error" in line)
            why = next(errors, f"exit status {status}")
            raise EmbeddedError(f"Postgres cannot make its folder {self.folder}: {why}")

    def _check_version(self) -> None:
        # The first line of the catalogue, «# PostgreSQL 18», which initdb itself goes by.
        with (self._binaries.postgres_home / "share" / "postgres.bki").open() as catalogue:
            ours = catalogue.readline().split()[-1]
        try:
            theirs = (self.folder / "PG_VERSION").read_text().strip()
        except OSError:
            theirs = ""
        if theirs == ours:
            return
        what = (
            f"was made by Postgres {theirs}, and this is Postgres {ours}" if theirs else "has no PG_VERSION"
        )
        raise EmbeddedError(
            f"{self.folder} {what}. Nothing was changed: restore the folder from a backup, "
            "use the engine that made it, or move it away to begin anew"
        )


def _as_seen_from_inside(folder: Path) -> str:
    """A path of the data folder that its server can open.

    The server starts inside the folder, and its account may have no access to the folders above. On Linux the path of
    the working folder in /proc needs no such access, whatever the length and spelling of the real path.
    """
    here = "/proc/self/cwd"
    return here if os.path.exists(here) else str(folder)


def _options(flag: str, settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (flag, f"{name}={value}")]


def _move(new: Path, place: Path) -> None:
    """Returns when it is synced to disk."""
    new.rename(place)
    fd = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
