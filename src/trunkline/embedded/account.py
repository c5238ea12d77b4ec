"""The user that the servers run as.

Postgres refuses to run as root, and Valkey need not. So root runs both of them as an account without rights: the owner
of an existing folder, else the user `trunkline` if an operator created one, else `nobody`. Other users run them as
themselves.
"""

import os
import pwd
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trunkline.errors import EmbeddedError

UNPRIVILEGED_NAMES = ("trunkline", "nobody")


@dataclass(frozen=True)
class SystemUser:
    uid: int
    gid: int

    @property
    def is_another(self) -> bool:
        """This process is root, and runs the servers as an account without rights."""
        return self.uid != os.geteuid()

    def own(self, path: Path | int) -> None:
        """Change the owner of a file or folder to the servers' account."""
        if self.is_another:
            os.chown(path, self.uid, self.gid)


def choose_account(*folders: Path) -> SystemUser:
    """The account for servers with these folders, which need not exist yet."""
    if os.geteuid() != 0:
        return SystemUser(os.geteuid(), os.getegid())
    for stat in (folder.stat() for folder in folders if folder.exists()):
        if stat.st_uid != 0:
            return SystemUser(stat.st_uid, stat.st_gid)
    for name in UNPRIVILEGED_NAMES:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return SystemUser(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "Postgres does not run as root, and there is no user "
        f"{' or '.join(UNPRIVILEGED_NAMES)} to run it as: make one, or start as an ordinary user"
    )


def require_name(account: SystemUser) -> None:
    """`initdb` looks its user up by number, and fails for one without a name."""
    try:
        pwd.getpwuid(account.uid)
    except KeyError:
        raise EmbeddedError(
            f"user id {account.uid} has no name on this system, which Postgres needs to make its folder: "
            "add it to /etc/passwd, or set DATABASE_URL to a Postgres of your own"
        ) from None
