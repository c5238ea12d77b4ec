"""The data folder.

    .trunkline/
      lock           held while we run; names our pid
      password       of both engines, made once
      engines.json   where they answer, for psql, redis-cli and the next start
      postgres/      the database
      valkey/        the append-only file
      logs/          postgres.log, valkey.log, initdb.log

Everything is closed to other users. Folders above it are never touched.
"""

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Any

from trunkline.errors import EmbeddedError
from trunkline.private_files import write_private


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.postgres = self.path / "postgres"
        self.valkey = self.path / "valkey"
        self.logs = self.path / "logs"
        self._lock_fd: int | None = None

    def take(self) -> None:
        """Lock the folder for this process, until `leave` or its end; creates it if it is missing."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError:
            raise EmbeddedError(
                f"data folder {self.path} is not ours to write: start as its owner, "
                "or choose another --data-dir"
            ) from None
        except OSError as error:
            raise EmbeddedError(
                f"data folder {self.path} cannot be used ({error.strerror}): choose another --data-dir"
            ) from None
        try:
            self._lock(lock_fd)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except BaseException:
            os.close(lock_fd)
            raise
        self._lock_fd = lock_fd

    def leave(self) -> None:
        if self._lock_fd is not None:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = None

    def password(self) -> str:
        """One secret for both engines. It is written before Postgres gets it, and never changed."""
        path = self.path / "password"
        if path.exists():
            return path.read_text().strip()
        if self.postgres.exists():
            raise EmbeddedError(
                f"{path} is missing, and Postgres in {self.postgres} cannot be entered without it: "
                "restore the file, or move the folder away to begin anew"
            )
        password = secrets.token_urlsafe(24)
        write_private(path, password)
        return password

    def last_port(self, engine: str) -> int | None:
        """The last port of `engine`: if it is free, saved URLs of tools stay valid."""
        try:
            port = json.loads((self.path / "engines.json").read_text())[engine]["port"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return port if isinstance(port, int) else None

    def announce(self, engines: dict[str, Any]) -> None:
        write_private(self.path / "engines.json", json.dumps(engines, indent=2))

    def _lock(self, lock_fd: int) -> None:
        """Children do not inherit the lock: Python opens files with close-on-exec. A run as another user would leave
        files that the first user cannot read."""
        owner = os.fstat(lock_fd).st_uid
        if owner != os.geteuid():
            raise EmbeddedError(
                f"data folder {self.path} belongs to user id {owner}, and we are {os.geteuid()}: "
                "start as its owner, or choose another --data-dir"
            )
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            raise EmbeddedError(
                f"data folder {self.path} is in use by process {holder}: stop it, "
                "or choose another --data-dir"
            ) from None
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
